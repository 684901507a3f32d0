//! Ends what a grammar has begun before the tokens run out.
//!
//! Near the limit a short completion is looked for after every token; when what is left is hardly more than that, the
//! completion is all that may come. What the answer could still have said is lost, but it parses.
//! O(search) a token within [`HORIZON`] of the limit, nothing before.

use crate::grammar::Grammar;

/// The search begins when so many tokens are left.
const HORIZON: u32 = 256;
/// Spare tokens: one token of the answer may open so many to be closed.
const MARGIN: usize = 16;

/// The end of one answer.
#[derive(Debug, Default)]
pub struct Closing {
    // What is still to come, last first; empty before the end has begun.
    tokens: Vec<u32>,
    begun: bool,
}

impl Closing {
    /// The token that must come next, once the end has begun.
    pub fn next(&self) -> Option<u32> {
        self.tokens.last().copied()
    }

    /// `grammar` has taken `token`, and `left` more may come. Whether the answer is closed.
    pub fn advance(&mut self, grammar: &mut dyn Grammar, token: u32, left: u32) -> bool {
        if self.begun {
            // Nothing else could come.
            debug_assert_eq!(self.tokens.last(), Some(&token));
            self.tokens.pop();
            return self.tokens.is_empty();
        }
        if left > HORIZON {
            return false;
        }
        if let Some(mut tokens) = grammar.closing_tokens(left as usize)
            && tokens.len() + MARGIN >= left as usize
        {
            tokens.reverse();
            *self = Self { tokens, begun: true };
        }
        self.begun && self.tokens.is_empty()
    }
}
