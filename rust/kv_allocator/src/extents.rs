//! The pool of pages, cut into extents: each is the slot of one state, or pages.
//!
//! ```text
//!   a state takes 4 pages; of 18 pages                    p page of a block, . free
//!   extent    0          1          2          3          4
//!             [ state  ] [ p . p p ] [ .  .  .  . ] [ state  ] [ p . ]
//!                         broken       whole                     too short for a state: pages only
//! ```
//!
//! A page comes from an extent that is broken already, and only else breaks a whole one, so that there are whole
//! extents for states. An extent whose last page comes back is whole again. Where no layer has a state, all pages are
//! one extent.
//!
//! An extent is as old as the newest content that is cached in it. A state that finds no whole extent takes the oldest
//! one that no sequence holds a page of: O(extents). All else is O(1) a page.

use super::ids::{PageId, SlotId};
use pyengine_base::error::{Error, Result};

const NO_PAGE: PageId = PageId::MAX;

/// Where an extent stands in the list of broken ones if it is not there.
const NOT_BROKEN: u32 = u32::MAX;

#[derive(Clone)]
struct Extent {
    /// The first of its free pages.
    first: PageId,
    /// Pages in each state; all others are held.
    free: u32,
    cached: u32,
    /// Where it stands in `broken`.
    place: u32,
    /// When the newest content that is cached in it became so.
    newest: u64,
}

/// All pages, by extent.
pub(super) struct Extents {
    num_pages: usize,
    /// Pages of an extent; the last may have fewer.
    size: u32,
    extents: Vec<Extent>,
    /// By free page: the next free one of its extent.
    next: Vec<PageId>,
    /// Extents without a page in use, the next to be taken last. The short one at the end is never among them.
    whole: Vec<SlotId>,
    /// Extents of pages in use and free ones, the next to take from last.
    broken: Vec<SlotId>,
    free: usize,
    clock: u64,
}

impl Extents {
    /// `num_pages` free pages, for states of `size` pages.
    pub(super) fn new(num_pages: usize, size: usize) -> Self {
        let size = size as u32;
        let firsts = (0..num_pages as PageId).step_by(size as usize);
        let extent = |first: PageId| {
            let free = size.min(num_pages as u32 - first);
            Extent { first, free, cached: 0, place: NOT_BROKEN, newest: 0 }
        };
        let extents: Vec<Extent> = firsts.map(extent).collect();
        let last_of_extent = |page: PageId| (page + 1).is_multiple_of(size) || page as usize + 1 == num_pages;
        let next = (0..num_pages as PageId).map(|page| if last_of_extent(page) { NO_PAGE } else { page + 1 });
        let slots = num_pages as u32 / size;
        let mut all = Self {
            num_pages,
            size,
            next: next.collect(),
            // Lowest first: neighbours in a sequence are neighbours in memory.
            whole: (0..slots).rev().collect(),
            broken: Vec::with_capacity(extents.len()),
            extents,
            free: num_pages,
            clock: 0,
        };
        if (slots as usize) < all.extents.len() {
            all.list_broken(slots);
        }
        all
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Pages of an extent.
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// Slots that there are at most.
    pub(super) fn slots(&self) -> usize {
        self.num_pages / self.size as usize
    }

    /// Takes a free page. There must be one.
    pub(super) fn take(&mut self) -> PageId {
        let id = match self.broken.last() {
            Some(&id) => id,
            None => {
                let id = self.whole.pop().expect("asked only when there are free pages");
                self.list_broken(id);
                id
            }
        };
        let extent = &mut self.extents[id as usize];
        let page = extent.first;
        extent.first = self.next[page as usize];
        extent.free -= 1;
        self.free -= 1;
        if extent.free == 0 {
            self.unlist_broken(id);
        }
        page
    }

    /// Takes a page back.
    pub(super) fn give_back(&mut self, page: PageId) {
        let (id, can_be_slot) = (page / self.size, self.slots() as u32);
        let extent = &mut self.extents[id as usize];
        self.next[page as usize] = extent.first;
        extent.first = page;
        extent.free += 1;
        self.free += 1;
        let whole = extent.free == self.size && id < can_be_slot;
        match (whole, extent.place == NOT_BROKEN) {
            (true, listed_nowhere) => {
                if !listed_nowhere {
                    self.unlist_broken(id);
                }
                self.whole.push(id);
            }
            (false, true) => self.list_broken(id),
            (false, false) => {}
        }
    }

    /// Takes a whole extent for a state.
    pub(super) fn take_slot(&mut self) -> Option<SlotId> {
        let slot = self.whole.pop()?;
        self.extents[slot as usize].free = 0;
        self.free -= self.size as usize;
        Some(slot)
    }

    /// Takes the slot of a state back.
    pub(super) fn give_slot_back(&mut self, slot: SlotId) {
        self.extents[slot as usize].free = self.size;
        self.free += self.size as usize;
        self.whole.push(slot);
    }

    /// Counts a page as cached from now on.
    pub(super) fn cache(&mut self, page: PageId) {
        self.cache_in(page / self.size, 1);
    }

    /// Counts a page as cached no more.
    pub(super) fn uncache(&mut self, page: PageId) {
        self.extents[(page / self.size) as usize].cached -= 1;
    }

    /// Counts the state in a slot as cached from now on.
    pub(super) fn cache_slot(&mut self, slot: SlotId) {
        self.cache_in(slot, self.size);
    }

    /// Counts the state in a slot as cached no more.
    pub(super) fn uncache_slot(&mut self, slot: SlotId) {
        self.extents[slot as usize].cached -= self.size;
    }

    fn cache_in(&mut self, id: SlotId, pages: u32) {
        self.clock += 1;
        let extent = &mut self.extents[id as usize];
        extent.cached += pages;
        extent.newest = self.clock;
    }

    /// The extent for a state that costs least: of those that no sequence holds a page of, the one whose newest content
    /// has been cached for the longest time. None if sequences hold pages of all. O(extents).
    pub(super) fn oldest(&self) -> Option<SlotId> {
        let unheld = |extent: &Extent| extent.cached > 0 && extent.free + extent.cached == self.size;
        let extents = (0..).zip(&self.extents[..self.slots()]).filter(|(_, extent)| unheld(extent));
        extents.min_by_key(|(_, extent)| extent.newest).map(|(id, _)| id)
    }

    /// The pages of an extent.
    pub(super) fn pages(&self, id: SlotId) -> std::ops::Range<PageId> {
        id * self.size..(id + 1) * self.size
    }

    fn list_broken(&mut self, id: SlotId) {
        self.extents[id as usize].place = self.broken.len() as u32;
        self.broken.push(id);
    }

    fn unlist_broken(&mut self, id: SlotId) {
        let place = std::mem::replace(&mut self.extents[id as usize].place, NOT_BROKEN) as usize;
        self.broken.swap_remove(place);
        if let Some(&moved) = self.broken.get(place) {
            self.extents[moved as usize].place = place as u32;
        }
    }

    /// The free pages; lists and counts agree. `cached` has the cached pages of each extent, where they are counted.
    pub(super) fn check(&self, cached: Option<&[u32]>) -> Result<Vec<PageId>> {
        let broken = |what: String| Err(Error::Invariant(what));
        let mut free = Vec::new();
        let mut whole = vec![false; self.extents.len()];
        for &id in &self.whole {
            if std::mem::replace(&mut whole[id as usize], true) || self.extents[id as usize].free != self.size
            {
                return broken(format!("extent {id} is listed as whole twice, or is not"));
            }
        }
        for (id, extent) in (0..).zip(&self.extents) {
            let before = free.len();
            // A slot that is taken has pages that are linked as when it was whole.
            let first = if extent.free > 0 { extent.first } else { NO_PAGE };
            let next = |&page: &PageId| Some(self.next[page as usize]).filter(|&next| next != NO_PAGE);
            let linked = std::iter::successors(Some(first).filter(|&first| first != NO_PAGE), next);
            free.extend(linked.take(extent.free as usize + 1));
            if free[before..].iter().any(|page| page / self.size != id)
                || free.len() - before != extent.free as usize
            {
                return broken(format!(
                    "extent {id} has not the {} free pages that were counted",
                    extent.free
                ));
            }
            if cached.is_some_and(|cached| cached[id as usize] != extent.cached) {
                return broken(format!(
                    "extent {id} has not the {} cached pages that were counted",
                    extent.cached
                ));
            }
            let listed = self.broken.get(extent.place as usize) == Some(&id);
            if listed != (extent.free > 0 && !whole[id as usize]) || (extent.place != NOT_BROKEN) != listed {
                return broken(format!(
                    "extent {id} is broken and not listed as such, or listed and not broken"
                ));
            }
        }
        if free.len() != self.free {
            return broken(format!("{} pages are free, {} were counted", free.len(), self.free));
        }
        Ok(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_from_broken_extents_first() {
        let mut extents = Extents::new(14, 4);
        let none = [0; 4];
        assert_eq!(extents.slots(), 3);
        let pages: Vec<PageId> = (0..3).map(|_| extents.take()).collect();
        assert_eq!(pages, [12, 13, 0], "the short extent, then the first whole one");
        assert_eq!(extents.take_slot(), Some(1));
        extents.check(Some(&none)).unwrap();
        extents.give_back(12);
        assert_eq!(extents.take(), 12);
        extents.give_back(0);
        extents.check(Some(&none)).unwrap();
        assert_eq!(extents.take_slot(), Some(0), "it is whole again");
        assert_eq!(extents.take_slot(), Some(2));
        assert_eq!((extents.take_slot(), extents.free()), (None, 0));
        extents.give_slot_back(1);
        assert_eq!(extents.take(), 4);
        extents.check(Some(&none)).unwrap();
    }

    #[test]
    fn the_oldest_extent_without_held_pages_is_offered() {
        let mut extents = Extents::new(4, 2);
        let pages: Vec<PageId> = (0..3).map(|_| extents.take()).collect();
        assert_eq!(pages, [0, 1, 2]);
        extents.cache(0);
        assert_eq!(extents.oldest(), None, "a page of it is held");
        extents.cache(2);
        assert_eq!(extents.oldest(), Some(1), "its other page is free");
        extents.cache(1);
        assert_eq!(extents.oldest(), Some(1));
        extents.uncache(2);
        extents.cache(2);
        assert_eq!(extents.oldest(), Some(0));
        extents.check(Some(&[2, 1])).unwrap();
    }
}
