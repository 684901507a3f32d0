//! Methods of Python's `str`, `list`, `dict` and `float` that templates call, beyond those of `minijinja_contrib`.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::widths;

/// Calls a method of a value.
///
/// # Errors
///
/// The value has no such method, its arguments do not fit, or the fuel runs out.
pub(crate) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => call_text(state, value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq => call_list(value, method, args),
        ValueKind::Map if method == "copy" => Some(from_args(args).map(|()| value.clone())),
        ValueKind::Number if method == "is_integer" => {
            let whole = f64::try_from(value.clone()).is_ok_and(|number| number.fract() == 0.0);
            Some(from_args(args).map(|()| Value::from(whole)))
        }
        _ => None,
    };
    own.unwrap_or_else(|| unknown_method_callback(state, value, method, args))
}

/// Calls a method of a text; none for those that others have.
pub(crate) fn call_text(
    state: &State,
    text: &str,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    Some(match method {
        "strip" => from_args(args).map(|(set,): (Option<&str>,)| stripped(text, set, true, true).into()),
        "lstrip" => from_args(args).map(|(set,): (Option<&str>,)| stripped(text, set, true, false).into()),
        "rstrip" => from_args(args).map(|(set,): (Option<&str>,)| stripped(text, set, false, true).into()),
        "split" | "rsplit" => split(text, method == "rsplit", args),
        "splitlines" => from_args(args).map(|(keep,): (Option<bool>,)| lines(text, keep.unwrap_or(false))),
        "partition" | "rpartition" => partition(text, method == "rpartition", args),
        "removeprefix" => {
            from_args(args).map(|(end,): (&str,)| text.strip_prefix(end).unwrap_or(text).into())
        }
        "removesuffix" => {
            from_args(args).map(|(end,): (&str,)| text.strip_suffix(end).unwrap_or(text).into())
        }
        "index" | "rindex" => index(text, method == "rindex", args),
        "casefold" => from_args(args).map(|()| text.to_lowercase().into()),
        "swapcase" => from_args(args).map(|()| swapped_case(text).into()),
        "isdecimal" => {
            from_args(args).map(|()| (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into())
        }
        "ljust" | "rjust" | "center" | "zfill" => padded(state, text, method, args),
        "format" => match widths::check_fields(text) {
            Ok(()) => return None,
            Err(refused) => Err(refused),
        },
        _ => return None,
    })
}

fn call_list(value: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "copy" => from_args(args).map(|()| value.clone()),
        "index" => from_args(args).and_then(|(sought,): (&Value,)| {
            let at = value.try_iter()?.position(|item| item == *sought);
            at.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
        }),
        _ => return None,
    })
}

/// A text without the characters of `set` around it; without white space where there is no set.
pub(crate) fn stripped<'a>(text: &'a str, set: Option<&str>, start: bool, end: bool) -> &'a str {
    let goes = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    if end { text.trim_end_matches(goes) } else { text }
}

/// White space of Python: that of Unicode and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.map_or_else(|| named.get::<Option<String>>("sep"), |s| Ok(Some(s.into())))?;
    let limit = limit.map_or_else(|| named.get::<Option<i64>>("maxsplit"), |n| Ok(Some(n)))?.unwrap_or(-1);
    named.assert_all_used()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX - 1) + 1;
    let parts: Vec<&str> = match (&separator, from_end) {
        (Some(separator), _) if separator.is_empty() => return Err(invalid("the separator is empty")),
        (Some(separator), false) => text.splitn(limit, separator.as_str()).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<&str> = text.rsplitn(limit, separator.as_str()).collect();
            parts.reverse();
            parts
        }
        (None, false) => words(text, limit),
        (None, true) if limit == usize::MAX => words(text, limit),
        (None, true) => return Err(invalid("rsplit takes a limit only with a separator")),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of a text; the last of `limit` words is all that is left.
fn words(text: &str, limit: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if words.len() + 1 == limit { None } else { rest.find(is_space) };
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    words
}

fn lines(text: &str, keep_ends: bool) -> Value {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines: Vec<Value> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(is_end).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at + 1..].starts_with('\n') => at + 2,
            Some(character) => at + character.len_utf8(),
            None => at,
        };
        lines.push(rest[..if keep_ends { end } else { at }].into());
        rest = &rest[end..];
    }
    Value::from(lines)
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let parts = match (from_end, text.split_once(separator), text.rsplit_once(separator)) {
        _ if separator.is_empty() => return Err(invalid("the separator is empty")),
        (false, Some((before, after)), _) | (true, _, Some((before, after))) => [before, separator, after],
        (false, None, _) => [text, "", ""],
        (true, _, None) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn index(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (sought,): (&str,) = from_args(args)?;
    let at = if from_end { text.rfind(sought) } else { text.find(sought) };
    let at = at.ok_or_else(|| invalid("the substring is not in the text"))?;
    Ok(Value::from(text[..at].chars().count()))
}

fn swapped_case(text: &str) -> String {
    let swap =
        |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    text.chars().map(swap).collect()
}

fn padded(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 16)?;
    let fill = fill.unwrap_or(if method == "zfill" { '0' } else { ' ' });
    let pad = |length| std::iter::repeat_n(fill, length).collect::<String>();
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(Value::from(match method {
        "ljust" => text.to_owned() + &pad(missing),
        "rjust" => pad(missing) + text,
        "zfill" => format!("{sign}{}{digits}", pad(missing)),
        _ => {
            let left = missing / 2 + (missing & width & 1); // as Python parts an odd number
            pad(left) + text + &pad(missing - left)
        }
    }))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
