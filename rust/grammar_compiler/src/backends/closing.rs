//! Completions of answers: how they are spelled, and how far an answer has followed one.

use crate::context::{Step, Tokens};

/// How many steps of a completion `token` covers, if the completion begins with its bytes.
pub(crate) fn behind(path: &[Step], token: u32, tokens: &Tokens) -> Option<usize> {
    let bytes = tokens.text_bytes(token);
    if bytes.is_empty() {
        return path.first().filter(|first| **first == Step::Special(token)).map(|_| 1);
    }
    let covered = path.get(..bytes.len())?.iter().zip(bytes).all(|(step, byte)| *step == Step::Byte(*byte));
    covered.then_some(bytes.len())
}
