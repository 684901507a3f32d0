//! The tokenizer as grammars need it: the bytes of every token, a trie of them, and how text is tokenized.
//!
//! ```text
//!  ids      0 ... tokenizer's ... │ ... holes of the model's logits ... │ vocab_size
//!  trie     text tokens; special ones behind a marker that no text has  │ means "the text may end here"
//! ```
//!
//! Special tokens (and the model's end tokens) never match text. llguidance gets an id beyond the vocabulary as its end
//! token instead of the model's, so that a grammar may have those within the text.
//!
//! Loading is O(vocabulary) and takes up to seconds. It happens once, on the thread that needs it first. Everything after
//! is a look-up.

mod tokens;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::ParserLimits;

use crate::lowering::description::MAX_BYTES;
use pyengine_base::error::{Error, Result};
use pyengine_grammar::masks::MaskCache;

pub(crate) use tokens::Step;
pub use tokens::Tokens;

/// The trie's ids have 24 bits.
const LARGEST_VOCABULARY: usize = (1 << 24) - 2;

/// A tokenizer for grammars, loaded when it is first needed.
pub struct GrammarContext {
    /// The tokenizer.json, until it has been loaded.
    text: Mutex<Option<String>>,
    end_tokens: Vec<u32>,
    vocab_size: usize,
    loaded: OnceLock<Result<Arc<Tokens>>>,
    masks: Arc<MaskCache>,
}

impl GrammarContext {
    /// A context for a `tokenizer.json`, tokens that end an answer, and as many logits as the model has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no end tokens, or one beyond the vocabulary, or an empty or too large vocabulary.
    /// A mistake in the `tokenizer.json` is an error of [`load`](Self::load).
    pub fn from_tokenizer_json(text: &str, end_token_ids: &[u32], vocab_size: usize) -> Result<Self> {
        if vocab_size == 0 || vocab_size > LARGEST_VOCABULARY {
            return Err(Error::InvalidArgument(format!(
                "vocab_size must be in 1..={LARGEST_VOCABULARY}, not {vocab_size}"
            )));
        }
        if let Some(id) = end_token_ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(Error::InvalidArgument(format!(
                "end token {id} is beyond the vocabulary of {vocab_size}"
            )));
        }
        let mut end_tokens = end_token_ids.to_vec();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        if end_tokens.is_empty() {
            return Err(Error::InvalidArgument("a grammar needs an end token to end its text with".into()));
        }
        Ok(Self {
            text: Mutex::new(Some(text.to_owned())),
            end_tokens,
            vocab_size,
            loaded: OnceLock::new(),
            masks: Arc::new(MaskCache::default()),
        })
    }

    /// The tokens. Loads them at the first call, and waits while another thread does.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`], at every call.
    pub fn load(&self) -> Result<Arc<Tokens>> {
        self.loaded
            .get_or_init(|| {
                let text = self.text.lock().unwrap_or_else(PoisonError::into_inner).take();
                Tokens::load(&text.unwrap_or_default(), &self.end_tokens, self.vocab_size, &self.masks)
                    .map(Arc::new)
            })
            .clone()
    }

    /// How many masks that steps needed were found, how many had to be made, and how many bytes the cache holds.
    pub(crate) fn mask_counts(&self) -> [u64; 3] {
        self.masks.counts()
    }

    /// How many ids a mask covers.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

/// Limits of llguidance: what it builds when compiling, and what a mask may cost before it gives up.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        // A mask that gives up ends the answer, but one that takes long holds up every other answer.
        step_lexer_fuel: 2_000_000,
        step_max_items: 50_000,
        // A constant takes one for each of its bytes, and a description has no more.
        max_lexer_states: MAX_BYTES,
        max_grammar_size: 300_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

#[cfg(test)]
pub(crate) mod tests;
