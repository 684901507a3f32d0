//! A short text that completes an answer, for where the budget of tokens runs out.
//!
//! ```text
//!  {"a": [1, {"b": "te      what is forced is followed; else each of a few parsers tries closing quotes and
//!   ► " ► } ► ] ► }         brackets first, then the beginnings of short values, one byte at a time
//! ```
//!
//! A beam search: the cheapest few ways go on. Where that takes too many tries, one way that is not the shortest: the
//! fixed texts of the grammar, once each; then closing quotes and brackets; else the byte that it has taken least often,
//! so that it gets out of every repetition. The work is bounded, so that it may fail where a longer search would not.

use std::collections::VecDeque;

use llguidance::TokenParser;

use super::context::Tokens;
use super::llguidance::{Segment, segments};

/// How many parsers go on from one step to the next.
const WIDTH: usize = 4;
/// How many tokens the beam tries in all.
const MOST_TRIES: usize = 3_000;
/// How many bytes the one way may have.
const LONGEST: usize = 2_000;
/// How many ways on are followed from one parser.
const MOST_WAYS: usize = 4;

/// What is tried, best first; the first that may come costs one, the next two. 0xff stands for the special tokens.
const FIRST: &[u8] = b"\"}])>Z0@\xffnfat'{[:,. ;=-/1e+_( \n<";
/// How many of them close something.
const CLOSERS: usize = 5;
/// How often the same closes something without a break.
const MOST_CLOSED: usize = 4;
/// How many fixed texts are tried.
const MOST_MARKS: usize = 64;

/// One way so far.
struct Way {
    parser: TokenParser,
    path: Vec<u32>,
    price: usize,
}

/// Fixed texts in tokens of single bytes, and special ones.
pub(super) fn marks(texts: &[String], tokens: &Tokens) -> Vec<Vec<u32>> {
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
    texts.iter().filter(|text| !text.is_empty()).take(MOST_MARKS).map(spelled).collect()
}

/// Tokens of single bytes, and special ones, that complete the answer.
pub(super) fn shortest(parser: &TokenParser, tokens: &Tokens, marks: &[Vec<u32>]) -> Option<Vec<u32>> {
    let candidates = candidates(tokens);
    // With a lexer of its own: what this costs is not charged to the answer's.
    let parser = parser.deep_clone();
    beam(&parser, tokens, &candidates).or_else(|| some_way(&parser, tokens, &candidates, marks))
}

fn beam(parser: &TokenParser, tokens: &Tokens, candidates: &[u32]) -> Option<Vec<u32>> {
    let mut beam = vec![Way { parser: parser.clone(), path: Vec::new(), price: 0 }];
    let mut tries = 0;
    while !beam.is_empty() && tries <= MOST_TRIES {
        let mut next: Vec<(usize, u32, usize)> = Vec::new();
        for (at, way) in beam.iter_mut().enumerate() {
            if !way.follow(tokens) {
                continue;
            }
            if way.parser.is_accepting() {
                return Some(std::mem::take(&mut way.path));
            }
            let mut ways = 0;
            for token in candidates {
                tries += 1;
                if tries > MOST_TRIES || ways == MOST_WAYS {
                    break;
                }
                if way.parser.validate_token(*token).unwrap_or(false) {
                    ways += 1;
                    next.push((at, *token, way.price + ways));
                }
            }
        }
        next.sort_by_key(|(_, _, price)| *price);
        next.truncate(WIDTH);
        beam = next.into_iter().filter_map(|(at, token, price)| beam[at].grown(token, price)).collect();
    }
    None
}

fn some_way(
    parser: &TokenParser,
    tokens: &Tokens,
    candidates: &[u32],
    marks: &[Vec<u32>],
) -> Option<Vec<u32>> {
    let mut way = Way { parser: parser.clone(), path: Vec::new(), price: 0 };
    way.parser.invalidate_bias_cache();
    let (closers, others) = candidates.split_at(CLOSERS.min(candidates.len()));
    // The least used first, those used as often in their order.
    let mut others: VecDeque<u32> = others.iter().copied().collect();
    let mut marks: Vec<&[u32]> = marks.iter().map(Vec::as_slice).collect();
    while way.path.len() < LONGEST && way.follow(tokens) {
        if way.parser.is_accepting() {
            return Some(way.path);
        }
        let fits = |mark: &&[u32]| way.parser.validate_tokens_raw(mark).unwrap_or(0) == mark.len();
        if let Some(at) = marks.iter().position(fits) {
            way.take(marks.remove(at))?;
            continue;
        }
        let closed = |token: u32| way.path.iter().rev().take_while(|taken| **taken == token).count();
        let tired: Vec<u32> =
            closers.iter().copied().filter(|closer| closed(*closer) >= MOST_CLOSED).collect();
        let mut allowed = |token: &u32| way.parser.validate_token(*token).unwrap_or(false);
        let token = match closers.iter().find(|token| !tired.contains(token) && allowed(token)) {
            Some(token) => *token,
            None => match others.iter().position(&mut allowed).and_then(|at| others.remove(at)) {
                Some(token) => {
                    others.push_back(token);
                    token
                }
                None => *closers.iter().find(|token| allowed(token))?,
            },
        };
        way.take(&[token])?;
    }
    None
}

/// Whether the answer is complete after `path`.
pub(super) fn completes(parser: &TokenParser, path: &[u32]) -> bool {
    let mut parser = parser.clone();
    parser.invalidate_bias_cache();
    path.iter()
        .all(|token| parser.validate_token(*token).unwrap_or(false) && parser.consume_token(*token).is_ok())
        && parser.is_accepting()
}

impl Way {
    /// Takes what is forced; false if that cannot be written.
    fn follow(&mut self, tokens: &Tokens) -> bool {
        let forced = self.parser.force_bytes();
        for segment in segments(&forced) {
            let ids: Vec<Option<u32>> = match segment {
                Segment::Token(token) => vec![Some(token)],
                Segment::Text(text) => text.iter().map(|byte| tokens.byte_token(*byte)).collect(),
            };
            for id in ids {
                let Some(id) = id.filter(|id| self.parser.consume_token(*id).is_ok()) else { return false };
                self.path.push(id);
            }
        }
        true
    }

    fn take(&mut self, tokens: &[u32]) -> Option<()> {
        for token in tokens {
            self.parser.consume_token(*token).ok()?;
            self.path.push(*token);
        }
        Some(())
    }

    fn grown(&self, token: u32, price: usize) -> Option<Self> {
        let (mut parser, mut path) = (self.parser.clone(), self.path.clone());
        parser.invalidate_bias_cache();
        parser.consume_token(token).ok()?;
        path.push(token);
        Some(Self { parser, path, price })
    }
}

/// Single bytes, best first, with the special tokens where they are dear.
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
pub(super) fn spelled(path: &[u32], tokens: &Tokens) -> Vec<u32> {
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

/// What is left of a path behind `token`, if the path begins with its bytes.
pub(super) fn behind(path: &[u32], token: u32, tokens: &Tokens) -> Option<usize> {
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
