//! Layers with states: where each row finds its sequence's state, and where snapshots of it are taken.
//!
//! A sequence has one slot, which its rows read and write. Its first row begins from zeros, or from the snapshot at which
//! the prefix that it found ends. A state cannot be cut, so a prefix is found up to a snapshot only. They are taken
//!
//! ```text
//!   tokens   0         N         2N    p       3N                 N: `snapshot_interval`
//!            ├─────────┼────*────┼────*┼───────┼────►
//!                      *    │    *    │        *                  * a snapshot
//!                           │         └ the last border of blocks before the end of what is known at admission
//!                           └ where the tree knows the prompt no further, beyond the last snapshot that it has
//! ```
//!
//! - at the last border of blocks of a prompt, for the same prompt and longer ones;
//! - where paths part in the prefix tree: the second sequence that shares a prefix leaves one for the third;
//! - every [`snapshot_interval`](crate::PlannerConfig::snapshot_interval) tokens of prompt and answer, for the next turn.
//!
//! A row takes one snapshot at most: a chunk of a prompt that would pass two borders ends at the first. A snapshot is
//! behind tokens that the host knows: where the newest is in flight, the row after takes it, before its own tokens. (With
//! two steps in flight it would be too late then: answers get none.)
//! One that saves the computation of `n` times the tokens whose keys and values would fill its bytes is passed over `n`
//! times, at most [`MOST_CHANCES`], before it is evicted (Marconi, arXiv 2411.19379, weighs computation a byte, too).
//!
//! **Drafts.** A state cannot go back either: what drafts would add to it is pending in the slot until the sequence's next
//! row says how many were right. So no row follows drafts in flight; and
//! drafts end at the next border of an interval, lest the state pass it by.
//!
//! **Prompts that come together.** Blocks in the tree are of no use to a sequence before there is a snapshot. So a prefill waits
//! while one before it in running order is about to take a snapshot of a prefix of its own: computing the same
//! tokens beside it would be no faster.
//!
//! **Preemption.** A sequence is preempted only when nothing cached is left, and so no snapshot. So the last in running
//! order, which is the first to go, holds the last snapshot that it took, and goes on from there when it is admitted
//! again. One that it began from it does not hold: a sequence that came no further would be preempted again for it.
//!
//! All is O(1) a row, but O(tokens) at a border and O(prefills * tokens) for one that may wait.

use super::sequence_table::Progress;
use pyengine_kv_allocator::{KvAllocator, SlotId};

/// How often a snapshot is passed over at most.
pub(super) const MOST_CHANCES: u32 = 3;

/// What a sequence's rows need to know of its state.
#[derive(Clone, Copy, Default)]
pub(super) struct State {
    pub(super) salt: u64,
    /// Drafts of its last row that were right, which its state has not taken in.
    pub(super) accepted: u32,
    /// The border of the last snapshot, taken or begun from.
    pub(super) last: u32,
    /// Where it began: how many tokens it did not compute.
    pub(super) begun: u32,
    /// Where the tree knew its tokens no further, and the last border of blocks within those known at admission.
    pub(super) wanted: [u32; 2],
}

/// The states of the running sequences. O(sequences); nothing where no layer has one.
#[derive(Default)]
pub(crate) struct States {
    /// By slot of the sequence table.
    pub(super) of: Vec<State>,
    /// Whether prefixes are cached, so that snapshots are worth it.
    pub(super) takes_snapshots: bool,
    block_size: u32,
    /// Tokens from one snapshot to the next; 0: none are taken for that.
    interval: u32,
    /// Tokens whose keys and values fill the bytes of a state.
    pub(super) weight: u32,
    /// Snapshots that are read or written by the step that is being planned, held until it is.
    pub(super) held: Vec<SlotId>,
    /// Snapshots that were taken, and how often a sequence began from one.
    pub(super) taken: u64,
    pub(super) hits: u64,
}

impl States {
    /// Those of `max_sequences` sequences, if `kv` has states.
    pub fn new(kv: &KvAllocator, max_sequences: usize, interval: usize) -> Self {
        if !kv.has_states() {
            return Self::default();
        }
        let tables: usize = kv.groups().iter().map(|group| group.tables).sum();
        let weight = (kv.state_pages() * kv.block_size() / tables.max(1)).max(1);
        Self {
            of: vec![State::default(); max_sequences],
            takes_snapshots: kv.caches_prefixes(),
            block_size: kv.block_size() as u32,
            interval: interval as u32,
            weight: weight as u32,
            ..Self::default()
        }
    }

    /// Whether layers have states.
    pub fn exist(&self) -> bool {
        !self.of.is_empty()
    }

    /// A sequence enters the table, whose first `known_blocks` blocks are in the prefix tree.
    pub fn open(&mut self, slot: u32, salt: u64, progress: &Progress, known_blocks: usize) {
        let end = (progress.known - 1) / self.block_size * self.block_size;
        let wanted = [known_blocks as u32 * self.block_size, end];
        self.hits += u64::from(progress.planned > 0);
        self.of[slot as usize] =
            State { salt, accepted: 0, last: progress.planned, begun: progress.planned, wanted };
    }

    /// The border of the last snapshot that a sequence took; 0: it took none.
    pub fn last_taken(&self, slot: u32) -> u32 {
        let state = &self.of[slot as usize];
        if state.last > state.begun { state.last } else { 0 }
    }

    /// The drafts of a sequence's last row are judged: `right` of them were right.
    pub fn accept(&mut self, slot: u32, right: usize) {
        if let Some(state) = self.of.get_mut(slot as usize) {
            state.accepted = right as u32;
        }
    }

    /// How many tokens a chunk may have that begins behind `start` tokens, if it could have `count`.
    pub fn shorten(&self, slot: u32, start: usize, count: usize) -> usize {
        let Some(first) = self.border_behind(slot, start as u32) else { return count };
        match self.border_behind(slot, first) {
            Some(second) if second as usize <= start + count => first as usize - start,
            _ => count,
        }
    }

    /// How many drafts may follow `end` tokens.
    pub fn draft_room(&self, end: usize) -> usize {
        match self.interval as usize {
            interval if interval > 0 && self.takes_snapshots => interval - end % interval,
            _ => usize::MAX,
        }
    }

    /// The next border behind `tokens` tokens where a snapshot is wanted.
    pub(super) fn border_behind(&self, slot: u32, tokens: u32) -> Option<u32> {
        if !self.takes_snapshots {
            return None;
        }
        let wanted = self.of[slot as usize].wanted.into_iter().filter(|&border| border > tokens);
        let next = tokens.checked_div(self.interval).map(|whole| (whole + 1) * self.interval);
        wanted.chain(next).min()
    }

    /// The last border within `start..=end` where a snapshot is wanted and was not taken.
    pub(super) fn border_within(&self, slot: u32, start: u32, end: u32) -> Option<u32> {
        let before = self.of.get(slot as usize)?.last.max(start.saturating_sub(1));
        let next = |&border: &u32| self.border_behind(slot, border);
        std::iter::successors(self.border_behind(slot, before), next)
            .take_while(|&border| border <= end)
            .last()
    }
}
