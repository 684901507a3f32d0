//! What of a caller's grammar or schema is refused before llguidance sees it.
//!
//! O(source).

use rustc_hash::FxHashSet;
use serde_json::Value;

use super::Refusal;
use super::description::refusal;

/// How many steps llguidance may have to recurse: rules that name each other times the groups in each, definitions of
/// a schema that refer to each other times the nesting of each. It recurses on the stack of the compiling thread.
const DEEPEST_RECURSION: usize = 10_000;

/// Refuses what llguidance would take and not do here, and what could be too deep for its stack.
pub(super) fn check_lark(source: &str) -> Result<(), Refusal> {
    let (mut rules, mut depth, mut deepest) = (0, 0usize, 1);
    let mut chars = source.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            // A text, a regex or a comment, up to its end.
            '"' | '/' | '#' => {
                let comment = char == '#' || source[at..].starts_with("//");
                while let Some((_, next)) = chars.next_if(|(_, next)| !comment || *next != '\n') {
                    if next == '\\' {
                        chars.next();
                    } else if !comment && next == char {
                        break;
                    }
                }
            }
            ':' => rules += 1,
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            // `rule[temperature=0.5]: ...`
            '=' => {
                let name = source[..at].trim_end();
                let names = ["temperature", "max_tokens", "stop", "stop_capture"];
                if let Some(name) = names.iter().find(|known| name.ends_with(**known)) {
                    return Err(refusal(format!("the grammar uses `{name}=`, which is not supported")));
                }
            }
            _ => {}
        }
    }
    if rules * deepest > DEEPEST_RECURSION {
        return Err(refusal(format!("the grammar is too large: {rules} rules with groups {deepest} deep")));
    }
    Ok(())
}

/// Refuses schemas that could be too deep for llguidance's stack.
pub(super) fn check_schema(schema: &Value) -> Result<(), Refusal> {
    fn look<'a>(value: &'a Value, targets: &mut FxHashSet<&'a str>) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(|item| look(item, targets)).max().unwrap_or(0),
            Value::Object(object) => {
                targets.extend(object.get("$ref").and_then(Value::as_str));
                1 + object.values().map(|value| look(value, targets)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }
    let mut targets = FxHashSet::default();
    let depth = look(schema, &mut targets);
    if targets.len() * depth > DEEPEST_RECURSION {
        let targets = targets.len();
        return Err(refusal(format!("#: {targets} targets of `$ref` in a schema {depth} deep are too many")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn attributes_that_do_nothing_here_are_named() {
        for (source, named) in [
            ("start[temperature=0.5]: \"a\"", "temperature"),
            ("start: x\nx[lazy, max_tokens = 3]: /a+/", "max_tokens"),
            ("start: x\nx[stop=\"b\"]: /a+/", "stop"),
        ] {
            assert!(check_lark(source).unwrap_err().message.contains(named), "{source}");
        }
        for source in [
            "start: \"temperature=\" /stop=/ // max_tokens=1",
            "start: x\nx[suffix=\"b\"]: /[^\\/]+/",
            "start: \"\\\"(\" \"(\"",
        ] {
            assert_eq!(check_lark(source), Ok(()), "{source}");
        }
    }

    #[test]
    fn what_is_too_deep_is_refused() {
        let rules = "r: a\n".repeat(3000);
        assert!(check_lark(&rules).is_ok());
        assert!(check_lark(&format!("{rules}s: ((((a))))")).is_err());
        let schema = |targets: usize, depth: usize| {
            let inner = (0..depth).fold(json!({}), |inner, _| json!({"items": inner}));
            let references: Vec<_> = (0..targets).map(|at| json!({"$ref": at.to_string()})).collect();
            json!({"items": inner, "anyOf": references})
        };
        assert!(check_schema(&schema(100, 90)).is_ok());
        assert!(check_schema(&schema(150, 90)).is_err());
        assert!(check_schema(&schema(0, 120)).is_ok());
    }
}
