//! Which schemas in normal form llguidance's own compiler of JSON Schemas cannot write.
//!
//! O(schema).

use serde_json::{Map, Value};

use crate::lowering::strings::COUNTED;

/// Patterns of names that are longer together are matched one by one.
const LONG_PATTERNS: usize = 1000;
/// Every name that a schema in normal form does not mention.
pub(crate) const ANY_NAME: &str = "^(?s:.*)$";

/// Whether objects with patterns of names are written here, so that the patterns have to leave out the known names.
pub(crate) fn writes_patterns(schema: &Value) -> bool {
    fn has_patterns(value: &Value) -> bool {
        match value {
            Value::Object(parts) => {
                let patterns = parts.get("patternProperties").and_then(Value::as_object);
                patterns.is_some_and(|patterns| patterns.keys().any(|pattern| pattern != ANY_NAME))
                    || parts.values().any(has_patterns)
            }
            Value::Array(parts) => parts.iter().any(has_patterns),
            _ => false,
        }
    }
    has_patterns(schema) && has_special(schema)
}

/// Whether a schema is one that llguidance cannot compile, whatever its parts are.
pub(crate) fn is_special_itself(schema: &Map<String, Value>) -> bool {
    is_text_of_number(schema)
        || schema.contains_key("uniqueItems")
        || schema.contains_key(COUNTED)
        || schema.contains_key("propertyNames")
        || schema.get("patternProperties").and_then(Value::as_object).is_some_and(are_long)
}

/// Whether a schema is of numbers whose text matches a pattern.
pub(crate) fn is_text_of_number(schema: &Map<String, Value>) -> bool {
    schema.contains_key("pattern") && schema.get("type").is_some_and(|name| name == "number")
}

/// Whether some part of a schema is one that llguidance cannot compile.
fn has_special(value: &Value) -> bool {
    match value {
        Value::Object(parts) => is_special_itself(parts) || parts.values().any(has_special),
        Value::Array(parts) => parts.iter().any(has_special),
        _ => false,
    }
}

/// Whether patterns of names are so long that llguidance may not find that they are apart.
fn are_long(patterns: &Map<String, Value>) -> bool {
    patterns.len() > 1 && patterns.keys().map(String::len).sum::<usize>() > LONG_PATTERNS
}
