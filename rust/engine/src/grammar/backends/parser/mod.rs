//! The parser of grammars that llguidance has compiled: all requests of a grammar share its states.
//!
//! ```text
//!  Automaton (one a grammar, locked)                      Parser (one a request)
//!    lexer     llguidance's, built as it is used            places, one after each token:
//!    rows      Earley's, each made once         ◄────────     row, state of the lexer,
//!    memories  of arrays of different items     ◄────────     what is remembered
//!    verdicts  of the lexer's states
//!    views     what a row's mask depends on, and its mask
//!    costs     of the shortest completions
//! ```
//!
//! llguidance's own parser keeps its rows to itself, so that nothing tells that two requests are in the same state. This
//! one follows the same rules byte by byte, on llguidance's grammars and lexer, and gives the same masks: the tests
//! compare them. A place is canonical: requests at equal places may write the same texts, however they came there, and
//! [`MaskCache`](crate::grammar::masks::MaskCache) keeps one mask for all of them.
//!
//! A token is O(its bytes), a mask that is kept a look-up. Another costs the ways out of the lexer's state.

mod alphabet;
mod distances;
mod lexer;
mod memory;
mod moves;
mod paths;
mod plain;
mod rows;
mod rules;
mod search;
mod shortest;
mod text;
mod unlike;
mod values;
mod verdicts;
mod views;
mod warm;
mod ways;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail, ensure};
use llguidance::api::ParserLimits;
use llguidance::earley::CGrammar;

use crate::grammar::context::Tokens;
use lexer::Lexer;
use memory::Memories;
use rows::Rows;
use rules::Rules;
use shortest::Costs;
use verdicts::Verdicts;
use views::Views;

pub(crate) use lexer::SkippedOnce;
pub(crate) use shortest::Step;
pub(crate) use text::Parser;

/// An automaton that has grown by more bytes is left to the requests that have it; others get a new one.
const MAX_GROWTH: usize = 16 << 20;
/// A lexeme of more weight has its automaton built when the grammar is compiled.
const HEAVY_LEXEME: u32 = 1000;

/// A grammar's states so far.
pub(crate) struct Automaton {
    number: u64,
    tokens: Arc<Tokens>,
    inner: Mutex<Inner>,
    /// No more requests are to get it: it has given up, or holds too much.
    retired: AtomicBool,
}

struct Inner {
    rules: Arc<Rules>,
    lexer: Lexer,
    rows: Rows,
    memories: Memories,
    verdicts: Verdicts,
    views: Views,
    costs: Costs,
    limits: ParserLimits,
    /// How many items the call may make in all.
    max_made: usize,
    /// How many bytes it may hold.
    max_bytes: usize,
}

impl Automaton {
    /// The automaton of a grammar, with its first state.
    ///
    /// # Errors
    /// Its lexer is too large.
    pub fn new(
        tokens: &Arc<Tokens>,
        grammar: &Arc<CGrammar>,
        limits: &ParserLimits,
        once: &SkippedOnce,
    ) -> Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let rules = Arc::new(Rules::new(grammar));
        let mut lexer = Lexer::new(grammar, limits, once)?;
        let rows = Rows::new(&rules, &mut lexer);
        let mut inner = Inner {
            rules,
            lexer,
            rows,
            memories: Memories::default(),
            verdicts: Verdicts::default(),
            views: Views::default(),
            costs: Costs::default(),
            limits: limits.clone(),
            max_made: usize::MAX,
            max_bytes: 0,
        };
        inner.max_bytes = inner.memory() + MAX_GROWTH;
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            tokens: tokens.clone(),
            inner: Mutex::new(inner),
            retired: AtomicBool::new(false),
        })
    }

    /// Builds the lexer's states of large lexemes.
    ///
    /// # Errors
    /// That takes too much work.
    pub fn prepare(&self) -> Result<()> {
        let mut inner = self.lock();
        let fuel = inner.limits.initial_lexer_fuel;
        inner.lexer.refuel(fuel);
        let Inner { lexer, verdicts, .. } = &mut *inner;
        for start in lexer.heavy(HEAVY_LEXEME) {
            verdicts.of(&self.tokens, lexer, start);
        }
        ensure!(lexer.error().is_none(), "its texts need too large an automaton");
        Ok(())
    }

    /// Whether no more requests are to get it.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// About how many bytes it holds.
    pub fn memory(&self) -> usize {
        self.lock().memory()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the states, within the limits of one mask. A lexer that has given up is of no more use to any request.
    fn work<T>(&self, work: impl FnOnce(&mut Inner, &Tokens) -> T) -> Result<T> {
        let inner = self.inner.lock();
        // A panic may have left it broken.
        let mut inner =
            inner.map_err(|_| anyhow!("the grammar's parser panicked")).inspect_err(|_| self.retire())?;
        inner.max_made = inner.rows.made() + inner.limits.step_max_items;
        let fuel = inner.limits.step_lexer_fuel;
        inner.lexer.refuel(fuel);
        let value = work(&mut inner, &self.tokens);
        let checked = inner.check();
        if inner.lexer.error().is_some() || inner.memory() > inner.max_bytes {
            self.retire();
        }
        checked.map(|()| value)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    /// # Errors
    /// The work went beyond a limit, and its result may be wrong.
    fn check(&self) -> Result<()> {
        if let Some(error) = self.lexer.error() {
            bail!("lexer error: {error}");
        }
        let limit = self.limits.step_max_items;
        ensure!(self.rows.made() <= self.max_made, "parser error: too many items (limit {limit})");
        Ok(())
    }

    fn memory(&self) -> usize {
        let said = self.verdicts.memory() + self.views.memory() + self.costs.memory();
        let said = said + self.memories.memory();
        self.rules.memory() + self.lexer.memory() + self.rows.memory() + said
    }
}

#[cfg(test)]
mod tests;
