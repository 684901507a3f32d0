//! Schemas as they came, for where the normal form gives up: llguidance alone is exact where it has all keywords, and
//! refuses the others.
//!
//! ```text
//!  {"pattern": "^\\d+$"}                 "^[0-9]+$": its classes are Unicode's, those of schemas ECMA-262's
//!  {"$ref": "#/x", "type": "string"}    not in drafts 4 to 7, where a reference has no siblings
//! ```
//!
//! O(schema).

use serde_json::{Map, Value};

/// What ECMA-262's `.` matches.
const ANY: &str = r"[^\n\r\u{2028}\u{2029}]";
/// Keywords beside a reference that mean nothing.
const SAYS_NOTHING: [&str; 8] =
    ["$ref", "$schema", "$id", "$comment", "title", "description", "default", "definitions"];

/// The schema as llguidance is to read it; None where it reads it otherwise.
pub(super) fn unchanged(schema: &Value) -> Option<Value> {
    let draft = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    copied(schema, draft.contains("draft-0"))
}

fn copied(schema: &Value, alone: bool) -> Option<Value> {
    match schema {
        Value::Object(object) => {
            let is_reference = alone && object.get("$ref").is_some_and(Value::is_string);
            if is_reference && object.keys().any(|key| !SAYS_NOTHING.contains(&&**key)) {
                return None;
            }
            object.iter().map(|(key, value)| Some((key.clone(), member(key, value, alone)?))).collect()
        }
        Value::Array(items) => items.iter().map(|item| copied(item, alone)).collect(),
        _ => Some(schema.clone()),
    }
}

fn member(key: &str, value: &Value, alone: bool) -> Option<Value> {
    match (key, value) {
        ("const" | "enum" | "default" | "examples", _) => Some(value.clone()),
        ("pattern", Value::String(pattern)) => ecma(pattern).map(Value::String),
        ("patternProperties", Value::Object(patterns)) => {
            let each = patterns.iter().map(|(key, value)| Some((ecma(key)?, copied(value, alone)?)));
            each.collect::<Option<Map<_, _>>>().map(Value::Object)
        }
        _ => copied(value, alone),
    }
}

/// A regex whose classes are ECMA-262's; None where it has others than digits, those of words and `.`.
fn ecma(pattern: &str) -> Option<String> {
    if pattern.contains("{,") {
        return None;
    }
    let (mut out, mut within, mut chars) = (String::new(), false, pattern.chars());
    while let Some(char) = chars.next() {
        let class = match char {
            '\\' => match chars.next()? {
                'd' => "0-9",
                'w' => "A-Za-z0-9_",
                's' | 'S' | 'D' | 'W' | 'b' | 'B' | 'p' | 'P' | 'c' | 'k' | '1'..='9' => return None,
                escaped => {
                    out.extend(['\\', escaped]);
                    continue;
                }
            },
            '.' if !within => {
                out.push_str(ANY);
                continue;
            }
            _ => {
                // Rust's classes nest, and have operators.
                if within && matches!(char, '[' | '&' | '~') {
                    return None;
                }
                within = if within { char != ']' } else { char == '[' };
                out.push(char);
                continue;
            }
        };
        out.push_str(&if within { class.to_owned() } else { format!("[{class}]") });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_llguidance_would_read_otherwise_is_left_alone() {
        let old = "http://json-schema.org/draft-07/schema#";
        assert!(unchanged(&json!({"$ref": "#/$defs/a", "type": "string"})).is_some());
        assert!(unchanged(&json!({"$schema": old, "items": {"$ref": "#/a", "type": "string"}})).is_none());
        assert!(unchanged(&json!({"$schema": old, "items": {"$ref": "#/a", "title": "x"}})).is_some());
        let constant = json!({"const": {"pattern": r"\s"}});
        assert_eq!(unchanged(&constant), Some(constant));
        for (pattern, read) in [
            (r"^\d{4}-[\w.]\.$", Some(r"^[0-9]{4}-[A-Za-z0-9_.]\.$")),
            ("a.b", Some(r"a[^\n\r\u{2028}\u{2029}]b")),
            (r"\s", None),
            ("[a&&b]", None),
            (r"(a)\1", None),
        ] {
            let schema = json!({"type": "object", "patternProperties": {pattern: {"pattern": pattern}}});
            let expected =
                read.map(|read| json!({"type": "object", "patternProperties": {read: {"pattern": read}}}));
            assert_eq!(unchanged(&schema), expected);
        }
    }
}
