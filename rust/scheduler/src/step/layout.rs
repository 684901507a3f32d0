//! The bounds of a step, from which the place of every field follows.

use pyengine_base::error::{Error, Result};

/// Tokens of which one request may want the log-probability behind its prompt, and all of a step together.
pub const MAX_FOLLOWING: usize = 512;

/// Penalties of a step for each row that it may have, unless the vocabulary is larger than all of these.
const PENALTIES_PER_ROW: usize = 512;

/// The bounds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLayout {
    pub(super) max_tokens: usize,
    pub(super) max_rows: usize,
    pub(super) max_pages: usize,
    pub(super) max_logits: usize,
    pub(super) max_penalties: usize,
    pub(super) vocab_size: usize,
    pub(super) mask_words: usize,
    pub(super) tables: usize,
    pub(super) hidden_size: usize,
    pub(super) states: bool,
}

impl StepLayout {
    /// The layout for steps of at most these tokens, rows and pages, where a row may sample `1 + max_draft` tokens
    /// of a vocabulary of `vocab_size`.
    pub fn new(
        max_tokens: usize,
        max_rows: usize,
        max_pages: usize,
        max_draft: usize,
        vocab_size: usize,
    ) -> Result<Self> {
        const LIMIT: usize = i32::MAX as usize;
        let max_logits = max_rows.saturating_mul(max_draft.saturating_add(1)).min(max_tokens.max(max_rows));
        let mask_words = vocab_size.div_ceil(32);
        let bounds = [
            ("max_tokens", max_tokens),
            ("max_rows", max_rows),
            ("max_pages", max_pages),
            ("vocab_size", vocab_size),
        ];
        for (name, value) in bounds {
            if value == 0 || value >= LIMIT {
                return Err(Error::InvalidArgument(format!("{name} must be between 1 and {}", LIMIT - 1)));
            }
        }
        // A logits row has at most one penalty a token: one row always finds a place.
        let max_penalties = vocab_size.max(max_rows.saturating_mul(PENALTIES_PER_ROW)).min(LIMIT - 1);
        let tables = 1;
        Ok(Self {
            max_tokens,
            max_rows,
            max_pages,
            max_logits,
            max_penalties,
            vocab_size,
            mask_words,
            tables,
            hidden_size: 0,
            states: false,
        })
    }

    /// The same with this many page tables, each of at most `max_pages` pages.
    pub fn with_tables(self, tables: usize) -> Result<Self> {
        const LIMIT: usize = i32::MAX as usize;
        let longest = self.max_pages.max(self.max_tokens).max(self.max_rows + 1);
        if tables == 0 || tables.checked_mul(longest).is_none_or(|cells| cells >= LIMIT) {
            return Err(Error::InvalidArgument(format!("{tables} page tables are none, or too many")));
        }
        Ok(Self { tables, ..self })
    }

    /// The same with room for vectors of this many numbers in the results of rows that pool.
    pub fn with_hidden_size(self, hidden_size: usize) -> Self {
        Self { hidden_size, ..self }
    }

    /// The same for a model that has layers with states, or has none.
    pub fn with_states(self, states: bool) -> Self {
        Self { states, ..self }
    }

    /// Rows of the fields that say where states are.
    pub(super) fn state_rows(&self) -> usize {
        if self.states { self.max_rows } else { 0 }
    }

    /// Numbers of a vector in the results.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Whether rows have states.
    pub fn states(&self) -> bool {
        self.states
    }

    /// Page tables.
    pub fn tables(&self) -> usize {
        self.tables
    }

    /// Most tokens of a step.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Most rows of a step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Most tokens that a step samples, those of all rows together.
    pub fn max_logits(&self) -> usize {
        self.max_logits
    }

    /// Most penalties of a step, those of all logits rows together.
    pub fn max_penalties(&self) -> usize {
        self.max_penalties
    }

    /// The same with room for fewer penalties, at least those of one row.
    #[cfg(test)]
    pub fn with_max_penalties(self, max_penalties: usize) -> Self {
        Self { max_penalties: max_penalties.max(self.vocab_size), ..self }
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Most logits of prompts: one for each token, and those of tokens that may follow prompts.
    pub fn max_prompt_logits(&self) -> usize {
        self.max_tokens + MAX_FOLLOWING
    }

    /// Words of one grammar mask.
    pub fn mask_words(&self) -> usize {
        self.mask_words
    }

    /// Most pages of a step, those of all rows together.
    pub fn max_pages(&self) -> usize {
        self.max_pages
    }
}
