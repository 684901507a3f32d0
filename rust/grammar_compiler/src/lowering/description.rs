//! The description of a grammar, as requests and chat formats write it: JSON with a `kind`.
//!
//! Reading is O(bytes), bounded in bytes, in parts and in nesting.

use json_schema_normal_form::Unenforceable;
use serde::Deserialize;
use serde_json::Value;

use crate::lowering::members::BITS;
use pyengine_grammar::{Refusal, refusal};

/// The longest description, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// How deep parts may lie in parts (a JSON Schema's own nesting is bounded by serde_json, 128).
const MAX_DEPTH: usize = 32;
/// How many parts a description may have.
const MAX_PARTS: usize = 10_000;

/// A description of the texts that an answer may be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Description {
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// White space between the tokens of JSON.
        #[serde(default)]
        whitespace: Whitespace,
        /// Whether keywords that cannot be enforced are refused.
        #[serde(default)]
        unenforceable: Unenforceable,
        /// Begins the errors and warnings about it.
        #[serde(default)]
        name: Option<String>,
        /// The order of an object's keys.
        #[serde(default)]
        key_order: KeyOrder,
        /// The JSON pointer of the part that is meant; no request says so.
        #[serde(skip)]
        part: String,
    },
    /// Any JSON object.
    JsonObject {
        /// White space between the tokens of JSON.
        #[serde(default)]
        whitespace: Whitespace,
    },
    /// Any JSON.
    JsonValue {
        /// White space between the tokens of JSON.
        #[serde(default)]
        whitespace: Whitespace,
    },
    /// Text that a regex matches as a whole.
    Regex {
        /// In the syntax of Rust's `regex` crate.
        pattern: String,
    },
    /// One of some texts.
    Choice {
        /// The texts.
        choices: Vec<String>,
    },
    /// A grammar in llguidance's Lark.
    Lark {
        /// Its rules, from `start`.
        source: String,
    },
    /// A grammar as llama.cpp (GBNF) and xgrammar write it.
    Ebnf {
        /// Its rules, from `root`.
        source: String,
    },
    /// Exactly this text; special tokens that are spelled in it become those tokens.
    Text {
        /// The text.
        text: String,
    },
    /// Any text, empty too, in which none of some texts occurs.
    FreeText {
        /// Texts that may not occur.
        until: Vec<String>,
    },
    /// One part after the other.
    Sequence {
        /// The parts.
        parts: Vec<Description>,
    },
    /// One of some parts.
    AnyOf {
        /// The parts.
        options: Vec<Description>,
    },
    /// A part or nothing.
    Optional {
        /// The part.
        part: Box<Description>,
    },
    /// A part several times.
    Repeat {
        /// The part.
        part: Box<Description>,
        /// How often at least.
        #[serde(default)]
        min: u32,
        /// How often at most.
        #[serde(default)]
        max: Option<u32>,
        /// The text between two of them.
        #[serde(default)]
        separator: Option<Box<Description>>,
    },
    /// Parts in any order, each at most once; no more than [`BITS`].
    AnyOrder {
        /// Parts that must come.
        required: Vec<Description>,
        /// Parts that may come.
        #[serde(default)]
        optional: Vec<Description>,
        /// The text between two of them.
        #[serde(default)]
        separator: Option<Box<Description>>,
    },
}

/// White space between the tokens of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whitespace {
    /// As Python's `json.dumps` writes: `", "` and `": "`, all on one line.
    #[default]
    SingleLine,
    /// None.
    Compact,
    /// Any, but a bounded amount between two tokens.
    Flexible,
}

/// The order in which the keys of an object come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyOrder {
    /// As its schema names them, then those that it does not name.
    #[default]
    Schema,
    /// Any.
    Any,
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// The mistake in it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        check_length(bytes)?;
        let description: Self = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        description.check(0, &mut 0)?;
        Ok(description)
    }

    /// All schemas within it, in their order.
    pub(crate) fn schemas(self, found: &mut Vec<Description>) {
        match self {
            Self::JsonSchema { .. } => found.push(self),
            Self::Sequence { parts } | Self::AnyOf { options: parts } => {
                parts.into_iter().for_each(|part| part.schemas(found));
            }
            Self::Optional { part } => part.schemas(found),
            Self::Repeat { part, separator, .. } => {
                part.schemas(found);
                separator.into_iter().for_each(|separator| separator.schemas(found));
            }
            Self::AnyOrder { required, optional, separator } => {
                required.into_iter().chain(optional).for_each(|part| part.schemas(found));
                separator.into_iter().for_each(|separator| separator.schemas(found));
            }
            _ => {}
        }
    }

    /// The same schema with another part of it meant.
    pub(crate) fn at(mut self, pointer: String) -> Self {
        if let Self::JsonSchema { part, .. } = &mut self {
            *part = pointer;
        }
        self
    }

    fn check(&self, depth: usize, parts: &mut usize) -> Result<(), Refusal> {
        *parts += 1;
        if depth > MAX_DEPTH {
            return Err(refusal(format!("the parts of the grammar are nested deeper than {MAX_DEPTH}")));
        }
        if *parts > MAX_PARTS {
            return Err(refusal(format!("the grammar has more than {MAX_PARTS} parts")));
        }
        match self {
            Self::Choice { choices } if choices.is_empty() => Err(refusal("`choices` is empty")),
            Self::AnyOf { options } if options.is_empty() => Err(refusal("`options` is empty")),
            Self::FreeText { until } if until.iter().any(String::is_empty) => {
                Err(refusal("an empty text in `until` occurs everywhere"))
            }
            Self::Sequence { parts: inner } | Self::AnyOf { options: inner } => {
                inner.iter().try_for_each(|part| part.check(depth + 1, parts))
            }
            Self::Optional { part } => part.check(depth + 1, parts),
            Self::Repeat { part, min, max, separator } => {
                if max.is_some_and(|max| max < *min) {
                    return Err(refusal(format!("`min` {min} is more than `max` {}", max.unwrap_or(0))));
                }
                part.check(depth + 1, parts)?;
                separator.iter().try_for_each(|separator| separator.check(depth + 1, parts))
            }
            Self::AnyOrder { required, optional, separator } => {
                let count = required.len() + optional.len();
                if count > BITS {
                    return Err(refusal(format!("in any order at most {BITS} parts may come, not {count}")));
                }
                required.iter().chain(optional).try_for_each(|part| part.check(depth + 1, parts))?;
                separator.iter().try_for_each(|separator| separator.check(depth + 1, parts))
            }
            _ => Ok(()),
        }
    }
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    match error.to_string() {
        // Of serde_json's, in objects and arrays of JSON: an object of a schema has two for each of its own.
        text if text.starts_with("recursion limit") => refusal(
            "the grammar is nested too deep: schemas of objects within each other at most 60 times, of arrays 100",
        ),
        text => refusal(format!("not a description of a grammar: {text}")),
    }
}

/// Refuses a description that is too long to be read.
pub(crate) fn check_length(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.len() > MAX_BYTES {
        return Err(refusal(format!(
            "the grammar is described in {} bytes; the limit is {MAX_BYTES}",
            bytes.len()
        )));
    }
    Ok(())
}

/// A refusal of a whole grammar for a reason that names no part of it.
pub(crate) fn whole(reason: impl Into<String>) -> Refusal {
    let reason = reason.into();
    Refusal {
        reason: Some(reason.clone()),
        too_much: true,
        ..refusal(format!("the grammar cannot be compiled: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_are_read() {
        let text = br#"{"kind": "sequence", "parts": [
            {"kind": "free_text", "until": ["<tool>"]},
            {"kind": "optional", "part": {"kind": "json_schema", "schema": {"type": "object"}}},
            {"kind": "repeat", "part": {"kind": "text", "text": "a"}, "min": 1, "separator": {"kind": "regex", "pattern": ", *"}},
            {"kind": "any_of", "options": [{"kind": "json_object", "whitespace": "compact"}, {"kind": "json_value"}]}
        ]}"#;
        let Description::Sequence { parts } = Description::parse(text).unwrap() else { panic!() };
        assert_eq!(parts[0], Description::FreeText { until: vec!["<tool>".into()] });
        let Description::Optional { part } = &parts[1] else { panic!() };
        assert_eq!(
            **part,
            Description::JsonSchema {
                schema: serde_json::json!({"type": "object"}),
                whitespace: Whitespace::SingleLine,
                unenforceable: Unenforceable::Refuse,
                name: None,
                key_order: KeyOrder::Schema,
                part: String::new(),
            }
        );
        assert!(matches!(parts[2], Description::Repeat { min: 1, max: None, separator: Some(_), .. }));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let nested = |depth: usize| {
            let open = r#"{"kind":"optional","part":"#.repeat(depth);
            format!("{open}{}{}", r#"{"kind":"json_value"}"#, "}".repeat(depth))
        };
        let many = format!(
            r#"{{"kind":"sequence","parts":[{}]}}"#,
            vec![r#"{"kind":"text","text":"a"}"#; MAX_PARTS].join(",")
        );
        for (text, named) in [
            ("", "EOF"),
            ("[]", "not a description"),
            (r#"{"kind":"yaml"}"#, "yaml"),
            (r#"{"kind":"json_object","schema":{}}"#, "schema"),
            (r#"{"kind":"json_schema"}"#, "schema"),
            (r#"{"kind":"json_value","whitespace":"wide"}"#, "wide"),
            (r#"{"kind":"choice","choices":[]}"#, "choices"),
            (r#"{"kind":"any_of","options":[]}"#, "options"),
            (r#"{"kind":"free_text","until":[""]}"#, "until"),
            (r#"{"kind":"repeat","part":{"kind":"json_value"},"min":3,"max":2}"#, "min"),
            (r#"{"kind":"repeat","part":{"kind":"json_value"},"min":99999999999}"#, "99999999999"),
            (&nested(33), "nested"),
            (&nested(3000), "nested too deep"),
            (&many, "parts"),
            (&" ".repeat(MAX_BYTES + 1), "bytes"),
        ] {
            let refusal = Description::parse(text.as_bytes()).unwrap_err();
            assert!(refusal.message.contains(named), "{}", refusal.message);
        }
        assert!(Description::parse(nested(32).as_bytes()).is_ok());
    }
}
