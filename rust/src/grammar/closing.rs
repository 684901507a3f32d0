//! A short text that completes an answer, for where the budget of tokens runs out.
//!
//! ```text
//!  {"a": [1, {"b": "te      what is forced is followed; else each of a few parsers tries closing quotes and
//!   ► " ► } ► ] ► }         brackets first, then the beginnings of short values, one byte at a time
//! ```
//!
//! A beam search: the cheapest few ways go on. The work is bounded by a number of tries, so that it may fail where a
//! longer search would not.

use llguidance::TokenParser;

use super::context::Tokens;
use super::llguidance::{Segment, segments};

/// How many parsers go on from one step to the next.
const WIDTH: usize = 4;
/// How many tokens are tried in all.
const MOST_TRIES: usize = 20_000;
/// How many ways on are followed from one parser.
const MOST_WAYS: usize = 4;

/// What is tried, best first; the first that may come costs one, the next two. 0xff stands for the special tokens.
const FIRST: &[u8] = b"\"}])>0\xffnfat'{[:,. ;=-/1e+_( \n<";

/// One way so far.
struct Way {
    parser: TokenParser,
    path: Vec<u32>,
    price: usize,
}

/// Tokens that complete the answer, at most `limit`.
pub(super) fn shortest(parser: &TokenParser, tokens: &Tokens, limit: usize) -> Option<Vec<u32>> {
    let candidates = candidates(tokens);
    let mut beam = vec![Way { parser: parser.clone(), path: Vec::new(), price: 0 }];
    let mut tries = 0;
    // A token has some bytes: what takes more steps than this is longer than the limit.
    for _ in 0..limit.saturating_mul(16).clamp(1, 1_000) {
        let mut next: Vec<(usize, u32, usize)> = Vec::new();
        for (at, way) in beam.iter_mut().enumerate() {
            if !way.follow(tokens) {
                continue;
            }
            if way.parser.is_accepting() {
                return spelled(&way.path, tokens, limit);
            }
            let mut ways = 0;
            for token in &candidates {
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
        let grown = next.into_iter().filter_map(|(at, token, price)| beam[at].grown(token, price));
        let grown: Vec<_> = grown.collect();
        if grown.is_empty() || tries > MOST_TRIES {
            return None;
        }
        beam = grown;
    }
    None
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

/// The path in the tokenizer's own tokens, or as it was found if that is no shorter.
fn spelled(path: &[u32], tokens: &Tokens, limit: usize) -> Option<Vec<u32>> {
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
    (out.len() <= limit).then_some(out)
}
