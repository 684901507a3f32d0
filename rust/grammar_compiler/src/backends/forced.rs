//! The forced text: the only text that may come next, found a byte at a time and no further than is asked for.
//!
//! ```text
//!  parser ─ one byte may come ─► take it ─ one ─► take it ─ ... ─ several, an end, or enough ─► roll all of them back
//! ```
//!
//! O(1) a byte that the lexer knows, else 256 look-ups;
//! O(limit) bytes.

use anyhow::ensure;
use llguidance::toktrie::TokTrie;

use crate::backends::parser::Parser;
use crate::context::{Step, Tokens};

/// At most this many bytes are forced at once.
const MAX_BYTES: usize = 1 << 14;
/// Bytes that are tried first, beside [`PER_TOKEN`].
const BASE_BYTES: usize = 32;
/// Bytes that are tried for each token that is asked for.
const PER_TOKEN: usize = 8;
/// How many of its last tokens could be written otherwise together with the text behind them.
const MAX_CUT: usize = 4;

/// The forced byte or token; None where there is a choice, or the text may end.
///
/// # Errors
/// The parser has given up.
fn next(parser: &Parser) -> anyhow::Result<Option<Step>> {
    match parser.only_byte()? {
        Some(TokTrie::SPECIAL_TOKEN_MARKER) => Ok(parser.mask()?.single().map(Step::Special)),
        byte => Ok(byte.map(Step::Byte)),
    }
}

/// At most `limit` tokens of the forced text, up to the first that could go on beyond it.
///
/// # Errors
/// The parser has given up.
pub(crate) fn spelled(parser: &Parser, tokens: &Tokens, limit: usize) -> anyhow::Result<Vec<u32>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut walk = Walk::new(parser.fork(), tokens);
    let mut bytes = limit.saturating_mul(PER_TOKEN).saturating_add(BASE_BYTES);
    let mut out = loop {
        walk.advance(bytes.min(MAX_BYTES))?;
        let out = walk.spelled()?;
        if walk.ended || out.len() >= limit || bytes >= MAX_BYTES {
            break out;
        }
        bytes *= 2;
    };
    out.truncate(limit);
    Ok(out)
}

/// A parser that follows the forced text.
struct Walk<'a> {
    parser: Parser,
    tokens: &'a Tokens,
    steps: Vec<Step>,
    /// Nothing more is forced.
    ended: bool,
}

impl<'a> Walk<'a> {
    fn new(parser: Parser, tokens: &'a Tokens) -> Self {
        Self { parser, tokens, steps: Vec::new(), ended: false }
    }

    fn advance(&mut self, steps: usize) -> anyhow::Result<()> {
        while !self.ended && self.steps.len() < steps {
            let Some(step) = next(&self.parser)? else {
                self.ended = true;
                break;
            };
            let taken = match step {
                Step::Byte(byte) => self.parser.take_byte(byte)?,
                Step::Special(token) => self.parser.take(token)?,
            };
            ensure!(taken, "what is forced may come");
            self.steps.push(step);
        }
        Ok(())
    }

    /// The text as tokens, up to the first in place of which a longer one may come.
    fn spelled(&self) -> anyhow::Result<Vec<u32>> {
        let (mut out, last) = self.tokens.spelled(&self.steps);
        let cut = self.cut(&out[last..])?;
        out.truncate(out.len() - cut);
        Ok(out)
    }

    /// How many of the last tokens a token that goes on beyond the text may replace.
    fn cut(&self, tokens: &[u32]) -> anyhow::Result<usize> {
        let last = &tokens[tokens.len().saturating_sub(MAX_CUT)..];
        let text: Vec<u8> = last.iter().flat_map(|token| self.tokens.text_bytes(*token)).copied().collect();
        for from in 0..text.len() {
            if self.parser.has_longer(&text[from..])? {
                let mut covered = 0;
                let covers = |token: &&u32| {
                    let before = covered;
                    covered += self.tokens.text_bytes(**token).len();
                    before < text.len() - from
                };
                return Ok(last.iter().rev().take_while(covers).count());
            }
        }
        Ok(0)
    }
}
