//! Numbers that are not whole, between two whole ones, as a regex.
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

/// A part behind the point that is not 0.
const FRACTION: &str = r"\.[0-9]*[1-9][0-9]*";

/// Lark's regex for the numbers of a schema in normal form, `{"type": "number", "not": {"multipleOf": 1}}` with bounds.
///
/// # Errors
/// A bound is not whole.
pub(crate) fn regex(schema: &Map<String, Value>) -> Result<String, Refusal> {
    let bound = |keys: [&str; 2]| -> Result<Option<i64>, Refusal> {
        let Some(value) = keys.iter().find_map(|key| schema.get(*key)) else { return Ok(None) };
        let whole = value
            .as_i64()
            .or_else(|| value.as_f64().filter(|value| value.fract() == 0.0).map(|value| value as i64));
        whole
            .map(Some)
            .ok_or_else(|| refusal(format!("'{}': a bound of what is not whole must be whole", keys[0])))
    };
    let min = bound(["minimum", "exclusiveMinimum"])?;
    let max = bound(["maximum", "exclusiveMaximum"])?;
    let mut ways = Vec::new();
    // -(I.f) with its whole part I: at least `min` if I < -min, at most `max` if I >= -max.
    if min.is_none_or(|min| min < 0) {
        let from = max.map_or(0, |max| max.min(0).unsigned_abs());
        ways.extend(range(from, min.map(|min| min.unsigned_abs() - 1)).map(|part| format!("-{part}")));
    }
    if max.is_none_or(|max| max > 0) {
        let from = min.map_or(0, |min| min.max(0).unsigned_abs());
        ways.extend(range(from, max.map(|max| max.unsigned_abs() - 1)));
    }
    match ways.is_empty() {
        true => Err(refusal("no number between the bounds is not whole")),
        false => Ok(format!("/(?:{}){FRACTION}/", ways.join("|"))),
    }
}

/// A regex for the whole numbers in a range.
fn range(from: u64, to: Option<u64>) -> Option<String> {
    if to.is_some_and(|to| to < from) {
        return None;
    }
    let mut ways = Vec::new();
    let mut low = from;
    loop {
        let digits = low.to_string().len();
        let last = 10u64.checked_pow(digits as u32).map(|next| next - 1);
        match (to, last) {
            (Some(to), last) if last.is_none_or(|last| to <= last) => {
                ways.push(between(&low.to_string(), &to.to_string()));
                break;
            }
            (_, Some(last)) => {
                ways.push(between(&low.to_string(), &last.to_string()));
                if to.is_none() {
                    ways.push(format!("[1-9][0-9]{{{digits},}}"));
                    break;
                }
                low = last + 1;
            }
            (_, None) => {
                ways.push(format!(
                    "{}|[1-9][0-9]{{{digits},}}",
                    between(&low.to_string(), &"9".repeat(digits))
                ));
                break;
            }
        }
    }
    Some(format!("(?:{})", ways.join("|")))
}

/// A regex for the numbers between two of as many digits.
fn between(low: &str, high: &str) -> String {
    if low == high {
        return low.to_owned();
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
        assert!(range(5, Some(4)).is_none() && range(u64::MAX, None).is_some());
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
            let lark = super::regex(schema.as_object().unwrap()).unwrap();
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
        assert!(super::regex(json!({"minimum": 0.5}).as_object().unwrap()).is_err());
    }
}
