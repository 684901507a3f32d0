//! The states on the device: of layers that fold all tokens before into one.

use super::device::Device;
use super::model::extend;
use super::row::Row;
use crate::step::buffers::{NO_SLOT, StepBuffers};
use pyengine_kv_allocator::KvAllocator;

/// A state: the chain of all tokens that it has seen, and drafts that it has not taken in yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    chain: u64,
    /// Of those tokens.
    length: usize,
    salt: u64,
    pending: Vec<u32>,
}

/// The pool of pages as slots of states. What is written to a page destroys the state there, and the other way round.
pub(super) struct States {
    of: Vec<Option<State>>,
    /// Cells of a slot; 0 where no layer has a state.
    cells: usize,
    /// Rows that began from a snapshot, snapshots that were written, and drafts that were taken in.
    pub(super) restored: u64,
    pub(super) taken: u64,
    pub(super) accepted: u64,
}

impl States {
    pub(super) fn new(kv: &KvAllocator, block_size: usize) -> Self {
        let slots = if kv.has_states() { kv.num_slots() } else { 0 };
        let cells = kv.state_pages() * block_size;
        Self { of: vec![None; slots], cells, restored: 0, taken: 0, accepted: 0 }
    }

    /// A page takes the place of the state whose slot has this cell.
    pub(super) fn overwrite(&mut self, cell: usize) {
        if let Some(state) = cell.checked_div(self.cells).and_then(|slot| self.of.get_mut(slot)) {
            *state = None;
        }
    }
}

impl Device {
    /// What was written to a cell, or behind all cells to a slot, is garbage.
    pub(super) fn lose(&mut self, cell: usize) {
        match cell.checked_sub(self.cells.len()) {
            None => self.cells[cell] = None,
            Some(slot) => self.states.of[slot] = None,
        }
    }

    /// No slot is written twice in a step, nor written where another row begins from it: rows run side by side.
    pub(super) fn check_slots(&self, step: &StepBuffers<'_>, rows: usize) {
        if self.states.cells == 0 {
            return;
        }
        let taken = |slot: &&i32| **slot != NO_SLOT;
        let snapshots = step.snapshot_slot[..rows].iter().filter(taken);
        let mut written: Vec<i32> = step.state_slot[..rows].iter().chain(snapshots).copied().collect();
        let rows = step.state_slot[..rows].iter().zip(&*step.state_source);
        let mut restored = rows.filter(|(own, source)| own != source);
        assert!(
            restored.all(|(_, source)| !written.contains(source)),
            "a snapshot is read and written in one step"
        );
        let count = written.len();
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), count, "a slot is written twice in one step");
    }

    /// Advances a row's state through its tokens, whose chains are the state's; returns what it read and what it wrote, as
    /// cells behind those of pages.
    pub(super) fn run_state(
        &mut self,
        step: &StepBuffers<'_>,
        row: &Row<'_>,
        chains: &mut [u64],
    ) -> (Vec<usize>, Vec<usize>) {
        if self.states.cells == 0 {
            return (Vec::new(), Vec::new());
        }
        let [own, source, accepted, drafts, snapshot, behind] = [
            &step.state_slot,
            &step.state_source,
            &step.state_accepted,
            &step.state_drafts,
            &step.snapshot_slot,
            &step.snapshot_tokens,
        ]
        .map(|field| field[row.number]);
        let mut read = Vec::new();
        let mut state = match source {
            NO_SLOT => State { salt: row.salt, ..State::default() },
            slot => {
                read.push(self.cells.len() + slot as usize);
                self.states.of[slot as usize].clone().expect("a row begins from a state that was written")
            }
        };
        self.states.restored += u64::from(source != NO_SLOT && source != own);
        assert!(source == own || accepted == 0, "a snapshot has no drafts pending");
        for draft in std::mem::take(&mut state.pending).into_iter().take(accepted as usize) {
            state.take_in(draft);
            self.states.accepted += 1;
        }
        assert_eq!(
            (state.length, state.salt),
            (row.computed(), row.salt),
            "the state is that of the row's prefix"
        );
        let certain = row.tokens.len() - drafts as usize;
        assert_eq!(row.length - drafts as usize, row.known, "all drafts of a row are pending");
        let mut written = vec![own as usize];
        for (at, token) in row.tokens.clone().enumerate() {
            self.snapshot(&state, snapshot, at == behind as usize && at <= certain, &mut written);
            if at < certain {
                state.take_in(step.token_ids[token] as u32);
                chains[token] = state.chain;
            } else {
                let draft = step.token_ids[token] as u32;
                state.pending.push(draft);
                chains[token] = state.pending.iter().fold(state.chain, |chain, draft| extend(chain, *draft));
            }
        }
        self.snapshot(
            &state,
            snapshot,
            certain == row.tokens.len() && behind as usize == certain,
            &mut written,
        );
        assert!(snapshot == NO_SLOT || written.len() == 2, "a snapshot is behind tokens that are no drafts");
        self.write_state(own as usize, state);
        (read, written.into_iter().map(|slot| self.cells.len() + slot).collect())
    }

    /// Copies the state to the snapshot's slot, if there is one and it is behind the tokens taken in so far.
    fn snapshot(&mut self, state: &State, slot: i32, here: bool, written: &mut Vec<usize>) {
        if here && slot != NO_SLOT {
            self.write_state(slot as usize, State { pending: Vec::new(), ..state.clone() });
            self.states.taken += 1;
            written.push(slot as usize);
        }
    }

    fn write_state(&mut self, slot: usize, state: State) {
        self.cells[slot * self.states.cells..][..self.states.cells].fill(None);
        self.states.of[slot] = Some(state);
    }
}

impl State {
    fn take_in(&mut self, token: u32) {
        self.chain = extend(self.chain, token);
        self.length += 1;
    }
}
