//! The nearest ends of lexemes: how few bytes end what has begun, and which.
//!
//! A breadth-first search, O(states until the end * classes of bytes), once for a state; where one lexeme alone may end, all
//! states on the way know theirs by it. Plain characters come first, and others where those lead nowhere; all where that
//! finds none.

use std::sync::Arc;

use llguidance::derivre::{NextByte, StateID};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::backends::parser::lexer::{Lexer, Move, NO_SET, SetId};

/// States that are tried for the nearest end, ...
const MAX_STATES: usize = 36_000;
/// ... and further states that are tried for the ends of the other lexemes.
const MAX_FARTHER: usize = 1_000;

/// An end that a state may come to.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The lexemes that have ended then.
    pub set: SetId,
    /// What leads there, from a byte on.
    text: Arc<[u8]>,
    from: usize,
}

impl End {
    /// The bytes that lead there.
    pub fn text(&self) -> &[u8] {
        &self.text[self.from..]
    }
}

/// All ends that were looked for so far.
#[derive(Default)]
pub(crate) struct Ends {
    known: FxHashMap<StateID, Arc<[End]>>,
    /// About how many bytes they hold.
    pub memory: usize,
}

impl Ends {
    /// The nearest ends of the lexemes that may end in a state or behind it, as far as they are found.
    pub fn of(&mut self, lexer: &mut Lexer, state: StateID) -> Arc<[End]> {
        if let Some(known) = self.known.get(&state) {
            return known.clone();
        }
        let mut search = Search::run(lexer, state, false);
        if search.found.is_empty() {
            search = Search::run(lexer, state, true);
        }
        let ways: Vec<_> = search.found.iter().map(|(set, at)| search.end(*set, *at)).collect();
        if let ([(end, states)], 1) = (&ways[..], lexer.possible(state)) {
            for (from, state) in states.iter().enumerate() {
                self.known.entry(*state).or_insert_with(|| Arc::from([End { from, ..end.clone() }]));
            }
            self.memory += 80 * states.len();
        }
        let found: Arc<[End]> = ways.into_iter().map(|(end, _)| end).collect();
        // What a limit has cut short may be found another time.
        if !search.cut || !found.is_empty() {
            self.memory += found.iter().map(|end| 64 + end.text.len()).sum::<usize>() + 48;
            self.known.insert(state, found.clone());
        }
        found
    }
}

/// A state that a search has come to, from which and by what byte; none where a lexeme ends with it.
struct Reached {
    state: Option<StateID>,
    before: usize,
    byte: u8,
}

struct Search {
    reached: Vec<Reached>,
    /// The sets of lexemes that end, and where.
    found: Vec<(SetId, usize)>,
    ended: FxHashSet<u32>,
    /// A limit has ended it.
    cut: bool,
}

impl Search {
    /// Tries all bytes, or others than plain ones only in states from which no plain one leads on, as within a character of
    /// several bytes.
    fn run(lexer: &mut Lexer, first: StateID, all: bool) -> Self {
        let start = Reached { state: Some(first), before: 0, byte: 0 };
        let mut search =
            Self { reached: vec![start], found: Vec::new(), ended: FxHashSet::default(), cut: false };
        let mut known: FxHashSet<StateID> = [first].into_iter().collect();
        let (bytes, plain) = (lexer.representatives(false).to_vec(), lexer.representatives(true).len());
        let (mut at, mut most, possible) = (0, MAX_STATES, lexer.possible(first));
        while at < search.reached.len() && search.ended.len() < possible {
            if at >= most || lexer.is_near_limits() {
                search.cut = true;
                break;
            }
            at += 1;
            let Some(state) = search.reached[at - 1].state else { continue };
            let set = lexer.ended(state);
            search.note(lexer, set, at - 1);
            let forced = match lexer.hint(state) {
                NextByte::ForcedByte(byte) => Some(byte),
                _ => None,
            };
            let mut leads = false;
            let bytes = bytes.iter().copied().filter(|_| forced.is_none()).chain(forced);
            for (number, byte) in bytes.enumerate() {
                if !all && number == plain && leads {
                    break;
                }
                let state = match lexer.advance(state, byte) {
                    Move::To(to) => Some(to),
                    Move::EndsWith(set) => {
                        search.note(lexer, set, search.reached.len());
                        None
                    }
                    Move::EndedBefore(_) | Move::Nowhere => continue,
                };
                leads = true;
                if state.is_none_or(|state| known.insert(state)) {
                    search.reached.push(Reached { state, before: at - 1, byte });
                }
            }
            if !search.found.is_empty() {
                most = most.min(at + MAX_FARTHER);
            }
        }
        search
    }

    fn note(&mut self, lexer: &Lexer, set: SetId, at: usize) {
        if set != NO_SET && self.found.iter().all(|(known, _)| *known != set) {
            self.ended.extend(lexer.set(set));
            self.found.push((set, at));
        }
    }

    /// The end that was reached at a number, and the states before its bytes.
    fn end(&self, set: SetId, mut at: usize) -> (End, Vec<StateID>) {
        let (mut text, mut states) = (Vec::new(), Vec::new());
        while at > 0 {
            let Reached { before, byte, .. } = self.reached[at];
            text.push(byte);
            states.extend(self.reached[before].state);
            at = before;
        }
        text.reverse();
        states.reverse();
        (End { set, text: text.into(), from: 0 }, states)
    }
}
