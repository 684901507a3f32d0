//! Grammars that llguidance drives: JSON Schemas, context-free grammars, and regexes that are too large for a table.
//!
//! ```text
//!  Compiled ─ base parser ─┬─ start: a parser of its own (its lexer's automaton is built as it goes)
//!                          └─ pool: parsers of answers that have ended, rewound, with what their lexers have built
//! ```
//!
//! A mask costs a walk over a trie of the vocabulary, cut short where a whole slice of it (white space, the inside of
//! JSON strings) is known to be allowed; the same lexer state twice in a row is a copy. Every call is guarded: if
//! llguidance panics or gives up on its limits, the answer may only end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::TokenParser;
use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{TokTrie, parse_numeric_token};

use super::closing;
use super::context::Tokens;
use super::description::refusal;
use super::lark::Lowered;
use super::{Compiled, Grammar, Refusal};

/// How many rewound parsers are kept.
const POOL: usize = 4;
/// A parser whose lexer holds more is not kept.
const LARGEST_KEPT: usize = 4 << 20;

/// A grammar of llguidance's.
pub struct Llguidance {
    shared: Arc<Shared>,
    warnings: Vec<String>,
}

struct Shared {
    tokens: Arc<Tokens>,
    base: Mutex<TokenParser>,
    /// Its fixed texts, in bytes and special tokens.
    marks: Vec<Vec<u32>>,
    /// A completion of the empty answer, once somebody has asked.
    shortest: OnceLock<Option<Vec<u32>>>,
    /// Rewound parsers, and about how many bytes each holds.
    pool: Mutex<Vec<(TokenParser, usize)>>,
    memory: usize,
}

impl Llguidance {
    /// Compiles a lowered description, in which `marks` are fixed texts.
    ///
    /// # Errors
    /// llguidance's reason not to.
    pub fn compile(
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
            let mut parser = tokens.factory().create_parser(grammar)?;
            parser.parser.rollback(0)?;
            parser.start_without_prompt();
            if !parser.check_stop()? {
                // What has no first token matches nothing; and what the first mask takes is ready for everybody.
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
        // About what the rules and symbols take beside the lexer.
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
}

/// llguidance's words, without what it leaves for its logs.
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
        let kept = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let parser = kept.map_or_else(
            || self.shared.base.lock().unwrap_or_else(PoisonError::into_inner).deep_clone(),
            |(parser, _)| parser,
        );
        Box::new(State {
            shared: self.shared.clone(),
            parser: Some(parser),
            taken: 0,
            ended: false,
            broken: None,
            completion: None,
        })
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
    taken: usize,
    ended: bool,
    /// llguidance has given up, and why: the answer may only end.
    broken: Option<String>,
    /// Bytes and special tokens, each a token, that completed the answer when they were looked for.
    completion: Option<Completion>,
}

#[derive(Clone)]
struct Completion {
    path: Vec<u32>,
    /// Whether it still does; otherwise something else has come, and it may do so nevertheless.
    holds: bool,
}

impl State {
    fn parser(&mut self) -> &mut TokenParser {
        self.parser.as_mut().expect("it is there until the state is dropped")
    }

    fn done(&self) -> bool {
        self.ended || self.broken.is_some() || self.parser.as_ref().is_none_or(TokenParser::stopped)
    }

    /// Runs `work` on the parser; None, and only an end may come, if it fails.
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

    /// Bytes that complete the answer: those known from before if they still do, else what a search finds.
    fn completion(&mut self) -> Option<Vec<u32>> {
        let known = self.completion.take();
        if let Some(known) = known.as_ref().filter(|known| known.holds) {
            self.completion = Some(known.clone());
            return Some(known.path.clone());
        }
        let (shared, taken) = (self.shared.clone(), self.taken);
        let parser = self.parser();
        // On copies of the parser: what fails there says nothing of the answer.
        let search =
            |parser: &TokenParser| guarded(|| Ok(closing::shortest(parser, &shared.tokens, &shared.marks)));
        let path = match known {
            Some(known) if guarded(|| Ok(closing::completes(parser, &known.path))).unwrap_or(false) => {
                Some(known.path)
            }
            _ if taken == 0 => shared.shortest.get_or_init(|| search(parser).ok().flatten()).clone(),
            _ => search(parser).ok().flatten(),
        };
        self.completion = path.clone().map(|path| Completion { path, holds: true });
        path
    }

    /// What is forced, and as tokens: text is tokenized and cut where a token could go on beyond it.
    fn forced(&mut self) -> Forced {
        if self.done() {
            return Forced::default();
        }
        let tokens = self.shared.tokens.clone();
        let forced = self.attempt(|parser| {
            let bytes = parser.force_bytes();
            if bytes.is_empty() {
                return Ok(Forced::default());
            }
            let mut forced = Forced::default();
            let mut last = 0;
            for segment in segments(&bytes) {
                match segment {
                    Segment::Token(token) => {
                        forced.text.extend(tokens.special_name(token).unwrap_or_default().bytes());
                        forced.tokens.push(token);
                        last = forced.tokens.len();
                    }
                    Segment::Text(text) => {
                        forced.text.extend_from_slice(text);
                        tokens.tokenize(text, &mut forced.tokens);
                    }
                }
            }
            let open = &forced.tokens[last..];
            let (cut, _) = parser.parser.with_recognizer(|at| tokens.trie().chop_tokens(at, open));
            forced.tokens.truncate(forced.tokens.len() - cut);
            // The parser stood behind the forced text; it goes back to where the tokens are.
            parser.parser.rollback(0)?;
            parser.invalidate_bias_cache();
            Ok(forced)
        });
        forced.unwrap_or_default()
    }
}

#[derive(Default)]
struct Forced {
    text: Vec<u8>,
    tokens: Vec<u32>,
}

/// A part of forced bytes.
pub(super) enum Segment<'a> {
    Text(&'a [u8]),
    Token(u32),
}

/// Takes forced bytes apart: llguidance writes a special token as a marker and `[id]`.
pub(super) fn segments(bytes: &[u8]) -> Vec<Segment<'_>> {
    let mut out = Vec::new();
    let mut left = bytes;
    while !left.is_empty() {
        let text = left.iter().position(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER).unwrap_or(left.len());
        if text > 0 {
            out.push(Segment::Text(&left[..text]));
            left = &left[text..];
            continue;
        }
        match (left.len() > 1).then(|| parse_numeric_token(&left[1..])).flatten() {
            Some((length, token)) => {
                out.push(Segment::Token(token));
                left = &left[1 + length..];
            }
            // The beginning of one that is not decided.
            None => break,
        }
    }
    out
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
                self.taken += 1;
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
        let tokens = tokens.min(self.taken);
        if tokens > 0 {
            if let Some(known) = &mut self.completion {
                known.holds = false;
            }
            self.taken -= tokens;
            self.attempt(|parser| {
                parser.rollback(tokens)?;
                // The cache knows a state by its lexer and its row, which may now be another's.
                parser.invalidate_bias_cache();
                Ok(())
            });
        }
    }

    fn is_terminated(&self) -> bool {
        self.done()
    }

    fn forced_text(&mut self) -> Vec<u8> {
        self.forced().text
    }

    fn forced_tokens(&mut self, out: &mut Vec<u32>) {
        out.extend(self.forced().tokens);
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        if self.done() {
            return self.broken.is_none().then(Vec::new);
        }
        let path = self.completion()?;
        let spelled = closing::spelled(&path, &self.shared.tokens);
        (spelled.len() <= limit).then_some(spelled)
    }

    fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn fork(&self) -> Box<dyn Grammar> {
        Box::new(Self {
            shared: self.shared.clone(),
            parser: self.parser.as_ref().map(TokenParser::deep_clone),
            broken: self.broken.clone(),
            completion: self.completion.clone(),
            ..*self
        })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let Some(mut parser) = self.parser.take() else { return };
        if self.broken.is_some() || std::thread::panicking() {
            return;
        }
        let rewound = guarded(|| {
            parser.rollback(self.taken)?;
            parser.invalidate_bias_cache();
            let bytes = parser.parser.lexer_stats().num_bytes;
            Ok((parser, bytes))
        });
        if let Ok((parser, bytes)) = rewound
            && bytes <= LARGEST_KEPT
        {
            let mut pool = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner);
            if pool.len() < POOL {
                pool.push((parser, bytes));
            }
        }
    }
}
