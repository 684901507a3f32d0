//! The states of a grammar so far: its parts, and the limits of what a call may add to them.
//!
//! What a text may do at a place is said where it belongs: [`moves`](super::moves) go on from it, [`mask`](super::mask) says
//! which tokens may come, [`closing`](super::closing) how the text ends soonest.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use llguidance::api::ParserLimits;
use llguidance::earley::CGrammar;

use super::closing::costs::Costs;
use super::different::memory::Memories;
use super::lexer::verdicts::Verdicts;
use super::lexer::{Lexer, SkippedOnce};
use super::rows::Rows;
use super::rules::Rules;
use super::views::Views;

/// States that have grown by more bytes are left to the requests that have them; others get new ones. The cache of grammars
/// bounds what all of them hold.
const MAX_GROWTH: usize = 128 << 20;
/// MiB that the states of an answer may hold; beyond that it is ended.
const MAX_MIB: usize = 256;

pub(super) struct States {
    pub rules: Arc<Rules>,
    pub lexer: Lexer,
    pub rows: Rows,
    pub memories: Memories,
    pub verdicts: Verdicts,
    pub views: Views,
    pub costs: Costs,
    pub limits: ParserLimits,
    /// How many items the call may make in all.
    pub max_made: usize,
    /// How many bytes they may hold.
    max_bytes: usize,
}

impl States {
    /// The first state of a grammar.
    ///
    /// # Errors
    /// Its lexer is too large.
    pub fn new(grammar: &Arc<CGrammar>, limits: &ParserLimits, once: &SkippedOnce) -> Result<Self> {
        let rules = Arc::new(Rules::new(grammar));
        let mut lexer = Lexer::new(grammar, limits, once)?;
        let rows = Rows::new(&rules, &mut lexer);
        let verdicts = Verdicts::new(&lexer);
        let mut states = Self {
            rules,
            lexer,
            rows,
            memories: Memories::default(),
            verdicts,
            views: Views::default(),
            costs: Costs::default(),
            limits: limits.clone(),
            max_made: usize::MAX,
            max_bytes: 0,
        };
        states.max_bytes = states.memory() + MAX_GROWTH;
        Ok(states)
    }

    /// Gives new fuel, and room for new items: what one mask or token may take.
    pub fn refuel(&mut self) {
        self.max_made = self.rows.made() + self.limits.step_max_items;
        self.lexer.refuel(self.limits.step_lexer_fuel);
    }

    /// # Errors
    /// The work went beyond a limit, and its result may be wrong.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = self.lexer.error() {
            bail!("lexer error: {error}");
        }
        ensure!(self.memory() <= MAX_MIB << 20, "its texts take more than {MAX_MIB} MiB of states");
        let limit = self.limits.step_max_items;
        ensure!(self.rows.made() <= self.max_made, "parser error: too many items (limit {limit})");
        Ok(())
    }

    /// Whether they are of no more use to new requests: the lexer has given up, or they hold too much.
    pub fn are_spent(&self) -> bool {
        self.lexer.error().is_some() || self.memory() > self.max_bytes
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        let said = self.verdicts.memory() + self.views.memory() + self.costs.memory();
        let said = said + self.memories.memory();
        self.rules.memory() + self.lexer.memory() + self.rows.memory() + said
    }
}
