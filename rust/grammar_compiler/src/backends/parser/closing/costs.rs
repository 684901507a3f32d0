//! How many bytes complete a text: costs of symbols and of rows.
//!
//! ```text
//!  cost of a symbol  the bytes of its shortest text          see [`Distances`]
//!       of a row     those of its cheapest item, and of      once for a row: items name the rows that they began
//!                    what waits for that in earlier rows     in, so nothing is followed back twice
//! ```

use std::sync::Arc;

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHashSet};

use super::distances::{DEPTH, Distances, NEVER};
use super::ends::{End, Ends};
use crate::backends::parser::different::texts::TextsByLength;
use crate::backends::parser::lexer::Lexer;
use crate::backends::parser::rows::{About, RowId, Rows};
use crate::backends::parser::rules::{END, Rules, START};
use crate::context::{Step, Tokens};

/// Lexemes that are tried in a row.
const MAX_LEXEMES: usize = 4;

/// The costs so far.
#[derive(Default)]
pub(crate) struct Costs {
    /// Distances of rules' rests; made when they are first wanted.
    distances: Option<Distances>,
    /// The shortest texts of lexemes, as far as they are found.
    pub lexemes: Vec<Option<Vec<Step>>>,
    /// By the row that made the items.
    rows: FxHashMap<RowId, Row>,
    pub ends: Ends,
    /// The texts that may come in a state of the lexer, where items of arrays must differ.
    pub texts: FxHashMap<StateID, TextsByLength>,
    memory: usize,
}

struct Row {
    /// The cost behind a symbol that has begun here.
    behind: FxHashMap<u32, u32>,
    /// The lexemes that lead to an end soonest with what they and the rest cost, the best first.
    nearest: Vec<(u32, u32)>,
}

impl Costs {
    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        let texts: usize = self.texts.values().map(TextsByLength::memory).sum();
        self.memory + self.ends.memory + texts + self.distances.as_ref().map_or(0, Distances::memory)
    }

    /// Finds the costs of symbols, once for a grammar; bounded by the states that a lexer may have.
    pub fn prepare(&mut self, rules: &Rules, lexer: &mut Lexer, tokens: &Tokens, fuel: u64) {
        if self.distances.is_some() {
            return;
        }
        for lexeme in 0..lexer.spec().lexemes.len() as u32 {
            lexer.refuel(fuel);
            let special = lexer.special_token(lexeme, tokens.vocab_size());
            let start = lexer.beginning(lexeme);
            let ends = if special.is_none() { self.ends.of(lexer, start) } else { Arc::default() };
            let text = ends.iter().map(End::text).min_by_key(|text| text.len()).map(steps);
            self.lexemes.push(special.map(|token| vec![Step::Special(token)]).or(text));
        }
        lexer.refuel(fuel);
        let length = |lexeme: u32| self.lexemes[lexeme as usize].as_ref().map(|text| text.len() as u32);
        let lengths = rules.symbols.iter().map(|symbol| symbol.lexeme.and_then(length));
        self.distances = Some(Distances::new(rules, lengths));
        self.memory += self.lexemes.iter().flatten().map(|text| 32 + size_of_val(&text[..])).sum::<usize>();
    }

    /// The lexemes that lead to an end soonest from a row, with what they and the rest cost; the best first.
    pub fn nearest(&mut self, rules: &Rules, rows: &Rows, row: RowId) -> &[(u32, u32)] {
        let base = rows.get(row).base();
        let mut open = vec![base];
        while let Some(row) = open.last().copied() {
            if self.rows.contains_key(&row) {
                open.pop();
                continue;
            }
            match rows.origins(row).find(|origin| !self.rows.contains_key(origin)) {
                Some(missing) => open.push(missing),
                None => {
                    let costs = self.follow(rules, rows, row);
                    self.memory += 96 + 16 * costs.behind.len();
                    self.rows.insert(row, costs);
                }
            }
        }
        &self.rows[&base].nearest
    }

    /// The costs of a row, where those of the rows before it are known.
    fn follow(&self, rules: &Rules, rows: &Rows, row: RowId) -> Row {
        let mut behind: FxHashMap<u32, u32> = FxHashMap::default();
        let mut changed = true;
        while changed {
            changed = false;
            for item in rows.items(row) {
                let symbol = rules.elements[item.place as usize].symbol;
                if symbol == END {
                    continue;
                }
                let cost = self.of_item(rules, &behind, &item, 1);
                let known = behind.entry(symbol).or_insert(NEVER);
                changed |= cost < *known;
                *known = cost.min(*known);
            }
        }
        let mut nearest: Vec<(u32, u32)> = Vec::new();
        for item in rows.items(row) {
            let lexeme = rules.behind(item.place).and_then(|symbol| symbol.lexeme);
            nearest.extend(lexeme.map(|lexeme| (self.of_item(rules, &behind, &item, 0), lexeme)));
        }
        nearest.sort_unstable();
        let mut known = FxHashSet::default();
        nearest.retain(|(cost, lexeme)| *cost < NEVER && known.insert(*lexeme));
        nearest.truncate(MAX_LEXEMES);
        Row { behind, nearest }
    }

    /// The cost of what follows the first `behind` elements of an item; `here` are those behind the symbols of its row.
    fn of_item(&self, rules: &Rules, here: &FxHashMap<u32, u32>, item: &About, behind: u32) -> u32 {
        let rest = self
            .distances
            .as_ref()
            .map_or(NEVER, |distances| distances.rest(rules, item.place + behind, item.parameter, DEPTH));
        let symbol = rules.elements[item.place as usize].of;
        let waiting = item.origin.map_or(here, |row| &self.rows[&row].behind);
        let up = if symbol == START { 0 } else { waiting.get(&symbol).copied().unwrap_or(NEVER) };
        rest.saturating_add(up)
    }
}

/// The steps of a text.
pub(super) fn steps(text: &[u8]) -> Vec<Step> {
    text.iter().map(|byte| Step::Byte(*byte)).collect()
}
