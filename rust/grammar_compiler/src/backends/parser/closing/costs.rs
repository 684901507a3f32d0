//! How many bytes complete a text: costs of symbols and of rows.
//!
//! ```text
//!  cost of a symbol  the bytes of its shortest text          see [`Distances`]
//!       of a row     those of its cheapest item, and of      once for a row: items name the rows that they began
//!                    what waits for that in earlier rows     in, so nothing is followed back twice
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

use super::bounds::NEVER;
use super::distances::Distances;
use super::ends::{Ends, Tail};
use super::items::Items;
use super::piece::Shortest;
use crate::backends::parser::lexer::Lexer;
use crate::backends::parser::rows::{About, RowId, Rows};
use crate::backends::parser::rules::{END, Rules, START};
use crate::context::Tokens;

/// The costs so far.
#[derive(Default)]
pub(crate) struct Costs {
    /// Distances of rules' rests; made when they are first wanted.
    distances: Option<Distances>,
    /// The shortest texts of lexemes, as far as they are found.
    pub lexemes: Box<[Option<Shortest>]>,
    /// How those end, where any lexeme of the grammar may have begun; None where another one is in the way.
    pub tails: FxHashMap<u32, Option<Tail>>,
    /// By the row that made the items.
    rows: FxHashMap<RowId, Row>,
    pub ends: Ends,
    /// The texts of items of arrays of different ones, by their symbols.
    pub items: FxHashMap<u32, Items>,
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
        let items: usize = self.items.values().map(Items::memory).sum();
        self.memory + self.ends.memory() + items + self.distances.as_ref().map_or(0, Distances::memory)
    }

    /// Finds the costs of symbols; false if they are known.
    pub fn prepare(&mut self, rules: &Rules, lexer: &mut Lexer, tokens: &Tokens, fuel: u64) -> bool {
        if self.distances.is_some() {
            return false;
        }
        let count = lexer.spec().lexemes.len() as u32;
        let shortest = |lexeme| {
            // Once for a grammar, and bounded by the states that a lexer may have.
            lexer.refuel(fuel);
            self.shortest(lexer, tokens, lexeme)
        };
        self.lexemes = (0..count).map(shortest).collect();
        let length = |lexeme: u32| self.lexemes[lexeme as usize].as_ref().map(Shortest::len);
        let lengths = rules.symbols.iter().map(|symbol| symbol.lexeme.and_then(length));
        self.distances = Some(Distances::new(rules, lengths));
        let lengths = self.lexemes.iter().flatten().map(|text| text.len() as usize);
        self.memory += 32 * self.lexemes.len() + lengths.sum::<usize>();
        true
    }

    /// The shortest text of a lexeme, as far as one is found.
    fn shortest(&mut self, lexer: &mut Lexer, tokens: &Tokens, lexeme: u32) -> Option<Shortest> {
        if let Some(token) = lexer.special_token(lexeme, tokens.vocab_size()) {
            return Some(Shortest::Special(token));
        }
        let start = lexer.beginning(lexeme);
        let ends = self.ends.of(lexer, start);
        let nearest = ends.iter().min_by_key(|end| end.left)?;
        Some(Shortest::of_text(tokens, self.ends.text(start, *nearest)))
    }

    /// The bytes of a symbol's shortest text.
    pub fn of_symbol(&mut self, rules: &Rules, symbol: u32, parameter: u64) -> u32 {
        self.distances.as_mut().map_or(NEVER, |distances| distances.of(rules, symbol, parameter))
    }

    /// Cost of the rest of a rule from a place on.
    pub fn of_rest(&mut self, rules: &Rules, place: u32, parameter: u64) -> u32 {
        self.distances.as_mut().map_or(NEVER, |distances| distances.rest(rules, place, parameter))
    }

    /// The item of a row that leads to an end soonest: any, or one that waits for a symbol. None where none does.
    pub fn cheapest(
        &mut self,
        rules: &Rules,
        rows: &Rows,
        row: RowId,
        waiting: Option<u32>,
    ) -> Option<About> {
        let behind = u32::from(waiting.is_some());
        let mut best: Option<(u32, About)> = None;
        for item in rows.items(row) {
            let element = &rules.elements[item.place as usize];
            if waiting.is_some_and(|symbol| element.symbol != symbol) {
                continue;
            }
            let up = self.up(&self.rows.get(&row)?.behind, element.of, item.origin);
            let cost = self.rest(rules, &item, behind).saturating_add(up);
            if cost < best.as_ref().map_or(NEVER, |(least, _)| *least) {
                best = Some((cost, item));
            }
        }
        best.map(|(_, item)| item)
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

    /// The rest of an item's rule after the first `behind` elements.
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
    pub fn nearest_lexemes(&mut self, rules: &Rules, rows: &Rows, row: RowId, most: usize) -> Vec<u32> {
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
        let lexemes = found.into_iter().map(|(_, lexeme)| lexeme);
        lexemes.filter(|lexeme| seen.insert(*lexeme)).take(most).collect()
    }
}
