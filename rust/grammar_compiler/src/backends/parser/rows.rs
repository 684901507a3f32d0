//! Earley's rows, each made once: rows of the same items are the same row, whatever text led to them.
//!
//! ```text
//!                  lexeme              lexeme            a row is known by its kernel: the items that a
//!   row 0 ────────► row 1 ────────► row 2                lexeme has moved on, with the rows that they began
//!     │                               ▲                  in. Its other items follow from the kernel.
//!     └──────► row 3 ─────────────────┘
//! ```
//!
//! After Earley (1970) as llguidance has it, on llguidance's rules and with its treatment of skipped text and nested
//! grammars; there a parser has a row for each lexeme of its text, here all texts of a grammar share them. Since an item
//! names the row it began in by that row's number, two stacks are equal where their rows are.
//!
//! A new row is O(items); a known one is a look-up.

use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{ParamCond, ParamValue};
use rustc_hash::{FxHashMap, FxHashSet};

use super::lexer::{Lexer, SetId};
use super::rules::{END, Rules, START};

/// The number of a row.
pub(super) type RowId = u32;
/// An item that begins in its own row.
const HERE: u32 = u32::MAX;
/// No row: the text cannot go on so.
const NONE: RowId = u32::MAX;
/// Fewer items are searched one by one.
const FEW: usize = 24;

/// A rule that is being followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Item {
    /// Where the dot is.
    place: u32,
    /// The row that it began in, or [`HERE`].
    origin: u32,
    /// The parameter of its symbol.
    parameter: u64,
}

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    items: Arc<[Item]>,
    /// The row that made the items: this one, or the one before skipped text.
    base: RowId,
    /// The nested grammar that it is in.
    nesting: u32,
    /// Where the lexer begins.
    pub start: StateID,
    /// Whether the text may end here.
    pub accepting: bool,
    /// Whether it may go on.
    pub goes_on: bool,
    /// An item of an array with `uniqueItems` may begin here.
    pub begins_item: bool,
    /// Such an item has just ended.
    pub ended_item: bool,
}

impl Row {
    /// How many items it has.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The row that made the items.
    pub fn base(&self) -> RowId {
        self.base
    }
}

/// An item as others see it.
pub(super) struct About {
    /// Where its dot is.
    pub place: u32,
    /// The row that it began in; None is its own.
    pub origin: Option<RowId>,
    /// The parameter of its symbol.
    pub parameter: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Kernel {
    /// `repeated` says that no item of an array of different ones has ended.
    Scanned {
        items: Vec<Item>,
        nesting: u32,
        repeated: bool,
    },
    Skipped {
        base: RowId,
        nesting: u32,
        start: StateID,
    },
}

/// All rows of a grammar so far.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Vec<Row>,
    known: FxHashMap<Kernel, RowId>,
    next: FxHashMap<(RowId, SetId, bool), RowId>,
    /// Nested grammars that are open: the one around it, and its class.
    nestings: Vec<(u32, usize)>,
    known_nestings: FxHashMap<(u32, usize), u32>,
    /// How many items were made.
    made: usize,
}

impl Rows {
    /// With the first row of a grammar, which gets the number 0.
    pub fn new(rules: &Rules, lexer: &mut Lexer) -> Self {
        let mut rows = Self {
            rows: Vec::new(),
            known: FxHashMap::default(),
            next: FxHashMap::default(),
            nestings: vec![(0, 0)],
            known_nestings: FxHashMap::default(),
            made: 0,
        };
        let first = rules.symbols[START as usize].rules.iter();
        let items = first.map(|(place, _)| Item { place: *place, origin: HERE, parameter: 0 }).collect();
        rows.push(rules, lexer, items, 0, false);
        if !lexer.spec().allow_initial_skip {
            let start = rows.rows[0].start;
            rows.rows[0].start = lexer.start_without_skip(start, 0);
        }
        rows
    }

    pub fn get(&self, row: RowId) -> &Row {
        &self.rows[row as usize]
    }

    /// The items of a row.
    pub fn items(&self, row: RowId) -> impl Iterator<Item = About> + '_ {
        self.get(row).items.iter().map(|item| About {
            place: item.place,
            origin: Some(item.origin).filter(|origin| *origin != HERE),
            parameter: item.parameter,
        })
    }

    /// The earlier rows that its items began in.
    pub fn origins(&self, row: RowId) -> impl Iterator<Item = RowId> + '_ {
        self.items(row).filter_map(|item| item.origin)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// How many items were made so far.
    pub fn made(&self) -> usize {
        self.made
    }

    /// About how many bytes it holds.
    pub fn memory(&self) -> usize {
        self.made * 2 * size_of::<Item>()
            + self.rows.len() * (size_of::<Row>() + size_of::<Kernel>() + 32)
            + self.next.len() * 24
    }

    /// The row behind a lexeme that is one of `set`; None if none may come. No item of an array of different ones may have
    /// ended with it if it is `repeated`.
    pub fn after(
        &mut self,
        rules: &Rules,
        lexer: &mut Lexer,
        row: RowId,
        set: SetId,
        repeated: bool,
    ) -> Option<RowId> {
        if let Some(next) = self.next.get(&(row, set, repeated)) {
            return Some(*next).filter(|next| *next != NONE);
        }
        let next = match lexer.skipped(set) {
            Some(once) => self.skip(lexer, row, set, once),
            None => self.scan(rules, lexer, row, set, repeated),
        };
        self.next.insert((row, set, repeated), next);
        Some(next).filter(|next| *next != NONE)
    }

    fn scan(&mut self, rules: &Rules, lexer: &mut Lexer, row: RowId, set: SetId, repeated: bool) -> RowId {
        let lexemes = lexer.set(set);
        let from = &self.rows[row as usize];
        let mut items = Vec::new();
        for item in from.items.iter() {
            let lexeme = rules.behind(item.place).and_then(|symbol| symbol.lexeme);
            if lexeme.is_some_and(|lexeme| lexemes.contains(&lexeme)) {
                items.push(moved(item, from.base));
            }
        }
        if items.is_empty() {
            return NONE;
        }
        let nesting = self.left(lexer, row, set);
        let next = self.push(rules, lexer, items, nesting, repeated);
        let Row { goes_on, accepting, .. } = self.rows[next as usize];
        // Without the item nothing may be left.
        if repeated && !goes_on && !accepting { NONE } else { next }
    }

    /// The items are those before the skipped text.
    fn skip(&mut self, lexer: &mut Lexer, row: RowId, set: SetId, once: bool) -> RowId {
        let nesting = self.left(lexer, row, set);
        let class = self.nestings[nesting as usize].1;
        let Row { base, start, .. } = self.rows[row as usize];
        let start = if once { lexer.start_without_skip(start, class) } else { start };
        let kernel = Kernel::Skipped { base, nesting, start };
        if let Some(known) = self.known.get(&kernel) {
            return *known;
        }
        let from = &self.rows[row as usize];
        let made = Row { items: from.items.clone(), base, nesting, start, ..*from };
        self.known.insert(kernel, self.rows.len() as RowId);
        self.rows.push(made);
        self.rows.len() as RowId - 1
    }

    /// The nested grammar that a lexeme belongs to: those within it have ended.
    fn left(&self, lexer: &Lexer, row: RowId, set: SetId) -> u32 {
        let mut nesting = self.rows[row as usize].nesting;
        while nesting > 0 && !lexer.has_class(set, self.nestings[nesting as usize].1) {
            nesting = self.nestings[nesting as usize].0;
        }
        nesting
    }

    fn nest(&mut self, around: u32, class: usize) -> u32 {
        let next = self.nestings.len() as u32;
        let nesting = *self.known_nestings.entry((around, class)).or_insert(next);
        if nesting == next {
            self.nestings.push((around, class));
        }
        nesting
    }

    /// The row of a kernel.
    fn push(
        &mut self,
        rules: &Rules,
        lexer: &mut Lexer,
        items: Vec<Item>,
        nesting: u32,
        repeated: bool,
    ) -> RowId {
        let kernel = Kernel::Scanned { items, nesting, repeated };
        if let Some(known) = self.known.get(&kernel) {
            return *known;
        }
        let Kernel::Scanned { items, .. } = &kernel else { unreachable!("it was just made") };
        let mut agenda = Agenda::new(items.clone());
        let class = self.nestings[nesting as usize].1;
        let (mut inner, mut allowed) = (nesting, lexer.no_lexemes());
        let mut open = Vec::new();
        let (mut accepting, mut goes_on) = (false, false);
        let (mut begins_item, mut ended_item) = (false, false);
        let mut at = 0;
        while let Some(item) = agenda.items.get(at).copied() {
            at += 1;
            let element = &rules.elements[item.place as usize];
            if element.symbol == END {
                let is_item = rules.symbols[element.of as usize].is_item;
                if is_item && repeated {
                    continue;
                }
                ended_item |= is_item;
                accepting |= element.of == START;
                if item.origin != HERE {
                    let from = &self.rows[item.origin as usize];
                    for waiting in from.items.iter() {
                        if rules.elements[waiting.place as usize].symbol == element.of {
                            agenda.add(moved(waiting, from.base));
                        }
                    }
                }
                continue;
            }
            let symbol = &rules.symbols[element.symbol as usize];
            goes_on |= symbol.lexeme.is_some() || symbol.nested.is_some();
            begins_item |= symbol.is_item;
            let parameter = match rules.parametric {
                true => element.parameter.eval(ParamValue(item.parameter)).0,
                false => 0,
            };
            if let Some(lexeme) = symbol.lexeme {
                let lexeme = LexemeIdx(lexeme);
                allowed.add(lexeme);
                open.push(lexer.class(lexeme));
            }
            let holds = |condition: &ParamCond| !rules.parametric || condition.eval(ParamValue(parameter));
            match symbol.nested {
                Some(class) => {
                    let (place, _) = symbol.rules[0];
                    agenda.add(Item { place, origin: HERE, parameter: item.parameter });
                    inner = self.nest(inner, class);
                }
                None => {
                    for (place, condition) in &symbol.rules {
                        if holds(condition) {
                            agenda.add(Item { place: *place, origin: HERE, parameter });
                        }
                    }
                }
            }
            if symbol.nullable || (rules.parametric && symbol.nullable_if.iter().any(holds)) {
                agenda.add(Item { place: item.place + 1, ..item });
            }
        }
        if let Some(class) = self.skipping(class, inner, &open) {
            allowed.add(lexer.skip(class));
        }
        let number = self.rows.len() as RowId;
        self.made += agenda.items.len();
        self.rows.push(Row {
            items: agenda.items.into(),
            base: number,
            nesting: inner,
            start: lexer.start(&allowed),
            accepting,
            goes_on,
            begins_item,
            ended_item,
        });
        self.known.insert(kernel, number);
        number
    }

    /// The grammar whose skipped text may come: this one's, or the nearest around it that may go on.
    fn skipping(&self, class: usize, mut nesting: u32, open: &[usize]) -> Option<usize> {
        if open.contains(&class) {
            return Some(class);
        }
        while nesting > 0 {
            nesting = self.nestings[nesting as usize].0;
            let class = self.nestings[nesting as usize].1;
            if open.contains(&class) {
                return Some(class);
            }
        }
        None
    }
}

/// An item of a row with its dot moved on.
fn moved(item: &Item, base: RowId) -> Item {
    let origin = if item.origin == HERE { base } else { item.origin };
    Item { place: item.place + 1, origin, parameter: item.parameter }
}

/// Items that are found for a row, each once.
struct Agenda {
    items: Vec<Item>,
    known: FxHashSet<Item>,
}

impl Agenda {
    fn new(items: Vec<Item>) -> Self {
        let mut agenda = Self { items: Vec::with_capacity(items.len() + 8), known: FxHashSet::default() };
        items.into_iter().for_each(|item| agenda.add(item));
        agenda
    }

    fn add(&mut self, item: Item) {
        if self.items.len() < FEW {
            if !self.items.contains(&item) {
                self.items.push(item);
            }
            return;
        }
        if self.known.is_empty() {
            self.known.extend(&self.items);
        }
        if self.known.insert(item) {
            self.items.push(item);
        }
    }
}
