//! The llguidance backend: JSON Schemas, context-free grammars, and regexes that are too large for a table.
//!
//! ```text
//!  Compiled ─ base parser ─┬─ start: a copy of the parser (its lexer's automaton is built as it goes)
//!                          └─ pool: parsers of answers that have ended, rewound, with what their lexers have built
//! ```
//!
//! A mask costs a walk over a trie of the vocabulary, cut short where a whole slice of it (white space, the inside of
//! JSON strings) is known to be allowed; the same lexer state twice in a row is a copy. Every call is guarded: if
//! llguidance panics or gives up on its limits, the answer may only end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{GrammarInit, StopReason, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, TokenParser};

use crate::grammar::backends::closing::Budget;
use crate::grammar::backends::{closing, forced};
use crate::grammar::context::Tokens;
use crate::grammar::lowering::Lowered;
use crate::grammar::lowering::description::refusal;
use crate::grammar::{Compiled, Grammar, Refusal};

/// Items in a row of the parser that any grammar may have; an object of two thousand optional keys has 5,000.
const MAX_ITEMS: usize = 8_000;
/// How many rewound parsers are kept.
const MAX_POOLED: usize = 4;
/// A parser whose lexer holds more bytes is not kept.
const MAX_POOLED_BYTES: usize = 4 << 20;

/// A grammar that llguidance has compiled.
pub(crate) struct Llguidance {
    shared: Arc<Shared>,
    warnings: Vec<String>,
}

struct Shared {
    tokens: Arc<Tokens>,
    base: Mutex<TokenParser>,
    /// The grammar's fixed texts, in tokens of single bytes and special tokens.
    marks: Vec<Vec<u32>>,
    /// A completion of the empty answer, once it was searched for.
    shortest: OnceLock<Option<Vec<u32>>>,
    /// Rewound parsers, and about how many bytes each holds.
    pool: Mutex<Vec<(TokenParser, usize)>>,
    memory: usize,
}

impl Llguidance {
    /// Compiles a lowered description, in which `marks` are fixed texts.
    ///
    /// # Errors
    /// Why llguidance refuses the grammar.
    pub(crate) fn compile(
        tokens: &Arc<Tokens>,
        lowered: Lowered,
        marks: &[String],
        mut warnings: Vec<String>,
    ) -> Result<Self, Refusal> {
        let length = match &lowered {
            Lowered::Json(schema) => schema.to_string().len(),
            Lowered::Lark(source) => source.len(),
        };
        let grammar = match lowered {
            Lowered::Json(schema) => TopLevelGrammar::from_json_schema(schema),
            Lowered::Lark(source) => TopLevelGrammar::from_lark(source),
        };
        let base = guarded(|| {
            let factory = tokens.factory();
            let mut limits = factory.limits().clone();
            limits.max_items_in_row = max_items(length);
            let (init, logger) = (GrammarInit::Serialized(grammar), Logger::new(0, 0));
            let able = InferenceCapabilities::default();
            let mut parser = factory.create_parser_from_init_ext(init, logger, able, limits)?;
            parser.parser.rollback(0)?;
            parser.start_without_prompt();
            if !parser.check_stop()? {
                // Without a first token no text matches. The first mask's lexer states are shared by all copies.
                let empty = StopReason::NoExtensionBias.to_string();
                let none = || anyhow::anyhow!("no text matches it");
                let mask = parser.compute_mask();
                mask.map_err(|error| if error.to_string() == empty { none() } else { error })?;
            }
            let warnings = parser.grammar_warnings();
            Ok((parser, warnings))
        });
        let (base, more) =
            base.map_err(|error| refusal(format!("the grammar cannot be compiled: {}", readable(&error))))?;
        warnings.extend(more);
        // Estimates the rules and symbols beside the lexer.
        let memory = base.parser.lexer_stats().num_bytes + 8 * length + (16 << 10);
        let shared = Shared {
            tokens: tokens.clone(),
            marks: closing::marks(marks, tokens),
            base: Mutex::new(base),
            shortest: OnceLock::new(),
            pool: Mutex::default(),
            memory,
        };
        Ok(Self { shared: Arc::new(shared), warnings })
    }

    fn state(&self) -> State {
        let kept = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let parser = kept.map_or_else(
            || self.shared.base.lock().unwrap_or_else(PoisonError::into_inner).deep_clone(),
            |(parser, _)| parser,
        );
        State {
            shared: self.shared.clone(),
            parser: Some(parser),
            taken: Vec::new(),
            ended: false,
            blind: false,
            broken: None,
            completion: None,
        }
    }
}

/// How many items a row of the parser may have, for a grammar of so many bytes: a small one that needs many is
/// ambiguous, and each of its tokens costs the square of them.
fn max_items(length: usize) -> usize {
    (2_000 + length / 2).min(MAX_ITEMS)
}

/// llguidance's message, without the parts for its logs.
fn readable(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let text = text.split("<backtrace>").next().unwrap_or_default();
    text.replace("\n<non-verbose/>", "").trim_end().to_owned()
}

fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow::anyhow!("llguidance panicked")))
}

impl Compiled for Llguidance {
    fn start(&self) -> Box<dyn Grammar> {
        Box::new(self.state())
    }

    fn memory(&self) -> usize {
        let pool = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.memory + pool.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }

    fn backend(&self) -> &'static str {
        "llguidance"
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

struct State {
    shared: Arc<Shared>,
    /// Taken out only when dropped.
    parser: Option<TokenParser>,
    /// Tokens that the parser has taken: all but an end token that ends the answer.
    taken: Vec<u32>,
    ended: bool,
    /// Looking ahead has failed, and is not tried again.
    blind: bool,
    /// llguidance has given up, and why: the answer may only end.
    broken: Option<String>,
    /// The last completion that was found.
    completion: Option<Completion>,
}

#[derive(Clone)]
struct Completion {
    /// Tokens of single bytes, and special tokens.
    path: Vec<u32>,
    /// Whether the answer has followed it since; otherwise it may still complete the answer, which has to be checked.
    holds: bool,
}

impl State {
    fn parser(&mut self) -> &mut TokenParser {
        self.parser.as_mut().expect("it is there until the state is dropped")
    }

    fn done(&self) -> bool {
        self.ended || self.broken.is_some() || self.parser.as_ref().is_none_or(TokenParser::stopped)
    }

    /// Runs `work` on the parser; if it fails, None, and the answer may only end.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Option<T> {
        let parser = self.parser();
        match guarded(|| work(parser)) {
            Ok(value) => Some(value),
            Err(error) => {
                self.broken.get_or_insert_with(|| readable(&error));
                None
            }
        }
    }

    /// A completion of the answer: the last one if it still is one, else what a search finds.
    fn completion(&mut self, budget: &mut Budget) -> Option<Vec<u32>> {
        let known = self.completion.take();
        if let Some(known) = known.as_ref().filter(|known| known.holds) {
            self.completion = Some(known.clone());
            return Some(known.path.clone());
        }
        let path = match known {
            Some(known) if self.ahead(|parser| Ok(closing::completes(parser, &known.path, budget)))? => {
                Some(known.path)
            }
            _ => self.search(budget)?,
        };
        self.completion = path.clone().map(|path| Completion { path, holds: true });
        path
    }

    /// Searches a completion; that of the empty answer is shared.
    fn search(&mut self, budget: &mut Budget) -> Option<Option<Vec<u32>>> {
        let shared = self.shared.clone();
        let fresh = self.taken.is_empty();
        if let Some(found) = shared.shortest.get().filter(|_| fresh) {
            return Some(found.clone());
        }
        let found =
            self.ahead(|parser| Ok(closing::shortest(parser, &shared.tokens, &shared.marks, budget)))?;
        if fresh && (found.is_some() || !budget.is_spent()) {
            return Some(shared.shortest.get_or_init(|| found).clone());
        }
        Some(found)
    }

    /// Looks ahead with the parser; `work` leaves it as it was. If that fails, None, and it is never tried again: the
    /// answer itself may never reach the text at which llguidance gave up.
    fn ahead<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Option<T> {
        if self.blind {
            return None;
        }
        let parser = self.parser();
        let result = guarded(|| {
            let value = work(parser)?;
            match parser.parser.get_error() {
                Some(error) => Err(anyhow::anyhow!(error.message())),
                None => Ok(value),
            }
        });
        if result.is_err() {
            self.blind = true;
            self.rebuild();
        }
        result.ok()
    }

    /// Replaces a parser that has given up by a new one with a new lexer.
    fn rebuild(&mut self) {
        self.parser = Some(self.shared.base.lock().unwrap_or_else(PoisonError::into_inner).deep_clone());
        let taken = std::mem::take(&mut self.taken);
        self.attempt(|parser| {
            for token in &taken {
                parser.consume_token(*token)?;
                parser.check_stop()?;
            }
            Ok(())
        });
        self.taken = taken;
    }
}

impl Grammar for State {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        let set = if self.done() { None } else { self.attempt(TokenParser::compute_mask) };
        let tokens = &self.shared.tokens;
        let size = tokens.vocab_size();
        let may_end = match set {
            None => {
                mask.fill(0);
                true
            }
            Some(set) => {
                let words = set.as_slice();
                let common = words.len().min(mask.len());
                mask[..common].copy_from_slice(&words[..common]);
                mask[common..].fill(0);
                if let Some(word) = mask.get_mut(size / 32) {
                    *word &= !(1 << (size % 32));
                }
                set.is_allowed(size as u32)
            }
        };
        if may_end {
            for token in tokens.end_tokens() {
                mask[*token as usize / 32] |= 1 << (token % 32);
            }
        }
    }

    fn advance(&mut self, token: u32) -> bool {
        let end = self.shared.tokens.end_tokens().binary_search(&token).is_ok();
        if self.ended || token as usize >= self.shared.tokens.vocab_size() {
            return false;
        }
        if self.done() {
            self.ended = end;
            return end;
        }
        let taken = self.attempt(|parser| {
            if !parser.validate_token(token)? {
                return Ok(false);
            }
            let back = parser.consume_token(token)?;
            anyhow::ensure!(back == 0, "nothing is ever taken back here");
            parser.check_stop()?;
            Ok(true)
        });
        match taken {
            Some(true) => {
                self.taken.push(token);
                if let Some(known) = &mut self.completion {
                    match closing::behind(&known.path, token, &self.shared.tokens).filter(|_| known.holds) {
                        Some(count) => drop(known.path.drain(..count)),
                        None => known.holds = false,
                    }
                }
                true
            }
            Some(false) if end => {
                self.ended = self.attempt(|parser| Ok(parser.is_accepting())).unwrap_or(false);
                self.ended
            }
            _ => false,
        }
    }

    fn roll_back(&mut self, mut tokens: usize) {
        if tokens > 0 && self.ended {
            self.ended = false;
            tokens -= 1;
        }
        let tokens = tokens.min(self.taken.len());
        if tokens > 0 {
            if let Some(known) = &mut self.completion {
                known.holds = false;
            }
            self.taken.truncate(self.taken.len() - tokens);
            self.attempt(|parser| {
                parser.rollback(tokens)?;
                // The cache is keyed by lexer state and row, which may now belong to other text.
                parser.invalidate_bias_cache();
                Ok(())
            });
        }
    }

    fn is_terminated(&self) -> bool {
        self.done()
    }

    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>) {
        if self.done() {
            return;
        }
        let tokens = self.shared.tokens.clone();
        out.extend(self.ahead(|parser| forced::spelled(parser, &tokens, limit)).unwrap_or_default());
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        if self.done() {
            return self.broken.is_none().then(Vec::new);
        }
        let path = self.completion(&mut Budget::new())?;
        let spelled = closing::spelled(&path, &self.shared.tokens);
        (spelled.len() <= limit).then_some(spelled)
    }

    fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let Some(mut parser) = self.parser.take() else { return };
        if self.broken.is_some() || std::thread::panicking() {
            return;
        }
        let rewound = guarded(|| {
            parser.rollback(self.taken.len())?;
            parser.invalidate_bias_cache();
            let bytes = parser.parser.lexer_stats().num_bytes;
            Ok((parser, bytes))
        });
        if let Ok((parser, bytes)) = rewound
            && bytes <= MAX_POOLED_BYTES
        {
            let mut pool = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner);
            if pool.len() < MAX_POOLED {
                pool.push((parser, bytes));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
