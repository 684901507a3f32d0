//! Refuses grammars and schemas that llguidance could not compile within its stack, or would not enforce.
//!
//! O(source).

use rustc_hash::FxHashSet;
use serde_json::{Map, Number, Value};

use crate::lowering::description::whole;
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// How many steps llguidance may have to recurse: rules that name each other times the groups in each, definitions of
/// a schema that refer to each other times the nesting of each. It recurses on the stack of the compiling thread.
const MAX_RECURSION: usize = 10_000;
/// How many properties an object may have: llguidance takes the square of them.
pub(crate) const MAX_PROPERTIES: usize = 5_000;
/// How many of them may be optional one after the other: each is four items in the parser's row, which has a limit.
pub(crate) const MAX_OPTIONAL: usize = 1_900;
/// The largest `multipleOf`, its powers of ten aside: llguidance visits every remainder before its limits count.
const MAX_FACTOR: u64 = 100_000;

/// Refuses attributes that llguidance accepts without effect here, and grammars that could be too deep for its stack.
pub(crate) fn check_lark(source: &str) -> Result<(), Refusal> {
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
            '%' if source[at..].starts_with("%json") => {
                // llguidance reports what is not JSON.
                let mut values = serde_json::Deserializer::from_str(&source[at + 5..]).into_iter::<Value>();
                if let Some(Ok(schema)) = values.next() {
                    check_schema(&schema)?;
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
    if rules * deepest > MAX_RECURSION {
        return Err(refusal(format!("the grammar is too large: {rules} rules with groups {deepest} deep")));
    }
    Ok(())
}

/// Refuses schemas that could be too deep for llguidance's stack, or divide by more than it can count.
pub(crate) fn check_schema(schema: &Value) -> Result<(), Refusal> {
    let mut survey = Survey::default();
    let depth = survey.look(schema);
    if survey.properties > MAX_PROPERTIES {
        let count = survey.properties;
        return Err(refusal(format!("'properties': an object has {count}; the limit is {MAX_PROPERTIES}")));
    }
    if survey.optional > MAX_OPTIONAL {
        return Err(refusal(format!(
            "'properties': an object has {} optional ones without a required one between them; the limit is \
             {MAX_OPTIONAL}",
            survey.optional
        )));
    }
    let targets = survey.targets.len();
    if targets * depth > MAX_RECURSION {
        return Err(whole(format!("{targets} targets of `$ref` in a schema {depth} deep are too many")));
    }
    let counted = |factor: u64| factor <= MAX_FACTOR;
    // Keywords that join schemas may make one number obey several.
    let joint = survey.factors.iter().try_fold(1u64, |joint, factor| {
        (joint / common(joint, *factor)).checked_mul(*factor).filter(|joint| counted(*joint))
    });
    if survey.factors.iter().all(|factor| counted(*factor)) && (joint.is_some() || !survey.joins) {
        return Ok(());
    }
    Err(refusal(format!("#: `multipleOf` with more than {MAX_FACTOR} remainders is not supported")))
}

/// Counts over a schema.
#[derive(Default)]
struct Survey<'a> {
    targets: FxHashSet<&'a str>,
    factors: FxHashSet<u64>,
    joins: bool,
    /// The most properties of an object.
    properties: usize,
    /// The most optional ones that follow each other.
    optional: usize,
}

impl<'a> Survey<'a> {
    /// Visits the whole schema; returns its depth.
    fn look(&mut self, value: &'a Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(|item| self.look(item)).max().unwrap_or(0),
            Value::Object(object) => {
                self.count_properties(object);
                self.joins |= object.contains_key("allOf") || object.contains_key("$ref");
                self.targets.extend(object.get("$ref").and_then(Value::as_str));
                self.factors.extend(object.get("multipleOf").and_then(Value::as_number).map(remainders));
                1 + object.values().map(|value| self.look(value)).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    fn count_properties(&mut self, object: &Map<String, Value>) {
        let Some(Value::Object(properties)) = object.get("properties") else { return };
        self.properties = self.properties.max(properties.len());
        if properties.len() <= MAX_OPTIONAL {
            return;
        }
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: FxHashSet<&str> = required.filter_map(Value::as_str).collect();
        let mut run = 0;
        for name in properties.keys() {
            run = if required.contains(&**name) { 0 } else { run + 1 };
            self.optional = self.optional.max(run);
        }
    }
}

/// How many remainders a division by the number has, but for its powers of ten, which are cheap.
fn remainders(number: &Number) -> u64 {
    let text = number.to_string();
    let digits = text.split(['e', 'E']).next().unwrap_or_default().replace(['.', '-', '+'], "");
    let digits = digits.trim_matches('0');
    if digits.is_empty() { 1 } else { digits.parse().unwrap_or(u64::MAX) }
}

fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
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

    #[test]
    fn too_many_properties_are_refused_by_name() {
        let object = |count: usize, every: usize| {
            let names: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
            let required: Vec<&String> = names.iter().step_by(every).collect();
            let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({}))).collect();
            json!({"items": {"properties": properties, "required": required}})
        };
        assert!(check_schema(&object(MAX_OPTIONAL + 1, 9_999)).is_ok(), "the first is required");
        assert!(check_schema(&object(MAX_PROPERTIES, 1_000)).is_ok());
        let said = |schema: &Value| check_schema(schema).unwrap_err().message;
        assert!(said(&object(MAX_OPTIONAL + 2, 9_999)).contains("1901 optional"));
        assert!(said(&object(MAX_PROPERTIES + 1, 1)).contains("'properties'"));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let of = |factor: Value| json!({"type": "number", "multipleOf": factor});
        for factor in [json!(86_400), json!(0.01), json!(33.25), json!(1e300), json!(1_000_000), json!(0)] {
            assert!(check_schema(&of(factor.clone())).is_ok(), "{factor}");
        }
        for factor in [json!(999_999), json!(66_653_674), json!(1.234_567), json!(u64::MAX)] {
            assert!(check_schema(&of(factor.clone())).is_err(), "{factor}");
        }
        let both = [of(json!(997)), of(json!(991))];
        assert!(check_schema(&json!({"anyOf": both})).is_ok());
        assert!(check_schema(&json!({"allOf": both})).is_err());
        assert!(check_lark("start: %json {\"multipleOf\": 999999} \"a\"").is_err());
        assert!(check_lark("start: %json {\"multipleOf\": 9} \"a\"").is_ok());
        assert!(check_schema(&json!({"allOf": [of(json!(6)), of(json!(0.04))]})).is_ok());
    }
}
