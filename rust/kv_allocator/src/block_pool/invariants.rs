//! The invariants of the pool, checked entry by entry: O(blocks).

use super::super::ids::{BlockId, SlotId};
use super::super::pages::CachedPages;
use super::{BlockPool, EntryId, NOWHERE};
use pyengine_base::error::{Error, Result};

fn broken<T>(what: String) -> Result<T> {
    Err(Error::Invariant(what))
}

impl BlockPool {
    /// Every entry is in exactly one state, and list, stack, pages and counts agree.
    pub(in super::super) fn check(&self) -> Result<()> {
        let mut seen = vec![false; self.sentinel()];
        self.check_free(&mut seen)?;
        self.check_cached(&mut seen)?;
        let (slots, held) = self.check_slots(&seen)?;
        let cached = CachedPages {
            entry: &|block, group| self.entries[self.at(block, group)].holds == 0,
            slot: &|slot| self.entries[self.at_slot(slot)].holds == 0,
        };
        self.pages.check(&slots, &cached)?;
        let held = held + self.check_blocks(&seen)?;
        if held != self.counts().held {
            return broken(format!("{held} pages are held, {} were counted", self.counts().held));
        }
        Ok(())
    }

    fn check_free(&self, seen: &mut [bool]) -> Result<()> {
        for &block in &self.free {
            let first = self.at(block, 0);
            if std::mem::replace(&mut seen[first], true) {
                return broken(format!("block {block} is free twice"));
            }
            for group in 0..self.groups {
                let entry = &self.entries[first + group];
                let has = group > 0 && self.pages.has(block, group);
                if entry.holds != 0 || entry.place != NOWHERE || has || self.snapshot_behind(block).is_some()
                {
                    return broken(format!(
                        "block {block} is free, but held, in the tree, before a snapshot or not without pages"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_cached(&self, seen: &mut [bool]) -> Result<()> {
        let (mut cached, mut blocks, mut older) = (0, 0, self.sentinel() as EntryId);
        let mut at = self.entries[self.sentinel()].newer;
        while at as usize != self.sentinel() {
            let (entry, block, group) =
                (&self.entries[at as usize], at / self.groups as u32, at as usize % self.groups);
            if std::mem::replace(&mut seen[at as usize], true) {
                return broken(format!("entry {at} is cached twice, or cached and free"));
            }
            if entry.holds != 0 || entry.place == NOWHERE || entry.older != older {
                return broken(format!("entry {at} is cached, but held, in no tree or wrongly linked"));
            }
            let of_block = (block as usize) < self.num_blocks;
            cached += if of_block { self.pages.of_block(group) } else { self.state_pages() };
            blocks += usize::from(of_block && group == 0);
            (older, at) = (at, entry.newer);
        }
        if (cached, blocks) != (self.cached, self.cached_blocks)
            || self.entries[self.sentinel()].older != older
        {
            return broken(format!("{cached} pages are in the cached list, {} were counted", self.cached));
        }
        Ok(())
    }

    /// The pages of blocks that are held.
    fn check_blocks(&self, seen: &[bool]) -> Result<usize> {
        let mut held = 0;
        for (at, entry) in self.entries[..self.num_blocks * self.groups].iter().enumerate() {
            let (block, group) = ((at / self.groups) as BlockId, at % self.groups);
            let has = group == 0 || self.pages.has(block, group);
            if !seen[at] && entry.holds == 0 && has {
                return broken(format!("block {block} is neither free nor cached nor held"));
            }
            let first = &self.entries[self.at(block, 0)];
            if entry.holds > first.holds || entry.place != first.place || (entry.holds > 0 && !has) {
                return broken(format!("block {block} is not in group {group} what it is in the first"));
            }
            held += if entry.holds > 0 { self.pages.of_block(group) } else { 0 };
        }
        Ok(held)
    }

    /// The slots that are in use, and the pages of those that are held.
    fn check_slots(&self, seen: &[bool]) -> Result<(Vec<SlotId>, usize)> {
        let mut known = 0;
        let (mut used, mut held) = (Vec::new(), 0);
        for slot in 0..self.num_slots() as SlotId {
            let (at, block) = (self.at_slot(slot), self.snapshots.block(slot));
            let entry = &self.entries[at];
            if entry.place != NOWHERE {
                known += 1;
                if self.snapshot_behind(block) != Some(slot) || self.place(block) == NOWHERE {
                    return broken(format!("state slot {slot} is not the snapshot behind block {block}"));
                }
                if seen[at] != (entry.holds == 0) {
                    return broken(format!("state slot {slot} is neither held nor cached, or both"));
                }
            }
            if entry.place != NOWHERE || entry.holds > 0 {
                used.push(slot);
            }
            held += if entry.holds > 0 { self.state_pages() } else { 0 };
        }
        let behind = self.snapshots.behind.iter().flatten().count();
        if known != behind || known != self.num_snapshots() {
            let counted = self.num_snapshots();
            return broken(format!(
                "{known} slots are snapshots, {behind} blocks have one, {counted} were counted"
            ));
        }
        Ok((used, held))
    }
}
