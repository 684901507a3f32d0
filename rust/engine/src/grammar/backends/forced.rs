//! The forced text: the only text that may come next, found a byte at a time and no further than is asked for.
//!
//! ```text
//!  parser ─ one byte may come ─► take it ─ one ─► take it ─ ... ─ several, an end, or enough ─► roll all of them back
//! ```
//!
//! llguidance would force the whole text at once, however long it is. O(1) a byte that the lexer knows, else 256 look-ups;
//! O(limit) bytes.

use anyhow::ensure;
use llguidance::TokenParser;
use llguidance::derivre::NextByte;
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::{Recognizer, TokTrie};

use crate::grammar::context::Tokens;

/// At most this many bytes are forced at once.
const MAX_BYTES: usize = 1 << 14;
/// Bytes that are tried first, beside [`PER_TOKEN`].
const BASE_BYTES: usize = 32;
/// The cost of a mask, which visits every token, in tried bytes.
const MASK_COST: usize = 500;
/// Bytes that are tried for each token that is asked for.
const PER_TOKEN: usize = 8;

/// A forced byte or special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Byte(u8),
    Special(u32),
}

/// The forced byte or token; None where there is a choice, or the text may end. `tried` grows by the tried bytes.
///
/// # Errors
/// llguidance has given up, and the parser with it.
pub(crate) fn next(parser: &mut TokenParser, tried: &mut usize) -> anyhow::Result<Option<Step>> {
    if parser.parser.is_accepting() {
        return Ok(None);
    }
    match parser.parser.with_recognizer(|at| only_byte(at, tried)) {
        Some(TokTrie::SPECIAL_TOKEN_MARKER) => {
            *tried += MASK_COST;
            parser.invalidate_bias_cache();
            let set = parser.compute_mask()?;
            let mut allowed = set.iter();
            Ok(allowed.next().filter(|_| allowed.next().is_none()).map(Step::Special))
        }
        byte => Ok(byte.map(Step::Byte)),
    }
}

/// The byte that may come, if it is the only one.
fn only_byte(at: &mut ParserRecognizer<'_>, tried: &mut usize) -> Option<u8> {
    let state = at.lexer_state();
    let hint = at.lexer_mut().next_byte(state);
    if let NextByte::ForcedByte(byte) = hint {
        return Some(byte);
    }
    at.trie_started("forced");
    let likely = hint.some_bytes();
    let others = (0..=255).filter(|byte| !likely.contains(byte));
    let mut allowed = likely.iter().copied().chain(others).filter(|byte| {
        *tried += 1;
        let fits = at.try_push_byte(*byte);
        if fits {
            at.pop_bytes(1);
        }
        fits
    });
    let byte = allowed.next().filter(|_| allowed.next().is_none());
    at.trie_finished();
    byte
}

/// At most `limit` tokens of the forced text, up to the first that could go on beyond it.
///
/// # Errors
/// llguidance has given up, and the parser with it.
pub(crate) fn spelled(parser: &mut TokenParser, tokens: &Tokens, limit: usize) -> anyhow::Result<Vec<u32>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut walk = Walk::new(parser, tokens);
    let mut bytes = limit.saturating_mul(PER_TOKEN).saturating_add(BASE_BYTES);
    let mut out = loop {
        walk.advance(bytes.min(MAX_BYTES))?;
        let out = walk.spelled();
        if walk.ended || out.len() >= limit || bytes >= MAX_BYTES {
            break out;
        }
        bytes *= 2;
    };
    walk.roll_back()?;
    out.truncate(limit);
    Ok(out)
}

/// A parser that follows the forced text.
struct Walk<'a> {
    parser: &'a mut TokenParser,
    tokens: &'a Tokens,
    steps: Vec<Step>,
    /// Bytes that the parser has taken.
    taken: usize,
    /// Nothing more is forced.
    ended: bool,
}

impl<'a> Walk<'a> {
    fn new(parser: &'a mut TokenParser, tokens: &'a Tokens) -> Self {
        Self { parser, tokens, steps: Vec::new(), taken: 0, ended: false }
    }

    fn advance(&mut self, steps: usize) -> anyhow::Result<()> {
        while !self.ended && self.steps.len() < steps {
            let Some(step) = next(self.parser, &mut 0)? else {
                self.ended = true;
                break;
            };
            let (byte, id);
            let bytes = match step {
                // No token has this id: it is taken as text.
                Step::Byte(only) => {
                    (byte, id) = ([only], u32::MAX);
                    &byte[..]
                }
                Step::Special(token) => {
                    id = token;
                    self.tokens.trie().token(token)
                }
            };
            let back = self.parser.parser.apply_token(bytes, id)?;
            ensure!(back == 0, "llguidance never backtracks here");
            self.taken += bytes.len();
            self.steps.push(step);
        }
        Ok(())
    }

    /// The text as tokens, up to the first in place of which a longer one may come.
    fn spelled(&mut self) -> Vec<u32> {
        let (mut out, mut text, mut last) = (Vec::new(), Vec::new(), 0);
        for step in &self.steps {
            match step {
                Step::Byte(byte) => text.push(*byte),
                Step::Special(token) => {
                    self.tokens.tokenize(&text, &mut out);
                    text.clear();
                    out.push(*token);
                    last = out.len();
                }
            }
        }
        self.tokens.tokenize(&text, &mut out);
        let trie = self.tokens.trie();
        let (cut, _) = self.parser.parser.with_recognizer(|at| trie.chop_tokens(at, &out[last..]));
        out.truncate(out.len() - cut);
        out
    }

    /// Rolls the parser back to its tokens.
    fn roll_back(self) -> anyhow::Result<()> {
        self.parser.parser.rollback(self.taken)?;
        self.parser.invalidate_bias_cache();
        Ok(())
    }
}
