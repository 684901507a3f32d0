//! The nearest ends of lexemes: how few bytes end what has begun, and which.
//!
//! ```text
//!  state ─ a ─► state ─ a ─► ... ─ " ─► ended: {string}       each state of the way keeps its next byte, for each set of
//!     5          4             1                              lexemes that may have ended there
//! ```
//!
//! A breadth-first search, O(states until the end * classes of bytes), once for a state; all states on the way know theirs
//! behind it. Plain characters come first: others are tried where those lead nowhere,
//! and all where that finds none.

use std::sync::Arc;

use llguidance::derivre::{NextByte, StateID};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::backends::parser::lexer::{Lexer, Move, NO_SET, SetId};

/// States that are tried for the nearest end, ...
const MAX_STATES: usize = 36_000;
/// ... and further states that are tried for the ends of the other lexemes.
const MAX_FARTHER: usize = 1_000;

/// An end that a state may come to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    /// The lexemes that have ended then.
    pub set: SetId,
    /// How many bytes it is away.
    pub left: u32,
}

/// Where a text leaves the lexer, if any lexeme of the grammar may have begun with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The lexeme has ended with it.
    Ended,
    /// Nothing may follow within the lexeme that begins the next one.
    In(StateID),
}

impl Tail {
    /// How a text ends that is one of some lexemes, even if any lexeme of the grammar may begin with it; None if another
    /// lexeme is in its way.
    pub fn of(text: &[u8], lexemes: &[u32], lexer: &mut Lexer) -> Option<Self> {
        if text.is_empty() || lexer.is_near_limits() {
            return None;
        }
        let is_one = |lexer: &Lexer, set| lexer.set(set).iter().any(|lexeme| lexemes.contains(lexeme));
        let mut state = lexer.before_any();
        for (at, byte) in text.iter().enumerate() {
            match lexer.advance(state, *byte) {
                Move::To(next) => state = next,
                Move::EndsWith(set) if at + 1 == text.len() => {
                    let next = lexer.transition(state, *byte);
                    // A lexeme of one byte that ends before it must is not taken as one.
                    let whole = at > 0 || lexer.is_at_end(next);
                    return (whole && is_one(lexer, set)).then_some(Self::Ended);
                }
                Move::EndsWith(_) | Move::EndedBefore(_) | Move::Nowhere => return None,
            }
        }
        let set = lexer.ended(state);
        (set != NO_SET && is_one(lexer, set)).then_some(Self::In(state))
    }
}

/// The next byte on the way to an end, and where it leads; None where it is the last.
#[derive(Debug, Clone, Copy)]
struct Hop {
    left: u32,
    byte: u8,
    to: Option<StateID>,
}

/// All ends that were looked for so far.
#[derive(Default)]
pub(crate) struct Ends {
    known: FxHashMap<StateID, Arc<[End]>>,
    hops: FxHashMap<(StateID, SetId), Hop>,
    memory: usize,
}

impl Ends {
    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + self.hops.len() * 32
    }

    /// The nearest ends of the lexemes that may end in a state or behind it, as far as they are found.
    pub fn of(&mut self, lexer: &mut Lexer, state: StateID) -> Arc<[End]> {
        if let Some(known) = self.known.get(&state) {
            return known.clone();
        }
        let mut search = Search::new(state);
        for bytes in [Bytes::Plain, Bytes::PlainFirst, Bytes::All] {
            search = Search::new(state);
            search.run(lexer, bytes);
            if !search.found.is_empty() {
                break;
            }
        }
        let found: Vec<End> = search.found.iter().map(|found| self.keep(&search, found)).collect();
        if let ([only], 1) = (&found[..], lexer.possible(state)) {
            // The nearest end of each state on the way is the same one.
            for state in search.way(search.found[0].at) {
                let left = self.hops.get(&(state, only.set)).map_or(0, |hop| hop.left);
                self.known.entry(state).or_insert_with(|| Arc::new([End { set: only.set, left }]));
                self.memory += 56;
            }
        }
        let found: Arc<[End]> = found.into();
        // What a limit has cut short may be found another time.
        if !search.cut || !found.is_empty() {
            self.memory += 48 + 8 * found.len();
            self.known.insert(state, found.clone());
        }
        found
    }

    /// The bytes to one of a state's ends.
    pub fn text(&self, mut state: StateID, end: End) -> Vec<u8> {
        let mut text = Vec::with_capacity(end.left as usize);
        while text.len() < end.left as usize
            && let Some(hop) = self.hops.get(&(state, end.set))
        {
            text.push(hop.byte);
            let Some(to) = hop.to else { break };
            state = to;
        }
        text
    }

    /// Keeps the way to an end; hops stay as they are, so that ways that meet go on alike.
    fn keep(&mut self, search: &Search, found: &Found) -> End {
        let set = found.set;
        let mut left = 0;
        if let Some(byte) = found.last {
            let hop = Hop { left: 1, byte, to: None };
            left = self.hops.entry((search.reached[found.at].state, set)).or_insert(hop).left;
        }
        let mut at = found.at;
        while at > 0 {
            let Reached { before, byte, state } = search.reached[at];
            let from = search.reached[before].state;
            let hop = Hop { left: left + 1, byte, to: Some(state) };
            left = self.hops.entry((from, set)).or_insert(hop).left;
            at = before;
        }
        End { set, left }
    }
}

/// A state that a search has come to, from which and by what byte.
struct Reached {
    state: StateID,
    before: usize,
    byte: u8,
}

/// An end: in the state that was reached, or with the byte behind it.
struct Found {
    set: SetId,
    at: usize,
    last: Option<u8>,
}

/// Which bytes a search tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    Plain,
    /// Others in states from which no plain one leads on, as within a character of several bytes.
    PlainFirst,
    All,
}

struct Search {
    reached: Vec<Reached>,
    found: Vec<Found>,
    ended: FxHashSet<u32>,
    /// A limit has ended it.
    cut: bool,
}

impl Search {
    fn new(state: StateID) -> Self {
        let first = Reached { state, before: 0, byte: 0 };
        Self { reached: vec![first], found: Vec::new(), ended: FxHashSet::default(), cut: false }
    }

    fn run(&mut self, lexer: &mut Lexer, which: Bytes) {
        let first = self.reached[0].state;
        let possible = lexer.possible(first);
        let mut known: FxHashSet<StateID> = [first].into_iter().collect();
        let bytes: Vec<u8> = lexer.representatives(which == Bytes::Plain).to_vec();
        let plain = lexer.representatives(true).len();
        let (mut at, mut most) = (0, MAX_STATES);
        while at < self.reached.len() && self.ended.len() < possible {
            if at >= most || lexer.is_near_limits() {
                self.cut = true;
                return;
            }
            let state = self.reached[at].state;
            let set = lexer.ended(state);
            self.note(lexer, set, at, None);
            let forced = match lexer.hint(state) {
                NextByte::ForcedByte(byte) => Some(byte),
                _ => None,
            };
            let mut leads = false;
            for (number, byte) in bytes.iter().copied().filter(|_| forced.is_none()).chain(forced).enumerate()
            {
                if which == Bytes::PlainFirst && number == plain && leads {
                    break;
                }
                let next = lexer.advance(state, byte);
                leads |= matches!(next, Move::To(_) | Move::EndsWith(_));
                match next {
                    Move::To(to) if known.insert(to) => {
                        self.reached.push(Reached { state: to, before: at, byte });
                    }
                    Move::EndsWith(set) => self.note(lexer, set, at, Some(byte)),
                    Move::To(_) | Move::EndedBefore(_) | Move::Nowhere => {}
                }
            }
            if !self.found.is_empty() {
                most = most.min(at + MAX_FARTHER);
            }
            at += 1;
        }
    }

    fn note(&mut self, lexer: &Lexer, set: SetId, at: usize, last: Option<u8>) {
        if set != NO_SET && self.found.iter().all(|found| found.set != set) {
            self.ended.extend(lexer.set(set));
            self.found.push(Found { set, at, last });
        }
    }

    /// The states that lead to one, from the last back, without the first.
    fn way(&self, mut at: usize) -> Vec<StateID> {
        let mut states = Vec::new();
        while at > 0 {
            states.push(self.reached[at].state);
            at = self.reached[at].before;
        }
        states
    }
}
