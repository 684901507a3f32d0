//! A step's rows and the slots of their states: borrowed views of the step buffers, and the pool that slots lie in.
//!
//! ```text
//! pool      | slot 0 | slot 1 | slot 2 | ...            a slot has a place for each layer with a state
//! a place   | state | pending drafts of the last step |  each kernel has one
//!
//! a row     source ─► accepted drafts ─► certain tokens ─► slot        state behind what is certain
//!                     └────── a snapshot after some of them            a copy of the state in another slot
//!                                                      └─► drafts      outputs alone; what they would add stays pending
//! ```
//!
//! A state cannot be rolled back, so it never takes in a draft before the draft is accepted: the row keeps what its
//! drafts would add beside the state, and the sequence's next row takes in those that were accepted.

#[cfg(test)]
pub(crate) mod simulation;

use std::ops::Range;

use crate::step::BadStep;
use crate::threads::Shared;

/// In place of a slot: there is none.
pub const NO_SLOT: i32 = -1;

/// The rows of one step, as the planner wrote them. Slices may be longer than the step needs.
#[derive(Debug, Clone, Copy)]
pub struct States<'a> {
    /// Rows (sequences) in this step.
    pub num_rows: usize,
    /// Tokens in this step.
    pub num_tokens: usize,
    /// First token of each row, and the number of tokens.
    pub query_start: &'a [i32],
    /// The slot that each row writes; [`NO_SLOT`]: the row is passed over.
    pub slot: &'a [i32],
    /// The slot that each row begins from; [`NO_SLOT`]: from zeros.
    pub source: &'a [i32],
    /// Pending drafts of its slot that each row takes in before its tokens.
    pub accepted: &'a [i32],
    /// How many of each row's last tokens are drafts.
    pub drafts: &'a [i32],
    /// The slot that gets a copy of each row's state; [`NO_SLOT`]: none.
    pub snapshot_slot: &'a [i32],
    /// Behind how many of the row's tokens it is copied.
    pub snapshot_tokens: &'a [i32],
    /// Slots in the pool.
    pub num_slots: usize,
    /// Numbers of a slot.
    pub slot_size: usize,
    /// Drafts that there is room for.
    pub max_draft: usize,
}

/// One row of a step.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its tokens.
    pub tokens: Range<usize>,
    /// How many of them are certain; the others are drafts.
    pub certain: usize,
    /// The slot that it writes.
    pub slot: usize,
    /// The slot that it begins from, or zeros.
    pub source: Option<usize>,
    /// Pending drafts that it takes in first.
    pub accepted: usize,
    /// The slot that gets a copy, and behind how many tokens.
    pub snapshot: Option<(usize, usize)>,
}

impl Row {
    /// The slot that gets a copy of the state behind `tokens` of the row's tokens.
    #[inline]
    pub fn snapshot_behind(&self, tokens: usize) -> Option<usize> {
        self.snapshot.filter(|&(_, at)| at == tokens).map(|(slot, _)| slot)
    }
}

impl States<'_> {
    /// Row number `index`; None: it is passed over. The step was checked.
    pub fn row(&self, index: usize) -> Option<Row> {
        let tokens = self.query_start[index] as usize..self.query_start[index + 1] as usize;
        let slot = |number: i32| usize::try_from(number).ok();
        Some(Row {
            certain: tokens.len() - self.drafts[index] as usize,
            tokens,
            slot: slot(self.slot[index])?,
            source: slot(self.source[index]),
            accepted: self.accepted[index] as usize,
            snapshot: slot(self.snapshot_slot[index])
                .map(|slot| (slot, self.snapshot_tokens[index] as usize)),
        })
    }

    /// All rows that are not passed over.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.num_rows).filter_map(|index| self.row(index))
    }

    /// Checks everything that the kernels index with, and that no row writes a slot that another one reads or writes;
    /// O(rows + slots).
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check(&self) -> Result<(), BadStep> {
        let fail = |what: &str| Err(BadStep(what.into()));
        let rows = self.num_rows;
        let fields =
            [self.slot, self.source, self.accepted, self.drafts, self.snapshot_slot, self.snapshot_tokens];
        if self.query_start.len() <= rows || fields.iter().any(|field| field.len() < rows) {
            return fail("more rows than the buffers of states have");
        }
        let starts = &self.query_start[..=rows];
        if starts[0] != 0
            || starts.windows(2).any(|pair| pair[0] > pair[1])
            || starts[rows] as usize != self.num_tokens
        {
            return fail("query_start does not rise from 0 to the number of tokens");
        }
        let in_pool = |slot: i32| slot == NO_SLOT || (slot >= 0 && (slot as usize) < self.num_slots);
        let within = |count: i32, limit: usize| count >= 0 && count as usize <= limit;
        for row in 0..rows {
            let tokens = (starts[row + 1] - starts[row]) as usize;
            if ![self.slot[row], self.source[row], self.snapshot_slot[row]].into_iter().all(in_pool) {
                return fail("a slot outside of the pool of states");
            }
            if !within(self.drafts[row], self.max_draft.min(tokens)) {
                return fail("more drafts than tokens, or than there is room for");
            }
            if !within(self.accepted[row], self.max_draft) {
                return fail("more accepted drafts than there is room for");
            }
            if self.accepted[row] > 0 && self.source[row] != self.slot[row] {
                return fail("accepted drafts of another slot");
            }
            let certain = tokens - self.drafts[row] as usize;
            if self.snapshot_slot[row] != NO_SLOT && !within(self.snapshot_tokens[row], certain) {
                return fail("a snapshot behind more tokens than are certain");
            }
        }
        let mut written = vec![false; self.num_slots];
        for row in self.rows() {
            for slot in std::iter::once(row.slot).chain(row.snapshot.map(|(slot, _)| slot)) {
                if std::mem::replace(&mut written[slot], true) {
                    return fail("two rows write one slot of a state");
                }
            }
        }
        if self.rows().any(|row| row.source.is_some_and(|source| source != row.slot && written[source])) {
            return fail("a row begins from a state that another row writes");
        }
        Ok(())
    }
}

/// Where a kernel's numbers lie in each slot of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where the state begins.
    pub state: usize,
    /// Where its pending drafts begin, one behind the other.
    pub drafts: usize,
}

impl Place {
    /// Whether a state of `size` numbers and `max_draft` drafts of `draft_size` lie apart in a slot of `slot_size`.
    pub fn fits(&self, slot_size: usize, size: usize, draft_size: usize, max_draft: usize) -> bool {
        let (state, drafts) = (self.state, self.drafts);
        let ends = state.checked_add(size).zip(drafts.checked_add(draft_size.saturating_mul(max_draft)));
        ends.is_some_and(|(state_end, drafts_end)| {
            let apart = state_end <= drafts || drafts_end <= state || drafts_end == drafts;
            apart && state_end <= slot_size && drafts_end <= slot_size
        })
    }
}

/// The pool, of which threads read and write disjoint parts of slots: a thread has a row's part of a state to itself.
#[derive(Debug)]
pub struct Pool<'a> {
    numbers: Shared<'a, f32>,
    slot_size: usize,
}

impl<'a> Pool<'a> {
    /// A pool of slots of `slot_size` numbers.
    pub fn new(numbers: &'a mut [f32], slot_size: usize) -> Self {
        Self { numbers: Shared::new(numbers), slot_size }
    }

    /// `length` numbers of a slot from `start` on, to read.
    ///
    /// # Safety
    /// While they live, no thread writes them.
    pub unsafe fn read(&self, slot: usize, start: usize, length: usize) -> &[f32] {
        // SAFETY: as the caller says.
        unsafe { self.numbers.view(slot * self.slot_size + start, length) }
    }

    /// `length` numbers of a slot from `start` on, to write.
    ///
    /// # Safety
    /// While they live, no other reference to any of them does.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write(&self, slot: usize, start: usize, length: usize) -> &mut [f32] {
        // SAFETY: as the caller says.
        unsafe { self.numbers.part(slot * self.slot_size + start, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> States<'static> {
        States {
            num_rows: 3,
            num_tokens: 6,
            query_start: &[0, 3, 4, 6],
            slot: &[0, 1, NO_SLOT],
            source: &[0, 3, NO_SLOT],
            accepted: &[1, 0, 0],
            drafts: &[2, 0, 0],
            snapshot_slot: &[2, NO_SLOT, NO_SLOT],
            snapshot_tokens: &[1, 0, 0],
            num_slots: 4,
            slot_size: 8,
            max_draft: 2,
        }
    }

    #[test]
    fn a_row_says_what_it_reads_and_writes() {
        assert_eq!(good().check(), Ok(()));
        let row = good().row(0).unwrap();
        assert_eq!((row.tokens.clone(), row.certain, row.slot, row.source), (0..3, 1, 0, Some(0)));
        assert_eq!((row.snapshot_behind(1), row.snapshot_behind(0)), (Some(2), None));
        assert!(good().row(2).is_none());
        assert_eq!(good().rows().count(), 2);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let bad: [(&str, States); 12] = [
            ("more rows", States { num_rows: 4, ..good() }),
            ("query_start", States { num_tokens: 7, ..good() }),
            ("query_start", States { query_start: &[0, 4, 3, 6], ..good() }),
            ("outside of the pool", States { slot: &[0, 4, -1], ..good() }),
            ("outside of the pool", States { source: &[0, -2, -1], ..good() }),
            ("more drafts", States { drafts: &[3, 0, 0], ..good() }),
            ("more drafts", States { drafts: &[0, 2, 0], ..good() }),
            ("more accepted", States { accepted: &[3, 0, 0], ..good() }),
            ("another slot", States { accepted: &[0, 1, 0], ..good() }),
            ("than are certain", States { snapshot_tokens: &[2, 0, 0], ..good() }),
            ("two rows write", States { snapshot_slot: &[1, NO_SLOT, NO_SLOT], ..good() }),
            ("another row writes", States { source: &[0, 2, NO_SLOT], ..good() }),
        ];
        for (name, states) in bad {
            assert!(states.check().unwrap_err().0.contains(name), "{name}");
        }
    }

    #[test]
    fn a_state_and_its_drafts_lie_apart_in_a_slot() {
        let place = Place { state: 0, drafts: 6 };
        assert!(place.fits(8, 6, 1, 2) && place.fits(6, 6, 1, 0));
        assert!(!place.fits(8, 7, 1, 2) && !place.fits(7, 6, 1, 2));
        assert!(!Place { state: usize::MAX, drafts: 0 }.fits(8, 6, 1, 2));
    }
}
