//! A short text that completes an answer, for where the budget of tokens runs out.
//!
//! A beam of forks of the parser goes forward one byte (or one special token) at a time. Closing quotes and brackets
//! are tried first, then the shortest values; what is forced has one way only. The work is bounded by a number of
//! steps, so that it may fail where a longer search would not.

use llguidance::TokenParser;

use super::context::Tokens;

/// How many parsers go on from one step to the next.
const WIDTH: usize = 6;
/// How many tokens are tried in all.
const MOST_STEPS: usize = 6_000;
/// How many ways on are followed from one parser.
const MOST_WAYS: usize = 6;

/// What is tried, best first; the rank is the price.
const FIRST: &[u8] = b"\"}])>0\xffnfat'{[:,. ;=-/1e+_( \n<";

/// Tokens that complete the answer, at most `limit`.
pub(super) fn shortest(parser: &mut TokenParser, tokens: &Tokens, limit: usize) -> Option<Vec<u32>> {
    if parser.is_accepting() {
        return Some(Vec::new());
    }
    let candidates = candidates(tokens);
    let mut beam = vec![(parser.clone(), Vec::new(), 0)];
    let mut steps = 0;
    // A token has some bytes: what takes more steps than this is longer than the limit.
    for _ in 0..limit.saturating_mul(16).min(1_000) {
        let mut next: Vec<(usize, u32, usize)> = Vec::new();
        for (at, (parser, _, price)) in beam.iter_mut().enumerate() {
            let mut ways = 0;
            for (rank, token) in candidates.iter().enumerate() {
                steps += 1;
                if steps > MOST_STEPS || ways == MOST_WAYS {
                    break;
                }
                if parser.validate_token(*token).unwrap_or(false) {
                    ways += 1;
                    next.push((at, *token, *price + 1 + rank));
                }
            }
        }
        next.sort_by_key(|(_, _, price)| *price);
        next.truncate(WIDTH);
        let mut grown = Vec::with_capacity(next.len());
        for (at, token, price) in next {
            let (parser, path, _) = &beam[at];
            let (mut parser, mut path) = (parser.clone(), path.clone());
            parser.invalidate_bias_cache();
            if parser.consume_token(token).is_err() {
                continue;
            }
            path.push(token);
            if parser.is_accepting() {
                return spelled(&path, tokens, limit);
            }
            grown.push((parser, path, price));
        }
        if grown.is_empty() || steps > MOST_STEPS {
            return None;
        }
        beam = grown;
    }
    None
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
