//! The llguidance backend: JSON Schemas, context-free grammars, and regexes that are too large for a table.
//!
//! ```text
//!  description ─ llguidance's compiler ─► rules, lexemes ─► automaton ◄── parsers of all requests
//!                                                              └─ full, or given up: the next request gets a new one
//! ```
//!
//! llguidance compiles; [`parser`](super::parser) follows. Every call is guarded: if one panics or goes beyond the limits,
//! and does so in a new automaton, too, the answer may only end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{anyhow, ensure};
use llguidance::Logger;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::CGrammar;

use crate::backends::parser::{Automaton, Parser, SkippedOnce};
use crate::backends::{closing, forced};
use crate::context::{Step, Tokens, limits};
use crate::lowering::Lowered;
use crate::lowering::description::whole;
use pyengine_base::error::panic_message;
use pyengine_grammar::masks::Mask;
use pyengine_grammar::{Compiled, Grammar, Refusal};

/// Items in a row of the parser that any grammar may have; an object of two thousand optional keys has 5,000.
const MAX_ITEMS: usize = 8_000;
/// An answer is parsed again where it moves to a new automaton: it moves once it has this many tokens, again when it has
/// twice as many, and no more beyond the limit, for every stream waits meanwhile.
const MOVED_AFTER: usize = 256;
const MOVED_WITHIN: usize = 4_096;
/// With room for this many tokens a byte of a completion, and this many besides, it is not asked for: where lexemes are in
/// each other's way it may be longer.
const FAR: usize = 2;
const ROOM: usize = 64;
/// The white space of llguidance's JSON, and ours, that comes once between two lexemes.
const WHITE_SPACE: [&str; 2] = [r"[\x20\x0A\x0D\x09]+", r"[ \t\r\n]{1,32}"];

/// The refusal of a grammar without a whole text.
const NEVER_ENDS: &str = "no text that it allows ever ends; each rule needs an option without itself, and a part that \
    repeats, which takes as much text as it can, must leave what follows it";

/// A grammar that llguidance has compiled.
pub(crate) struct Llguidance {
    shared: Arc<Shared>,
    warnings: Vec<String>,
}

struct Shared {
    tokens: Arc<Tokens>,
    grammar: Arc<CGrammar>,
    limits: ParserLimits,
    once: SkippedOnce,
    /// The automaton of the next request.
    automaton: Mutex<Arc<Automaton>>,
    /// Bytes besides the automaton.
    memory: usize,
}

impl Shared {
    /// The automaton of the next request: a new one if the last was retired.
    fn automaton(&self) -> anyhow::Result<Arc<Automaton>> {
        let mut automaton = self.automaton.lock().unwrap_or_else(PoisonError::into_inner);
        if automaton.is_retired() {
            *automaton = Arc::new(Automaton::new(&self.tokens, &self.grammar, &self.limits, &self.once)?);
        }
        Ok(automaton.clone())
    }
}

impl Llguidance {
    /// Compiles a lowered description.
    ///
    /// # Errors
    /// Why llguidance refuses the grammar.
    pub(crate) fn compile(
        tokens: &Arc<Tokens>,
        lowered: Lowered,
        mut warnings: Vec<String>,
    ) -> Result<Self, Refusal> {
        // Schemas are in normal form, which tells where no value ends.
        let (length, once, may_never_end) = match &lowered {
            Lowered::Json(schema) => {
                (schema.to_string().len(), SkippedOnce { own: true, ..SkippedOnce::default() }, false)
            }
            Lowered::Lark(source) => (source.len(), skipped_once(source), !source.contains("%json")),
        };
        let description = match lowered {
            Lowered::Json(schema) => TopLevelGrammar::from_json_schema(schema),
            Lowered::Lark(source) => TopLevelGrammar::from_lark(source),
        };
        let mut limits = limits();
        limits.max_items_in_row = max_items(length);
        let compiled = guarded(|| {
            let (init, mut logger) = (GrammarInit::Serialized(description), Logger::new(0, 0));
            let environment = Some(tokens.environment());
            let grammar = init.to_cgrammar(environment, &mut logger, limits.clone(), Vec::new())?;
            let spec = grammar.lexer_spec();
            ensure!(!spec.has_stop && !spec.has_max_tokens, "`stop` and `max_tokens` are not supported");
            let automaton = Arc::new(Automaton::new(tokens, &grammar, &limits, &once)?);
            automaton.prepare()?;
            let parser = Parser::new(&automaton);
            if !parser.is_over() {
                // Without a first token no text matches.
                parser.mask()?;
                ensure!(!may_never_end || !parser.never_ends()?, NEVER_ENDS);
            }
            // Where that fails, the first request gets another.
            let _ = automaton.look_ahead();
            Ok((grammar, automaton))
        });
        let (grammar, automaton) = compiled.map_err(|error| whole(readable(&error)))?;
        warnings.extend(grammar.lexer_spec().render_warnings());
        let shared = Shared {
            tokens: tokens.clone(),
            limits,
            once,
            automaton: Mutex::new(automaton),
            // Estimates the rules and symbols beside the lexer.
            memory: 8 * length + (16 << 10),
            grammar,
        };
        Ok(Self { shared: Arc::new(shared), warnings })
    }

    /// At the beginning of a text.
    pub(super) fn parser(&self) -> Parser {
        Parser::new(&self.shared.automaton.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn state(&self) -> State {
        let mut state = State {
            shared: self.shared.clone(),
            parser: self.parser(),
            taken: Vec::new(),
            moved: 0,
            ended: false,
            blind: false,
            broken: None,
            completion: None,
        };
        if state.parser.is_retired() {
            state.rebuild();
        }
        state
    }
}

/// Whether an answer that has `taken` tokens, and had `moved` when it last moved, moves on from a retired automaton.
fn may_move(taken: usize, moved: usize) -> bool {
    (MOVED_AFTER.max(2 * moved)..=MOVED_WITHIN).contains(&taken)
}

/// What Lark skips once: the white space of JSON, and its own where it says so.
fn skipped_once(source: &str) -> SkippedOnce {
    let said = |key: &str| {
        let after = source.split(key).skip(1);
        after.filter_map(|rest| rest.trim_start().strip_prefix(':').map(str::trim_start)).collect::<Vec<_>>()
    };
    let mut patterns = Vec::new();
    if source.contains("%json") {
        patterns.extend(WHITE_SPACE.map(str::to_owned));
        for text in said("\"whitespace_pattern\"") {
            patterns.extend(
                serde_json::Deserializer::from_str(text).into_iter::<String>().next().and_then(Result::ok),
            );
        }
    }
    SkippedOnce { patterns, own: said("\"ignore_once\"").iter().any(|value| value.starts_with("true")) }
}

/// How many items a row of the parser may have, by the bytes of its grammar: a small one that needs many is
/// ambiguous, and each of its tokens costs the square of them.
fn max_items(length: usize) -> usize {
    (2_000 + length / 2).min(MAX_ITEMS)
}

/// What llguidance says where it gives up, and what is to be done about it.
const GIVEN_UP: [(&str, &str); 5] = [
    (
        "Unable to determine if regex is empty",
        "its patterns, formats and lengths are too much together; write fewer or simpler ones, or shorter lengths",
    ),
    // It numbers them with 16 bits.
    ("symbols.len() < u16::MAX", "it has too many parts; write fewer tools, schemas and properties"),
    ("schema too large", "it has too many parts; write fewer, or fewer and smaller constants"),
    ("too big (limit for this grammar", "it is too large; write fewer or simpler patterns, texts and parts"),
    ("fuel exhausted", "its patterns take too much work; write fewer or simpler ones"),
];

/// llguidance's message, without the parts for its logs.
fn readable(error: &anyhow::Error) -> String {
    let text = error.to_string();
    if let Some((_, advice)) = GIVEN_UP.iter().find(|(said, _)| text.contains(said)) {
        return (*advice).to_owned();
    }
    let text = text.split("<backtrace>").next().unwrap_or_default();
    text.replace("\n<non-verbose/>", "").trim_end().to_owned()
}

fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let panicked =
        |panic: Box<dyn Any + Send>| Err(anyhow!("llguidance panicked: {}", panic_message(&*panic)));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

impl Compiled for Llguidance {
    fn start(&self) -> Box<dyn Grammar> {
        Box::new(self.state())
    }

    fn warm(&self, stop: &dyn Fn() -> bool) {
        let automaton = self.shared.automaton.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Where that fails, the first request fails likewise, and says so.
        let _ = guarded(|| automaton.warm(stop));
    }

    fn memory(&self) -> usize {
        self.shared.memory + self.shared.automaton.lock().unwrap_or_else(PoisonError::into_inner).memory()
    }

    fn backend(&self) -> &'static str {
        "llguidance"
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Appends the tokens of a text.
type Split = fn(&Tokens, &[u8], &mut Vec<u32>);

struct State {
    shared: Arc<Shared>,
    parser: Parser,
    /// Tokens that the parser has taken: all but an end token that ends the answer.
    taken: Vec<u32>,
    /// How many there were when it moved to its automaton.
    moved: usize,
    ended: bool,
    /// Looking ahead has failed, and is not tried again.
    blind: bool,
    /// The parser has given up, and why: the answer may only end.
    broken: Option<String>,
    /// The completion that was found, as long as the answer follows it.
    completion: Option<Vec<Step>>,
}

impl State {
    fn done(&self) -> bool {
        self.ended || self.broken.is_some() || self.parser.is_over()
    }

    /// Runs `work` on the parser, if need be once more in a new automaton; if it fails, None, and the answer may only end.
    fn attempt<T>(&mut self, mut work: impl FnMut(&mut Parser) -> anyhow::Result<T>) -> Option<T> {
        let mut result = guarded(|| work(&mut self.parser));
        if result.is_err() && self.parser.is_retired() {
            self.rebuild();
            result = guarded(|| work(&mut self.parser));
        }
        result.map_err(|error| self.give_up(&error)).ok()
    }

    fn give_up(&mut self, error: &anyhow::Error) {
        self.broken.get_or_insert_with(|| readable(error));
    }

    /// The shortest completion of the answer.
    fn completion(&mut self) -> Option<&[Step]> {
        if self.completion.is_none() {
            self.completion = self.ahead(Parser::completion)?;
        }
        self.completion.as_deref()
    }

    /// The tokens of the completion by the first of some ways to split texts that gives at most `limit`.
    fn spelled_within(&mut self, limit: usize, ways: [Split; 2]) -> Option<Vec<u32>> {
        let tokens = self.shared.tokens.clone();
        let path = self.completion()?;
        ways.iter().map(|split| tokens.spelled_by(path, *split).0).find(|spelled| {
            // A vocabulary may lack tokens for some texts; a special token is one step.
            let steps: usize = spelled.iter().map(|token| tokens.text_bytes(*token).len().max(1)).sum();
            steps == path.len() && spelled.len() <= limit
        })
    }

    /// Looks ahead with the parser; `work` leaves it as it was. If that fails, None, and it is never tried again: the
    /// answer itself may never reach the text at which llguidance gave up.
    fn ahead<T>(&mut self, work: impl FnOnce(&Parser) -> anyhow::Result<T>) -> Option<T> {
        if self.blind {
            return None;
        }
        let result = guarded(|| work(&self.parser));
        self.blind = result.is_err();
        result.ok()
    }

    /// Parses the answer again, in the automaton of the next request.
    fn rebuild(&mut self) {
        let rebuilt = guarded(|| {
            let mut parser = Parser::new(&self.shared.automaton()?);
            for token in &self.taken {
                ensure!(parser.take(*token)?, "the answer does not fit its grammar");
            }
            Ok(parser)
        });
        self.moved = self.taken.len();
        match rebuilt {
            Ok(parser) => self.parser = parser,
            Err(error) => self.give_up(&error),
        }
    }
}

impl Grammar for State {
    fn mask(&mut self) -> Arc<Mask> {
        let mask = if self.done() { None } else { self.attempt(|parser| parser.counted_mask()) };
        mask.unwrap_or_else(|| self.shared.tokens.end_mask().clone())
    }

    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        if self.done() { Some(self.mask()) } else { self.parser.known_mask() }
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
        if self.parser.is_retired() && may_move(self.taken.len(), self.moved) {
            self.rebuild();
        }
        match self.attempt(|parser| parser.take(token)) {
            Some(true) => {
                self.taken.push(token);
                if let Some(mut known) = self.completion.take()
                    && let Some(count) = closing::behind(&known, token, &self.shared.tokens)
                {
                    known.drain(..count);
                    self.completion = Some(known);
                }
                true
            }
            Some(false) if end => {
                self.ended = self.attempt(|parser| parser.is_accepting()).unwrap_or(false);
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
            self.completion = None;
            self.taken.truncate(self.taken.len() - tokens);
            self.parser.roll_back(tokens);
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
        self.spelled_within(limit, [Tokens::tokenize, Tokens::fewest])
    }

    fn closes_within(&mut self, limit: usize) -> bool {
        if self.done() {
            return self.broken.is_none();
        }
        let bytes = self.ahead(Parser::bytes_to_end).flatten();
        bytes.is_some_and(|bytes| FAR * bytes as usize + ROOM <= limit)
            || self.spelled_within(limit, [Tokens::longest, Tokens::fewest]).is_some()
    }

    fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

#[cfg(test)]
pub(crate) mod tests;
