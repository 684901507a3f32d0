//! One piece of a completion.

use std::sync::Arc;

use super::bounds::NEVER;
use crate::context::{Step, Tokens};

/// The shortest text of a lexeme.
#[derive(Debug, Clone)]
pub(crate) enum Shortest {
    /// Its bytes, and a number of tokens that is enough for them; [`NEVER`] if no tokens have some of its bytes.
    Text(Arc<[u8]>, u32),
    Special(u32),
}

impl Shortest {
    pub fn of_text(tokens: &Tokens, text: Vec<u8>) -> Self {
        let count = tokens.at_most(&text).unwrap_or(NEVER);
        Self::Text(text.into(), count)
    }

    pub fn steps(&self) -> Vec<Step> {
        match self {
            Self::Text(text, _) => text.iter().map(|byte| Step::Byte(*byte)).collect(),
            Self::Special(token) => vec![Step::Special(*token)],
        }
    }

    pub fn len(&self) -> u32 {
        match self {
            Self::Text(text, _) => text.len() as u32,
            Self::Special(_) => 1,
        }
    }

    /// A number of tokens that is enough for it.
    pub fn tokens(&self) -> u32 {
        match self {
            Self::Text(_, tokens) => *tokens,
            Self::Special(_) => 1,
        }
    }
}
