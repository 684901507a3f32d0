//! Strings of many characters, counted by the parser.
//!
//! ```text
//!  minLength 2300, maxLength 7500      " piece{2} ( 300 to 999 characters "
//!                                                 | piece{1,4} 0 to 999 characters "
//!                                                 | piece{5} 0 to 500 characters " )
//! ```
//!
//! As one lexeme it would have states, and masks, for each character that may have come. So it has those of one piece, and
//! the parser counts pieces. That is the same language where no other lexeme may begin at the same place: the lexer takes
//! the longest, and one that runs on over the end of a piece would hide it. So every choice in the schema must be between
//! values of different types, and items of arrays that must differ stay single lexemes. O(schema).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::lowering::lark::Writer;
use pyengine_grammar::Refusal;

/// Is set in schemas of strings that are written here.
pub(crate) const COUNTED: &str = "x-counted";
/// Characters of a piece: more than a token has, for those that run on over its end are looked at one by one.
const PIECE: u64 = 1_000;
/// Strings with smaller bounds are single lexemes.
const LONG: u64 = 2 * PIECE;
/// References that are followed from one choice.
const MAX_REFERENCES: usize = 32;
/// A character within a string, in any spelling.
const CHARACTER: &str = concat!(
    r#"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]|\\u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"#,
    r"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
);

/// Marks the strings of a schema in normal form whose characters can be counted by the parser.
pub(crate) fn mark(schema: &mut Value) {
    let definitions = schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    if has_long(schema) && are_apart(schema, &definitions) {
        mark_long(schema);
    }
}

/// Whether a schema is a string with large bounds and nothing else.
fn is_long(schema: &Map<String, Value>) -> bool {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64).unwrap_or(0);
    schema.get("type").and_then(Value::as_str) == Some("string")
        && bound("minLength").max(bound("maxLength")) >= LONG
        && schema.keys().all(|key| ["type", "minLength", "maxLength"].contains(&&**key))
}

fn has_long(value: &Value) -> bool {
    match value {
        Value::Object(parts) => is_long(parts) || parts.values().any(has_long),
        Value::Array(parts) => parts.iter().any(has_long),
        _ => false,
    }
}

fn mark_long(value: &mut Value) {
    match value {
        Value::Object(parts) if is_long(parts) => {
            parts.insert(COUNTED.to_owned(), Value::Bool(true));
        }
        Value::Object(parts) => {
            let parts = parts.iter_mut().filter(|(key, _)| *key != "enum");
            parts.for_each(|(_, part)| mark_long(part));
        }
        Value::Array(parts) => parts.iter_mut().for_each(mark_long),
        _ => {}
    }
}

/// Whether all choices are between values of different types, and no items of an array must differ.
fn are_apart(value: &Value, definitions: &Map<String, Value>) -> bool {
    match value {
        Value::Object(parts) => {
            let options = parts.get("anyOf").and_then(Value::as_array).into_iter().flatten();
            let mut kinds = 0;
            let apart = options.map(|option| types(option, definitions, MAX_REFERENCES)).all(|own| {
                let apart = kinds & own == 0;
                kinds |= own;
                apart
            });
            apart
                && !parts.contains_key("uniqueItems")
                && parts.iter().all(|(key, part)| key == "enum" || are_apart(part, definitions))
        }
        Value::Array(parts) => parts.iter().all(|part| are_apart(part, definitions)),
        _ => true,
    }
}

/// The types of a schema's values, a bit each.
fn types(schema: &Value, definitions: &Map<String, Value>, references: usize) -> u8 {
    const ALL: u8 = u8::MAX;
    let name = |name: &str| match name {
        "null" => 1,
        "boolean" => 2,
        "integer" | "number" => 4,
        "string" => 8,
        "array" => 16,
        "object" => 32,
        _ => ALL,
    };
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        return options.iter().fold(0, |all, option| all | types(option, definitions, references));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let of = |value: &Value| match value {
            Value::Null => 1,
            Value::Bool(_) => 2,
            Value::Number(_) => 4,
            Value::String(_) => 8,
            Value::Array(_) => 16,
            Value::Object(_) => 32,
        };
        return values.iter().fold(0, |all, value| all | of(value));
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
    match (target.and_then(|target| definitions.get(target)), references) {
        (Some(definition), 1..) => types(definition, definitions, references - 1),
        _ => schema.get("type").and_then(Value::as_str).map_or(ALL, name),
    }
}

/// The terminals of pieces and ends that were written, by their bodies.
#[derive(Default)]
pub(crate) struct Strings {
    terminals: BTreeMap<String, String>,
}

impl Strings {
    /// Writes the rule of a marked string; gives its name.
    ///
    /// # Errors
    /// The errors of the writer.
    pub(crate) fn write(
        &mut self,
        writer: &mut Writer,
        schema: &Map<String, Value>,
    ) -> Result<String, Refusal> {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (min, max) = (bound("minLength").unwrap_or(0), bound("maxLength"));
        let piece = self.terminal(writer, &format!("/{CHARACTER}{{{PIECE}}}/"))?;
        let mut end = |least: u64, most: Option<u64>| {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            self.terminal(writer, &format!("/{CHARACTER}{{{least},{most}}}\"/"))
        };
        let full = Some(PIECE - 1);
        let (first, least) = (min / PIECE, min % PIECE);
        let mut ways = Vec::new();
        match max.map(|max| (max / PIECE - first, max % PIECE)) {
            None => ways.push(end(least, None)?),
            Some((0, most)) => ways.push(end(least, Some(most))?),
            Some((more, most)) => {
                ways.push(end(least, full)?);
                if more > 1 {
                    ways.push(format!("{piece}{{1,{}}} {}", more - 1, end(0, full)?));
                }
                ways.push(format!("{piece}{{{more},{more}}} {}", end(0, Some(most))?));
            }
        }
        let pieces = if first == 0 { String::new() } else { format!("{piece}{{{first},{first}}}") };
        writer.define("r", &format!(r#""\"" {pieces} ({})"#, ways.join(" | ")))
    }

    fn terminal(&mut self, writer: &mut Writer, body: &str) -> Result<String, Refusal> {
        if let Some(known) = self.terminals.get(body) {
            return Ok(known.clone());
        }
        let name = writer.define("T", body)?;
        self.terminals.insert(body.to_owned(), name.clone());
        Ok(name)
    }
}
