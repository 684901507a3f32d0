//! The automaton of a grammar: its states, and the lock under which all its requests add to them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, ensure};
use llguidance::api::ParserLimits;
use llguidance::earley::CGrammar;

use super::lexer::SkippedOnce;
use super::states::States;
use crate::context::Tokens;

/// A lexeme of more weight has its automaton built when the grammar is compiled.
const HEAVY_LEXEME: u32 = 1000;

/// A grammar's states so far.
pub(crate) struct Automaton {
    pub(super) number: u64,
    pub(super) tokens: Arc<Tokens>,
    states: Mutex<States>,
    /// No more requests are to get it: it has given up, or holds too much.
    retired: AtomicBool,
    /// What the states held after the last work on them.
    bytes: AtomicUsize,
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
        let states = States::new(grammar, limits, once)?;
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            tokens: tokens.clone(),
            bytes: AtomicUsize::new(states.memory()),
            states: Mutex::new(states),
            retired: AtomicBool::new(false),
        })
    }

    /// Builds the lexer's states of large lexemes.
    ///
    /// # Errors
    /// That takes too much work.
    pub fn prepare(&self) -> Result<()> {
        let mut states = self.lock();
        let States { lexer, verdicts, limits, .. } = &mut *states;
        lexer.refuel(limits.initial_lexer_fuel);
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

    /// About how many bytes it holds; waits for no work on it.
    pub fn memory(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The states, unless a panic may have left them broken.
    pub(super) fn lock_whole(&self) -> Option<MutexGuard<'_, States>> {
        self.states.lock().ok()
    }

    /// Works on the states, within the limits of one mask. A lexer that has given up is of no more use to any request.
    pub(super) fn work<T>(&self, work: impl FnOnce(&mut States, &Tokens) -> T) -> Result<T> {
        let mut states = self
            .lock_whole()
            .ok_or_else(|| anyhow!("the grammar's parser panicked"))
            .inspect_err(|_| self.retire())?;
        states.refuel();
        let value = work(&mut states, &self.tokens);
        let checked = states.check();
        self.bytes.store(states.memory(), Ordering::Relaxed);
        if states.are_spent() {
            self.retire();
        }
        checked.map(|()| value)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}
