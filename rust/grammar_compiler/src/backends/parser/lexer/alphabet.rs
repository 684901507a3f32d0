//! Bytes that the lexemes of a state do not tell apart: one of each class stands for all of them.
//!
//! ```text
//!  grammar   "name"  "id"  a string       llguidance's alphabet: n, a, m, e, i, d, all else
//!  state                   a string       here: all letters      one transition to build in place of seven
//! ```
//!
//! llguidance's lexer has one alphabet for all lexemes of a grammar, in which each letter of a key is a class of its own.
//! Within a string that multiplies the transitions that must be built, each a derivative of its regex.
//!
//! A lexeme's classes are found once, in O(grammar); a state's then are a look-up.

use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::LexerSpec;
use rustc_hash::FxHashMap;

/// A lexeme's classes are not looked for in a larger grammar.
const MAX_BYTES: usize = 1 << 20;
/// States of more lexemes tell most bytes apart.
const MAX_LEXEMES: usize = 4;
/// The number of the table in which each byte stands for itself.
const ALL_APART: u16 = 0;

/// For each byte the one that stands for it.
pub(super) type Table = [u8; 256];

/// The tables of states.
pub(super) struct Alphabets {
    /// The class of each byte, by lexeme; None where it was not found.
    classes: FxHashMap<u32, Option<Table>>,
    tables: Vec<Table>,
    by_lexemes: FxHashMap<Box<[u32]>, u16>,
    by_state: Vec<u16>,
}

impl Alphabets {
    pub fn new() -> Self {
        Self {
            classes: FxHashMap::default(),
            tables: vec![std::array::from_fn(|byte| byte as u8)],
            by_lexemes: FxHashMap::default(),
            by_state: Vec::new(),
        }
    }

    /// The byte that stands for this one in a state.
    #[inline]
    pub fn stand_in(&self, state: usize, byte: u8) -> u8 {
        match self.by_state.get(state) {
            Some(table) => self.tables[usize::from(*table)][usize::from(byte)],
            None => byte,
        }
    }

    /// Finds the table of a state that belongs to these lexemes.
    pub fn find(&mut self, spec: &LexerSpec, limits: &ParserLimits, state: usize, lexemes: Vec<u32>) {
        let table = match lexemes.len() {
            1..=MAX_LEXEMES if self.tables.len() < usize::from(u16::MAX) => self.table(spec, limits, lexemes),
            _ => ALL_APART,
        };
        if self.by_state.len() <= state {
            self.by_state.resize(state + 1, ALL_APART);
        }
        self.by_state[state] = table;
    }

    fn table(&mut self, spec: &LexerSpec, limits: &ParserLimits, lexemes: Vec<u32>) -> u16 {
        if let Some(known) = self.by_lexemes.get(&lexemes[..]) {
            return *known;
        }
        let found: Option<Vec<Table>> =
            lexemes.iter().map(|lexeme| self.classes_of(spec, limits, *lexeme)).collect();
        let table = found.map_or(ALL_APART, |classes| {
            let mut first: FxHashMap<Vec<u8>, u8> = FxHashMap::default();
            let like = |byte: u8| classes.iter().map(|of| of[usize::from(byte)]).collect::<Vec<u8>>();
            self.tables
                .push(std::array::from_fn(|byte| *first.entry(like(byte as u8)).or_insert(byte as u8)));
            self.tables.len() as u16 - 1
        });
        self.by_lexemes.insert(lexemes.into(), table);
        table
    }

    /// The classes of a lexeme: those of a lexer that has no other.
    fn classes_of(&mut self, spec: &LexerSpec, limits: &ParserLimits, lexeme: u32) -> Option<Table> {
        let find = || {
            if spec.regex_builder.exprset().num_bytes() > MAX_BYTES {
                return None;
            }
            let mut alone = spec.clone();
            alone.lexemes = vec![alone.lexemes.swap_remove(lexeme as usize)];
            let automaton = alone.to_regex_vec(&mut limits.clone()).ok()?;
            Some(std::array::from_fn(|byte| automaton.alpha().map(byte as u8) as u8))
        };
        *self.classes.entry(lexeme).or_insert_with(find)
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        (self.classes.len() + self.tables.len()) * size_of::<Table>() + self.by_state.len() * 2
    }
}
