//! GBNF (llama.cpp, xgrammar) to Lark.
use super::Refusal;
use super::description::refusal;

/// Translates.
pub fn to_lark(_source: &str) -> Result<String, Refusal> {
    Err(refusal("EBNF comes next"))
}
