//! How many bytes complete a text: costs of symbols, of rows, and of the ends of lexemes.
//!
//! ```text
//!  cost of a symbol  the bytes of its shortest text          see [`Distances`]
//!       of a row     those of its cheapest item, and of      once for a row: items name the rows that they began
//!                    what waits for that in earlier rows     in, so nothing is followed back twice
//!       of an end    the bytes to the end of a lexeme        a search over the lexer's states, nearest first
//! ```

use std::sync::Arc;

use llguidance::derivre::{NextByte, StateID};
use rustc_hash::{FxHashMap, FxHashSet};

use super::distances::Distances;
use super::lexer::{Lexer, Move, NO_SET, SetId};
use super::paths::NEVER;
use super::rows::{About, RowId, Rows};
use super::rules::{END, Rules, START};
use crate::grammar::context::{Step, Tokens};

/// So many states of the lexer are tried for the end of one lexeme.
const MAX_STATES: usize = 1_000;
/// The end of another lexeme may be so much farther than the nearest.
const FARTHER: usize = 32;
/// So many lexemes are tried in a row.
const MAX_LEXEMES: usize = 4;
/// The ends of lexemes are kept for all states on the way there, if that is no longer.
const MAX_KEPT: usize = 256;

/// A way to end a lexeme: what is still to come of it, and which lexemes have ended then.
#[derive(Debug)]
pub(super) struct End {
    pub set: SetId,
    pub text: Box<[u8]>,
}

/// The costs so far.
#[derive(Default)]
pub(super) struct Costs {
    /// Of what is left of a rule; once it was wanted.
    distances: Option<Distances>,
    /// The texts of lexemes.
    pub lexemes: Box<[Option<Box<[Step]>>]>,
    /// By the row that made the items.
    rows: FxHashMap<RowId, Row>,
    ends: FxHashMap<StateID, Arc<[End]>>,
    memory: usize,
}

struct Row {
    /// The cost behind a symbol that has begun here.
    behind: FxHashMap<u32, u32>,
    cost: u32,
}

impl Costs {
    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + self.distances.as_ref().map_or(0, Distances::memory)
    }

    pub fn prepare(&mut self, rules: &Rules, lexer: &mut Lexer, tokens: &Tokens) {
        if self.distances.is_some() {
            return;
        }
        let count = lexer.spec().lexemes.len() as u32;
        self.lexemes = (0..count).map(|lexeme| self.shortest(lexer, tokens, lexeme)).collect();
        let length = |lexeme: u32| self.lexemes[lexeme as usize].as_ref().map(|text| text.len() as u32);
        let lengths = rules.symbols.iter().map(|symbol| symbol.lexeme.and_then(length));
        self.distances = Some(Distances::new(rules, lengths));
        self.memory += 32 * self.lexemes.len();
    }

    /// The shortest text of a lexeme, as far as one is found.
    fn shortest(&mut self, lexer: &mut Lexer, tokens: &Tokens, lexeme: u32) -> Option<Box<[Step]>> {
        if let Some(token) = lexer.special_token(lexeme, tokens.vocab_size()) {
            return Some([Step::Special(token)].into());
        }
        let start = lexer.beginning(lexeme);
        let ends = self.ends(lexer, start);
        let text = ends.iter().map(|end| &end.text).min_by_key(|text| text.len())?;
        Some(text.iter().map(|byte| Step::Byte(*byte)).collect())
    }

    /// The nearest ends of the lexemes that may end in a state or behind it.
    pub fn ends(&mut self, lexer: &mut Lexer, state: StateID) -> Arc<[End]> {
        if let Some(known) = self.ends.get(&state) {
            return known.clone();
        }
        let plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'\\';
        let (mut found, mut way) = search_ends(lexer, state, &plain);
        if found.is_empty() {
            // 0xff stands for special tokens.
            (found, way) = search_ends(lexer, state, &|byte| *byte != 0xff);
        }
        if let [only] = &found[..]
            && lexer.possible(state) == 1
            && only.text.len() <= MAX_KEPT
        {
            // The ends of the states on the way are what is left of it.
            for (at, state) in way.into_iter().enumerate() {
                let end = End { set: only.set, text: only.text[at..].into() };
                self.memory += 64 + end.text.len();
                self.ends.insert(state, Arc::new([end]));
            }
        }
        self.memory += 64 + found.iter().map(|end| end.text.len() + 32).sum::<usize>();
        let found: Arc<[End]> = found.into();
        self.ends.insert(state, found.clone());
        found
    }

    /// The cost of what follows a row.
    pub fn of_row(&mut self, rules: &Rules, rows: &Rows, row: RowId) -> u32 {
        let base = rows.get(row).base();
        let mut open = vec![base];
        while let Some(row) = open.last().copied() {
            if self.rows.contains_key(&row) {
                open.pop();
                continue;
            }
            let missing = rows.origins(row).find(|origin| !self.rows.contains_key(origin));
            match missing {
                Some(missing) => open.push(missing),
                None => {
                    let costs = self.follow(rules, rows, row);
                    self.memory += 64 + 16 * costs.behind.len();
                    self.rows.insert(row, costs);
                }
            }
        }
        self.rows[&base].cost
    }

    /// What is left of an item's rule, `behind` so many elements.
    fn rest(&mut self, rules: &Rules, item: &About, behind: u32) -> u32 {
        let distances = self.distances.as_mut();
        distances.map_or(0, |distances| distances.rest(rules, item.place + behind, item.parameter))
    }

    /// The costs of a row, where those of the rows before it are known.
    fn follow(&mut self, rules: &Rules, rows: &Rows, row: RowId) -> Row {
        let mut behind: FxHashMap<u32, u32> = FxHashMap::default();
        let mut changed = true;
        while changed {
            changed = false;
            for item in rows.items(row) {
                let element = &rules.elements[item.place as usize];
                if element.symbol == END {
                    continue;
                }
                let up = self.up(&behind, element.of, item.origin);
                let cost = self.rest(rules, &item, 1).saturating_add(up);
                let known = behind.entry(element.symbol).or_insert(NEVER);
                if cost < *known {
                    *known = cost;
                    changed = true;
                }
            }
        }
        let cost = rows.items(row).map(|item| {
            let up = self.up(&behind, rules.elements[item.place as usize].of, item.origin);
            self.rest(rules, &item, 0).saturating_add(up)
        });
        let cost = cost.min().unwrap_or(NEVER).min(NEVER);
        Row { behind, cost }
    }

    /// The cost behind a symbol that began in a row: None is the one whose costs are `here`.
    fn up(&self, here: &FxHashMap<u32, u32>, symbol: u32, origin: Option<RowId>) -> u32 {
        if symbol == START {
            return 0;
        }
        let behind = match origin {
            Some(row) => &self.rows[&row].behind,
            None => here,
        };
        behind.get(&symbol).copied().unwrap_or(NEVER)
    }

    /// The lexemes that lead to an end soonest, the best first.
    pub fn lexemes(&mut self, rules: &Rules, rows: &Rows, row: RowId) -> Vec<u32> {
        let base = rows.get(row).base();
        let mut found: Vec<(u32, u32)> = Vec::new();
        for item in rows.items(base) {
            let Some(lexeme) = rules.behind(item.place).and_then(|symbol| symbol.lexeme) else { continue };
            let behind = &self.rows[&base].behind;
            let up = self.up(behind, rules.elements[item.place as usize].of, item.origin);
            found.push((self.rest(rules, &item, 0).saturating_add(up), lexeme));
        }
        found.retain(|(cost, _)| *cost < NEVER);
        found.sort_unstable();
        let mut seen = FxHashSet::default();
        found
            .into_iter()
            .map(|(_, lexeme)| lexeme)
            .filter(|lexeme| seen.insert(*lexeme))
            .take(MAX_LEXEMES)
            .collect()
    }
}

/// The nearest ends behind a state by these bytes, and the states on the way to the last.
fn search_ends(lexer: &mut Lexer, state: StateID, may: &dyn Fn(&u8) -> bool) -> (Vec<End>, Vec<StateID>) {
    // Each state with the one before it and the byte between.
    let mut reached = vec![(state, 0, 0u8)];
    let mut known: FxHashSet<StateID> = [state].into_iter().collect();
    let (mut found, mut ended, mut way): (Vec<End>, FxHashSet<u32>, _) =
        (Vec::new(), FxHashSet::default(), Vec::new());
    let possible = lexer.possible(state);
    let trace = |reached: &[(StateID, usize, u8)], mut at: usize| {
        let (mut text, mut states) = (Vec::new(), Vec::new());
        while at > 0 {
            text.push(reached[at].2);
            at = reached[at].1;
            states.push(reached[at].0);
        }
        text.reverse();
        states.reverse();
        (text, states)
    };
    let mut at = 0;
    while at < reached.len() && reached.len() < MAX_STATES && ended.len() < possible {
        let (state, ..) = reached[at];
        let mut note = |lexer: &Lexer, set: SetId, last: Option<u8>| {
            if set == NO_SET || found.iter().any(|end| end.set == set) {
                return true;
            }
            let (mut text, states) = trace(&reached, at);
            if found.first().is_some_and(|first| text.len() > first.text.len() + FARTHER) {
                return false;
            }
            text.extend(last);
            ended.extend(lexer.set(set));
            way = states;
            if last.is_some() {
                way.push(state);
            }
            found.push(End { set, text: text.into() });
            true
        };
        let set = lexer.ended(state);
        if !note(lexer, set, None) {
            break;
        }
        let forced = match lexer.hint(state) {
            NextByte::ForcedByte(byte) => Some(byte),
            _ => None,
        };
        let mut next = Vec::new();
        let bytes = forced.map_or(0..=255, |byte| byte..=byte).filter(|byte| forced.is_some() || may(byte));
        for byte in bytes {
            match lexer.advance(state, byte) {
                Move::To(to) => next.push((to, byte)),
                Move::EndsWith(set) => drop(note(lexer, set, Some(byte))),
                Move::EndedBefore(_) | Move::Nowhere => {}
            }
        }
        for (to, byte) in next {
            if known.insert(to) {
                reached.push((to, at, byte));
            }
        }
        at += 1;
    }
    (found, way)
}
