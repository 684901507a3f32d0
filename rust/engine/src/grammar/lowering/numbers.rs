//! Numbers as regexes: those that are not whole, between two whole ones, and whole ones that a double rounds.
//!
//! ```text
//!  -2 < x < 13     -  0 to 1  .  a digit that is not 0 among others
//!                     0 to 12 .  ...
//! ```
//!
//! O(digits of the bounds).

use serde_json::{Map, Value};

use crate::grammar::Refusal;
use crate::grammar::lowering::description::refusal;

type Object = Map<String, Value>;

/// A part behind the point that is not 0.
const FRACTION: &str = r"\.[0-9]*[1-9][0-9]*";
/// Whole numbers up to this are doubles.
const MAX_DOUBLE: i128 = 1 << 53;

/// A bound of a number's schema in normal form.
fn bound(schema: &Object, key: &str) -> Result<Option<i128>, Refusal> {
    let Some(value) = schema.get(key) else { return Ok(None) };
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let double = value.as_f64().filter(|value| value.fract() == 0.0).map(|value| value as i128);
    let none = || refusal(format!("'{key}': a bound of what is not whole must be whole"));
    whole.or(double).map(Some).ok_or_else(none)
}

/// The least and the greatest whole number of a schema.
fn bounds(schema: &Object) -> Result<(Option<i128>, Option<i128>), Refusal> {
    let above = bound(schema, "exclusiveMinimum")?.map(|bound| bound + 1);
    let below = bound(schema, "exclusiveMaximum")?.map(|bound| bound - 1);
    Ok((bound(schema, "minimum")?.or(above), bound(schema, "maximum")?.or(below)))
}

/// Whether a schema is of whole numbers with a bound that a double rounds.
pub(crate) fn is_wide(schema: &Object) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("integer")
        && schema.get("multipleOf").is_none()
        && bounds(schema)
            .is_ok_and(|(min, max)| [min, max].into_iter().flatten().any(|bound| bound.abs() > MAX_DOUBLE))
}

/// Lark's regex for whole numbers between their bounds.
///
/// # Errors
/// A bound is not whole, or there is no number between them.
pub(crate) fn whole(schema: &Object) -> Result<String, Refusal> {
    let (min, max) = bounds(schema)?;
    let mut ways = Vec::new();
    if min.is_none_or(|min| min < 0) {
        let from = max.map_or(1, |max| (-max).max(1));
        ways.extend(range(from, min.map(|min| -min)).map(|part| format!("-{part}")));
    }
    if max.is_none_or(|max| max >= 0) {
        ways.extend(range(min.map_or(0, |min| min.max(0)), max));
    }
    match ways.is_empty() {
        true => Err(refusal("'minimum' and 'maximum': no whole number lies between them")),
        false => Ok(format!("/(?:{})/", ways.join("|"))),
    }
}

/// Lark's regex for numbers that are not whole, `{"type": "number", "not": {"multipleOf": 1}}` with bounds.
///
/// # Errors
/// A bound is not whole, or there is no number between them.
pub(crate) fn fractions(schema: &Object) -> Result<String, Refusal> {
    let min = bound(schema, "minimum")?.or(bound(schema, "exclusiveMinimum")?);
    let max = bound(schema, "maximum")?.or(bound(schema, "exclusiveMaximum")?);
    let mut ways = Vec::new();
    // -(I.f) with its whole part I: at least `min` if I < -min, at most `max` if I >= -max.
    if min.is_none_or(|min| min < 0) {
        let from = max.map_or(0, |max| (-max).max(0));
        ways.extend(range(from, min.map(|min| -min - 1)).map(|part| format!("-{part}")));
    }
    if max.is_none_or(|max| max > 0) {
        ways.extend(range(min.map_or(0, |min| min.max(0)), max.map(|max| max - 1)));
    }
    match ways.is_empty() {
        true => Err(refusal("'not': no number between the bounds is not whole")),
        false => Ok(format!("/(?:{}){FRACTION}/", ways.join("|"))),
    }
}

/// A regex for the whole numbers in a range that begins at 0 or above; None if it is empty.
fn range(from: i128, to: Option<i128>) -> Option<String> {
    if to.is_some_and(|to| to < from) {
        return None;
    }
    let mut ways = Vec::new();
    let mut low = from;
    loop {
        let digits = low.to_string().len();
        let last = 10i128.pow(digits as u32) - 1;
        if let Some(to) = to.filter(|to| *to <= last) {
            ways.push(between(&low.to_string(), &to.to_string()));
            break;
        }
        ways.push(between(&low.to_string(), &last.to_string()));
        if to.is_none() {
            ways.push(format!("[1-9][0-9]{{{digits},}}"));
            break;
        }
        low = last + 1;
    }
    Some(format!("(?:{})", ways.join("|")))
}

/// A regex for the numbers between two of as many digits.
fn between(low: &str, high: &str) -> String {
    if low == high {
        return low.to_owned();
    }
    if low.bytes().all(|digit| digit == b'0') && high.bytes().all(|digit| digit == b'9') {
        return format!("[0-9]{{{}}}", low.len());
    }
    let (first, last) = (low.as_bytes()[0], high.as_bytes()[0]);
    let rest = low.len() - 1;
    if rest == 0 {
        return format!("[{}-{}]", char::from(first), char::from(last));
    }
    if first == last {
        return format!("{}{}", char::from(first), between(&low[1..], &high[1..]));
    }
    let mut ways = vec![format!("{}{}", char::from(first), between(&low[1..], &"9".repeat(rest)))];
    if last - first > 1 {
        ways.push(format!("[{}-{}][0-9]{{{rest}}}", char::from(first + 1), char::from(last - 1)));
    }
    ways.push(format!("{}{}", char::from(last), between(&"0".repeat(rest), &high[1..])));
    format!("(?:{})", ways.join("|"))
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_have_their_numbers_and_no_others() {
        for (from, to) in [
            (0, Some(0)),
            (0, None),
            (7, Some(7)),
            (3, Some(120)),
            (95, Some(1005)),
            (38, None),
            (100, Some(999)),
        ] {
            let regex = Regex::new(&format!("^{}$", range(from, to).unwrap())).unwrap();
            for number in (0..3000).chain([99_999, 100_000]) {
                let within = number >= from && to.is_none_or(|to| number <= to);
                assert_eq!(
                    regex.is_match(number.to_string().as_str()),
                    within,
                    "{number} in {from} to {to:?}"
                );
            }
            assert!(!regex.is_match("00") && !regex.is_match("012"));
        }
        assert!(range(5, Some(4)).is_none());
    }

    #[test]
    fn fractions_lie_between_the_bounds() {
        for (min, max) in [
            (None, None),
            (Some(-2), Some(13)),
            (Some(2), None),
            (None, Some(-3)),
            (None, Some(0)),
            (Some(-1), Some(0)),
        ] {
            let mut schema = json!({"type": "number", "not": {"multipleOf": 1}});
            min.into_iter().for_each(|min: i64| schema["minimum"] = json!(min));
            max.into_iter().for_each(|max: i64| schema["exclusiveMaximum"] = json!(max as f64));
            let lark = fractions(schema.as_object().unwrap()).unwrap();
            let regex = Regex::new(&format!("^{}$", &lark[1..lark.len() - 1])).unwrap();
            for tenths in -200..200i64 {
                let text = format!(
                    "{}{}.{}",
                    if tenths < 0 { "-" } else { "" },
                    tenths.abs() / 10,
                    tenths.abs() % 10
                );
                let value = tenths as f64 / 10.0;
                let within = tenths % 10 != 0
                    && min.is_none_or(|min| value > min as f64)
                    && max.is_none_or(|max| value < max as f64);
                assert_eq!(regex.is_match(text.as_str()), within, "{text} between {min:?} and {max:?}");
            }
            assert!(!regex.is_match("3") && !regex.is_match("3.") && !regex.is_match("3.000"));
        }
        assert!(fractions(json!({"minimum": 0.5}).as_object().unwrap()).is_err());
    }

    #[test]
    fn wide_bounds_are_kept_to_the_last_digit() {
        let (unsigned, signed) = (i128::from(u64::MAX), i128::from(i64::MAX));
        let cases: [(serde_json::Value, &[i128], &[i128]); 4] = [
            (json!({"minimum": 0, "maximum": u64::MAX}), &[0, 7, unsigned], &[-1, unsigned + 1]),
            (
                json!({"minimum": i64::MIN, "maximum": i64::MAX}),
                &[0, -1, -signed - 1, signed],
                &[-signed - 2, signed + 1],
            ),
            (json!({"exclusiveMinimum": 1u64 << 60}), &[(1 << 60) + 1, 1 << 90], &[1 << 60, 0, -5]),
            (json!({"maximum": -(1i64 << 60)}), &[-(1 << 60), -(1 << 80)], &[0, 5, -(1 << 60) + 1]),
        ];
        for (schema, good, bad) in cases {
            let mut schema = schema.as_object().unwrap().clone();
            schema.insert("type".into(), json!("integer"));
            assert!(is_wide(&schema));
            let lark = whole(&schema).unwrap();
            let regex = Regex::new(&format!("^{}$", &lark[1..lark.len() - 1])).unwrap();
            assert!(good.iter().all(|number| regex.is_match(number.to_string().as_str())), "{schema:?}");
            assert!(!bad.iter().any(|number| regex.is_match(number.to_string().as_str())), "{schema:?}");
            assert!(!regex.is_match("-0") && !regex.is_match("01"));
        }
        assert!(!is_wide(json!({"type": "integer", "maximum": 5}).as_object().unwrap()));
    }
}
