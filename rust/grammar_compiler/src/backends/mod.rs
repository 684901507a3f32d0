//! Chooses the backend of a description.

mod closing;
mod forced;
mod index;
mod llguidance;
pub(crate) mod parser;

use std::sync::Arc;

use regex_syntax::hir::Hir;

use crate::backends::index::Index;
use crate::backends::llguidance::Llguidance;
use crate::cancellation::CancelToken;
use crate::context::Tokens;
use crate::lowering::description::Description;
use crate::lowering::{as_it_came, lower, pattern};
use pyengine_grammar::{Compiled, Refusal, Verdict};

/// Compiles a description.
///
/// A choice or a regex becomes a table if the table is small enough to be built at once; its masks are look-ups.
/// Everything else, and what would be too large a table, goes to llguidance, which builds its automata while an answer
/// is written; schemas in normal form, or as they came where that is too much and llguidance alone is exact.
///
/// # Errors
/// Why the description is refused.
pub fn compile(tokens: &Arc<Tokens>, description: Description, cancel: &CancelToken) -> Verdict {
    if let Some(pattern) = regular(&description)?
        && let Some(index) = Index::build(tokens, &pattern, cancel)?
    {
        return Ok(Arc::new(index));
    }
    let plain = as_it_came(&description);
    let mut warnings = Vec::new();
    let made = lower(description, tokens, cancel, &mut warnings)
        .and_then(|lowered| cancel.check().map(|()| lowered))
        .and_then(|lowered| Llguidance::compile(tokens, lowered, warnings));
    let made = made.or_else(|refused| {
        // The normal form may have made too much of it.
        let plain = plain.filter(|_| refused.too_much && cancel.check().is_ok());
        let plain = plain.and_then(|plain| Llguidance::compile(tokens, plain, Vec::new()).ok());
        plain.filter(|made| made.warnings().is_empty()).ok_or(refused)
    })?;
    Ok(Arc::new(made))
}

/// The language of a choice or a regex; None of anything else.
fn regular(description: &Description) -> Result<Option<Hir>, Refusal> {
    match description {
        Description::Regex { pattern } => pattern::whole(pattern).map(Some),
        Description::Choice { choices } => Ok(Some(pattern::choice(choices))),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::tests::small;
    use pyengine_grammar::Grammar;

    pub(crate) fn compiled(tokens: &Arc<Tokens>, description: serde_json::Value) -> Arc<dyn Compiled> {
        let description = Description::parse(description.to_string().as_bytes()).unwrap();
        compile(tokens, description, &CancelToken::default())
            .unwrap_or_else(|refusal| panic!("{}", refusal.message))
    }

    pub(crate) fn allowed(grammar: &mut dyn Grammar, tokens: &Tokens) -> Vec<u32> {
        let mut mask = vec![u32::MAX; tokens.vocab_size().div_ceil(32)];
        grammar.mask().write(&mut mask);
        (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] & (1 << (id % 32)) != 0).collect()
    }

    /// Whether the text (special tokens spelled) is a whole answer, and every mask on the way has its token.
    pub(crate) fn accepts(tokens: &Arc<Tokens>, grammar: &Arc<dyn Compiled>, text: &str) -> bool {
        let mut ids = Vec::new();
        let mut at = 0;
        for (range, token) in tokens.find_special(text) {
            tokens.tokenize(&text.as_bytes()[at..range.start], &mut ids);
            ids.push(token);
            at = range.end;
        }
        tokens.tokenize(&text.as_bytes()[at..], &mut ids);
        ids.push(tokens.end_tokens()[0]);
        let mut state = grammar.start();
        ids.iter().all(|id| {
            let listed = allowed(&mut *state, tokens).contains(id);
            let took = state.advance(*id);
            assert_eq!(listed, took, "{text:?} at {id}");
            took
        })
    }

    #[test]
    fn descriptions_accept_what_they_say() {
        let tokens = small(&["the", " cat", "\": \"", "{\"", "tool", "<to", "ol>"]);
        let json = serde_json::json!({"kind": "json_schema", "schema": {"type": "object",
            "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}});
        let text = |text: &str| serde_json::json!({"kind": "text", "text": text});
        let free = |until: &[&str]| serde_json::json!({"kind": "free_text", "until": until});
        let sequence =
            |parts: Vec<serde_json::Value>| serde_json::json!({"kind": "sequence", "parts": parts});
        let call = sequence(vec![text("<tool>\n"), json.clone(), text("\n</tool>")]);
        let spelled = sequence(vec![text("[call]"), json.clone(), text("[/call]")]);
        let cases = [
            (json.clone(), vec![r#"{"a": 1}"#], vec![r#"{"a":1}"#, r#"{"a": 1} "#, "{}", r#"{"a": "1"}"#]),
            (text("a<tool>\"b\\\n\u{7f}/i"), vec!["a<tool>\"b\\\n\u{7f}/i"], vec!["a", "a<tool>"]),
            (text(""), vec![""], vec!["a"]),
            (free(&["ab", "<x>"]), vec!["", "a", "b a", "<x", "é\n"], vec!["ab", "xab", "<x>", "a<tool>"]),
            (free(&[]), vec!["", "any <thing>"], vec!["<tool>"]),
            (
                sequence(vec![free(&["<tool>"]), call.clone()]),
                vec!["<tool>\n{\"a\": 1}\n</tool>", "hi < to<tool>\n{\"a\": 1}\n</tool>"],
                vec!["hi", "<tool>{\"a\": 1}</tool>"],
            ),
            (
                sequence(vec![
                    free(&["[call]"]),
                    serde_json::json!({"kind": "repeat", "part": spelled.clone(), "separator": text("\n")}),
                ]),
                vec![
                    "",
                    "hi [call",
                    "[call]{\"a\": 1}[/call]",
                    "hi [call]{\"a\": 1}[/call]\n[call]{\"a\": -20}[/call]",
                ],
                vec!["hi [call]", "hi [call] x", "[call]{\"a\": 1}[/call]\n", "[call]{\"a\": 1}[/call] x"],
            ),
            (
                sequence(vec![
                    free(&["[", "]"]),
                    serde_json::json!({"kind": "optional", "part": text("]")}),
                    serde_json::json!({"kind": "optional", "part": spelled}),
                ]),
                vec!["", "a", "a]", "a[call]{\"a\": 1}[/call]", "]", "a][call]{\"a\": 1}[/call]"],
                vec!["[", "a]]", "a]a"],
            ),
            (
                serde_json::json!({"kind": "any_of", "options": [call, {"kind": "choice", "choices": ["yes", "ye", "no"]}]}),
                vec!["ye", "yes", "<tool>\n{\"a\": 1}\n</tool>"],
                vec!["", "y", "<tool>"],
            ),
            (
                serde_json::json!({"kind": "repeat", "part": {"kind": "regex", "pattern": "^[a-z]+$"},
                    "min": 2, "max": 3, "separator": text(", ")}),
                vec!["a, b", "the, cat, x"],
                vec!["a", "a, b, c, d", "a, "],
            ),
            (
                sequence(vec![
                    serde_json::json!({"kind": "optional", "part": text("x")}),
                    json.clone(),
                    free(&[]),
                ]),
                vec!["x{\"a\": 1}", "{\"a\": 1} and so on"],
                vec!["xx{\"a\": 1}"],
            ),
            (
                sequence(vec![
                    serde_json::json!({"kind": "lark", "source": "start: \"(\" start? \")\""}),
                    text("!"),
                ]),
                vec!["()!", "((()))!"],
                vec!["(", "()", "(()!"],
            ),
            (
                serde_json::json!({"kind": "json_object"}),
                vec!["{}", r#"{"a": [1, {"b": null}], "é": "\n"}"#],
                vec!["[]", r#"{"a":1}"#],
            ),
            (
                serde_json::json!({"kind": "json_value", "whitespace": "compact"}),
                vec!["[]", "1.5e3", r#"{"a":[1,2]}"#],
                vec!["[1, 2]", ""],
            ),
            (
                serde_json::json!({"kind": "json_value", "whitespace": "flexible"}),
                vec!["[1,\n  2]", "[1,2]"],
                vec!["[1,                                                            2]"],
            ),
        ];
        for (description, good, bad) in cases {
            let grammar = compiled(&tokens, description.clone());
            for text in good {
                assert!(accepts(&tokens, &grammar, text), "{description} should accept {text:?}");
            }
            for text in bad {
                assert!(!accepts(&tokens, &grammar, text), "{description} should not accept {text:?}");
            }
        }
    }
}
