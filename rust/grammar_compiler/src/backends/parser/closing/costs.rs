//! How many bytes complete a text: costs of symbols, which are those of their shortest texts (see [`Distances`]), and of rows,
//! which are those of their cheapest item and of what waits for it in earlier rows. These are found once for a row: items name
//! the rows that they began in, so that nothing is followed back twice.

use std::sync::Arc;

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHashSet};

use super::distances::{DEPTH, Distances, NEVER};
use super::ends::{End, Ends};
use crate::backends::parser::different::texts::TextsByLength;
use crate::backends::parser::lexer::Lexer;
use crate::backends::parser::place::Place;
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
    pub lexemes: Vec<Option<Arc<[Step]>>>,
    /// By the row that made the items.
    rows: FxHashMap<RowId, Row>,
    pub ends: Ends,
    /// The next steps on the way to an end from places of completions that were found, and where they lead.
    pub ways: FxHashMap<Place, (Arc<[Step]>, Place)>,
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
        self.memory + self.ends.memory + 160 * self.ways.len() + texts
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
            self.lexemes.push(special.map(|token| Arc::from([Step::Special(token)])).or(text));
        }
        lexer.refuel(fuel);
        let length = |lexeme: u32| self.lexemes[lexeme as usize].as_ref().map(|text| text.len() as u32);
        let lengths = rules.symbols.iter().map(|symbol| symbol.lexeme.and_then(length));
        self.distances = Some(Distances::new(rules, lengths));
        self.memory += self.lexemes.iter().flatten().map(|text| 32 + size_of_val(&text[..])).sum::<usize>();
        self.memory += 4 * rules.elements.len() + 50 * rules.symbols.len();
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
        let lexemes = rows.items(row).filter_map(|item| {
            Some((self.of_item(rules, &behind, &item, 0), rules.behind(item.place)?.lexeme?))
        });
        let mut nearest: Vec<(u32, u32)> = lexemes.collect();
        nearest.sort_unstable();
        let mut known = FxHashSet::default();
        nearest.retain(|(cost, lexeme)| *cost < NEVER && known.insert(*lexeme));
        nearest.truncate(MAX_LEXEMES);
        Row { behind, nearest }
    }

    /// The cost of what follows the first `behind` elements of an item; `here` are those behind the symbols of its row.
    fn of_item(&self, rules: &Rules, here: &FxHashMap<u32, u32>, item: &About, behind: u32) -> u32 {
        let Some(distances) = &self.distances else { return NEVER };
        let rest = distances.rest(rules, item.place + behind, item.parameter, DEPTH);
        let symbol = rules.elements[item.place as usize].of;
        let waiting = item.origin.map_or(here, |row| &self.rows[&row].behind);
        let up = if symbol == START { 0 } else { waiting.get(&symbol).copied().unwrap_or(NEVER) };
        rest.saturating_add(up)
    }
}

/// The steps of a text.
pub(super) fn steps(text: &[u8]) -> Arc<[Step]> {
    text.iter().map(|byte| Step::Byte(*byte)).collect()
}
