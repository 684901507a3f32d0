//! Searches a short text that completes an answer, for requests near their token limit.
//!
//! ```text
//!  {"a": [1, {"b": "te      forced text is followed; else each of a few parsers tries closing quotes and
//!   ► " ► } ► ] ► }         brackets first, then the beginnings of short values, one byte at a time
//! ```
//!
//! First a beam search for a short completion. If that takes too many tries, a greedy search for any completion: it tries
//! the fixed texts of the grammar, once each, then closing quotes and brackets, then the byte that it has taken least
//! often, so that it leaves every repetition.
//!
//! O([`MAX_WORK`]) bytes and Earley items, so a search may fail where a longer one would not. They are counted, not timed:
//! the same answer is closed alike on every machine. The beam search has half of them, the greedy search the rest.

use std::collections::VecDeque;

use crate::grammar::backends::forced::{self, Step};
use crate::grammar::backends::parser::Parser;
use crate::grammar::context::Tokens;

/// How much one search may do, as it holds up every other answer: about two milliseconds.
const MAX_WORK: usize = 10_000;
/// The cost of copying a parser.
const CLONE_COST: usize = 8;
/// How many parsers go on from one step to the next.
const WIDTH: usize = 4;
/// How many tokens the beam search tries in all.
const MAX_TRIES: usize = 3_000;
/// The longest path, in bytes.
const MAX_PATH: usize = 2_000;
/// How many continuations are followed from one parser.
const MAX_BRANCHES: usize = 4;

/// The bytes to try, best first; the first that is allowed costs one, the next two. 0xff stands for the special tokens.
const FIRST: &[u8] = b"\"}])>Z0@\xffnfat'{[:,. ;=-/1e+_( \n<";
/// How many of them close something.
const CLOSERS: usize = 5;
/// How often the same closer is tried in a row.
const MAX_CLOSED: usize = 4;
/// How many fixed texts are tried.
const MAX_MARKS: usize = 64;

/// A parser, and the tokens by which it came there.
struct Path {
    parser: Parser,
    path: Vec<u32>,
    price: usize,
}

/// Fixed texts in tokens of single bytes, and special ones.
pub(crate) fn marks(texts: &[String], tokens: &Tokens) -> Vec<Vec<u32>> {
    let bytes = |text: &str| text.bytes().map_while(|byte| tokens.byte_token(byte)).collect::<Vec<u32>>();
    let spelled = |text: &String| {
        let (mut out, mut at) = (Vec::new(), 0);
        for (range, special) in tokens.find_special(text) {
            out.extend(bytes(&text[at..range.start]));
            out.push(special);
            at = range.end;
        }
        out.extend(bytes(&text[at..]));
        out
    };
    texts.iter().filter(|text| !text.is_empty()).take(MAX_MARKS).map(spelled).collect()
}

/// The work left to one search. A tried byte costs one, and so does each Earley item that this makes.
///
/// The lexer's work is not counted, as it depends on which of its states earlier texts have built.
pub(crate) struct Budget {
    work: usize,
    spent: bool,
}

impl Budget {
    /// The budget of one search.
    pub(crate) fn new() -> Self {
        Self { work: MAX_WORK, spent: false }
    }

    /// Whether it ran out; then a completion may exist that was not found.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent
    }

    fn spend(&mut self, work: usize) {
        self.spent |= work > self.work;
        self.work = self.work.saturating_sub(work);
    }

    /// Asks `parser` about one byte, or as many as `question` says; None where the budget is spent.
    fn ask<T>(
        &mut self,
        parser: &mut Parser,
        question: impl FnOnce(&mut Parser, &mut usize) -> T,
    ) -> Option<T> {
        self.spend(1);
        if self.spent {
            return None;
        }
        let (before, mut tried) = (parser.items(), 0);
        let answer = question(parser, &mut tried);
        self.spend(tried + parser.items() - before);
        Some(answer)
    }

    /// Takes a half of it.
    fn half(&mut self) -> Self {
        let work = self.work / 2;
        self.work -= work;
        Self { work, spent: self.spent }
    }

    fn allows(&mut self, parser: &mut Parser, token: u32) -> bool {
        self.ask(parser, |parser, _| parser.count(&[token]).is_ok_and(|count| count > 0)).unwrap_or(false)
    }

    fn take(&mut self, parser: &mut Parser, token: u32) -> Option<()> {
        self.ask(parser, |parser, _| parser.take(token).ok())?.filter(|taken| *taken).map(|_| ())
    }

    fn clone_of(&mut self, parser: &Parser) -> Option<Parser> {
        self.spend(CLONE_COST);
        (!self.spent).then(|| parser.fork())
    }
}

/// Tokens of single bytes, and special ones, that complete the answer.
pub(crate) fn shortest(
    parser: &Parser,
    tokens: &Tokens,
    marks: &[Vec<u32>],
    budget: &mut Budget,
) -> Option<Vec<u32>> {
    let candidates = candidates(tokens);
    let mut half = budget.half();
    let short = beam(parser, tokens, &candidates, &mut half);
    budget.work += half.work;
    let found = short.or_else(|| greedy(parser, tokens, &candidates, marks, budget));
    budget.spent |= half.spent && found.is_none();
    found
}

fn beam(parser: &Parser, tokens: &Tokens, candidates: &[u32], budget: &mut Budget) -> Option<Vec<u32>> {
    let mut beam = vec![Path { parser: budget.clone_of(parser)?, path: Vec::new(), price: 0 }];
    let mut tries = 0;
    while !beam.is_empty() && tries <= MAX_TRIES {
        let mut next: Vec<(usize, u32, usize)> = Vec::new();
        for (at, way) in beam.iter_mut().enumerate() {
            if !way.follow(tokens, budget) {
                continue;
            }
            if way.parser.is_accepting().unwrap_or(false) {
                return Some(std::mem::take(&mut way.path));
            }
            let mut ways = 0;
            for token in candidates {
                tries += 1;
                if tries > MAX_TRIES || ways == MAX_BRANCHES || budget.is_spent() {
                    break;
                }
                if budget.allows(&mut way.parser, *token) {
                    ways += 1;
                    next.push((at, *token, way.price + ways));
                }
            }
        }
        next.sort_by_key(|(_, _, price)| *price);
        next.truncate(WIDTH);
        beam = next
            .into_iter()
            .filter_map(|(at, token, price)| beam[at].extended(token, price, budget))
            .collect();
    }
    None
}

fn greedy(
    parser: &Parser,
    tokens: &Tokens,
    candidates: &[u32],
    marks: &[Vec<u32>],
    budget: &mut Budget,
) -> Option<Vec<u32>> {
    let mut way = Path { parser: budget.clone_of(parser)?, path: Vec::new(), price: 0 };
    let (closers, others) = candidates.split_at(CLOSERS.min(candidates.len()));
    // The least used first, those used as often in their order.
    let mut others: VecDeque<u32> = others.iter().copied().collect();
    let mut marks: Vec<&[u32]> = marks.iter().map(Vec::as_slice).collect();
    while way.path.len() < MAX_PATH && way.follow(tokens, budget) {
        if way.parser.is_accepting().unwrap_or(false) {
            return Some(way.path);
        }
        let Path { parser, path, .. } = &mut way;
        let mut fits = |mark: &&[u32]| {
            let matched = budget.ask(parser, |parser, tried| {
                *tried += mark.len();
                parser.count(mark).unwrap_or(0)
            });
            matched == Some(mark.len())
        };
        if let Some(at) = marks.iter().position(&mut fits) {
            way.take(marks.remove(at), budget)?;
            continue;
        }
        let closed = |token: u32| path.iter().rev().take_while(|taken| **taken == token).count();
        let overused: Vec<u32> =
            closers.iter().copied().filter(|closer| closed(*closer) >= MAX_CLOSED).collect();
        let mut allowed = |token: &u32| budget.allows(parser, *token);
        let token = match closers.iter().find(|token| !overused.contains(token) && allowed(token)) {
            Some(token) => *token,
            None => match others.iter().position(&mut allowed).and_then(|at| others.remove(at)) {
                Some(token) => {
                    others.push_back(token);
                    token
                }
                None => *closers.iter().find(|token| allowed(token))?,
            },
        };
        way.take(&[token], budget)?;
    }
    None
}

/// Whether the answer is complete after `path`.
pub(crate) fn completes(parser: &Parser, path: &[u32], budget: &mut Budget) -> bool {
    let Some(mut parser) = budget.clone_of(parser) else { return false };
    path.iter().all(|token| budget.allows(&mut parser, *token) && budget.take(&mut parser, *token).is_some())
        && parser.is_accepting().unwrap_or(false)
}

impl Path {
    /// Follows the forced text; false if that cannot be written, or not within the budget.
    fn follow(&mut self, tokens: &Tokens, budget: &mut Budget) -> bool {
        while self.path.len() < MAX_PATH {
            let id = match budget.ask(&mut self.parser, |parser, tried| forced::next(parser, tried)) {
                Some(Ok(None)) => return true,
                Some(Ok(Some(Step::Special(token)))) => Some(token),
                Some(Ok(Some(Step::Byte(byte)))) => tokens.byte_token(byte),
                Some(Err(_)) | None => None,
            };
            if id.and_then(|id| self.take(&[id], budget)).is_none() {
                return false;
            }
        }
        false
    }

    fn take(&mut self, tokens: &[u32], budget: &mut Budget) -> Option<()> {
        for token in tokens {
            budget.take(&mut self.parser, *token)?;
            self.path.push(*token);
        }
        Some(())
    }

    fn extended(&self, token: u32, price: usize, budget: &mut Budget) -> Option<Self> {
        let (mut parser, mut path) = (budget.clone_of(&self.parser)?, self.path.clone());
        budget.take(&mut parser, token)?;
        path.push(token);
        Some(Self { parser, path, price })
    }
}

/// Tokens of single bytes and special tokens, best first.
fn candidates(tokens: &Tokens) -> Vec<u32> {
    let mut bytes: Vec<u8> = FIRST.to_vec();
    bytes.extend((0..=255).filter(|byte| !FIRST.contains(byte)));
    let mut out = Vec::with_capacity(300);
    for byte in bytes {
        if byte == 0xff {
            out.extend(tokens.special().iter().map(|(_, token)| *token).take(64));
        }
        out.extend(tokens.byte_token(byte));
    }
    out
}

/// A path in the tokenizer's own tokens.
pub(crate) fn spelled(path: &[u32], tokens: &Tokens) -> Vec<u32> {
    let mut out = Vec::new();
    let mut text = Vec::new();
    for token in path {
        let bytes = tokens.text_bytes(*token);
        if bytes.is_empty() {
            tokens.tokenize(&text, &mut out);
            text.clear();
            out.push(*token);
        }
        text.extend_from_slice(bytes);
    }
    tokens.tokenize(&text, &mut out);
    out
}

/// How many steps of a path `token` covers, if the path begins with its bytes.
pub(crate) fn behind(path: &[u32], token: u32, tokens: &Tokens) -> Option<usize> {
    let mut left = tokens.text_bytes(token);
    if left.is_empty() {
        return path.first().filter(|first| **first == token).map(|_| 1);
    }
    for (at, step) in path.iter().enumerate() {
        if left.is_empty() {
            return Some(at);
        }
        let bytes = tokens.text_bytes(*step);
        left = if bytes.is_empty() { None } else { left.strip_prefix(bytes) }?;
    }
    left.is_empty().then_some(path.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::Compiled;
    use crate::grammar::backends::llguidance::tests::from_schema;
    use crate::grammar::context::tests::small;

    fn search(schema: serde_json::Value, work: usize) -> (Option<Vec<u32>>, usize, bool) {
        let tokens = small(&[]);
        search_with(&from_schema(&tokens, schema).parser(), &tokens, work)
    }

    fn search_with(parser: &Parser, tokens: &Tokens, work: usize) -> (Option<Vec<u32>>, usize, bool) {
        let mut budget = Budget { work, spent: false };
        let found = shortest(parser, tokens, &[], &mut budget);
        (found, work - budget.work, budget.is_spent())
    }

    fn costly() -> serde_json::Value {
        let hex = serde_json::json!({"type": "string", "pattern": "^[0-9a-f]*$", "minLength": 40});
        serde_json::json!({"type": "array", "items": hex, "minItems": 20})
    }

    #[test]
    fn a_search_ends_with_its_budget() {
        let (found, work, spent) = search(costly(), 100);
        assert!(found.is_none() && work > 90 && spent, "{work}");
        assert_eq!(search(costly(), 0), (None, 0, true));
        let (found, work, spent) = search(serde_json::json!({"type": "object"}), MAX_WORK);
        assert_eq!((found.map(|path| path.len()), spent), (Some(2), false));
        assert!(0 < work && work < MAX_WORK / 10, "{work}");
    }

    /// Earlier work makes a lexer faster, but changes neither the counted work nor the result.
    #[test]
    fn the_same_work_finds_the_same_whatever_is_known() {
        for schema in [serde_json::json!({"type": "object", "minProperties": 2}), costly()] {
            let tokens = small(&[]);
            let parser = from_schema(&tokens, schema).parser();
            let all = search_with(&parser, &tokens, MAX_WORK);
            for work in [0, 1, 10, 100, 1_000, 10_000] {
                let first = search_with(&parser, &tokens, work);
                assert_eq!(search_with(&parser, &tokens, work), first);
            }
            assert_eq!(search_with(&parser, &tokens, MAX_WORK), all);
        }
    }

    #[test]
    fn a_larger_budget_may_find_more() {
        let tokens = small(&[]);
        let grammar = from_schema(&tokens, serde_json::json!({"type": "object"}));
        let none = || Budget { work: 0, spent: false };
        assert_eq!(grammar.closing_within(none()), None);
        assert_eq!(grammar.start().closing_tokens(10).map(|tokens| tokens.len()), Some(2));
    }
}
