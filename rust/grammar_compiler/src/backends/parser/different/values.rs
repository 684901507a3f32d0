//! The value of a text of JSON, whole or begun, so that equal values are equal however they are written.
//!
//! ```text
//!  "\u0041b"         ─►  " A b end                  strings by their characters, however they are escaped
//!  10.0, 1e1         ─►  # 1 e 1                    numbers by their digits, without zeros around them
//!  {"b": 1, "a": []} ─►  a: [], b: # 1 e 0          objects by their keys, of which the last of equal ones counts
//!  {"b": 1, "a": [2  ─►  b: # 1 e 0, a: list of #   what has begun: any number may still come of the 2
//! ```
//!
//! O(text).

use std::collections::BTreeMap;

use num_bigint::BigInt;

/// Behind the last character of a string; no text has it.
const END: u8 = 0xff;
/// Begins a number.
const NUMBER: u8 = b'#';

/// A value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Json {
    Scalar(Vec<u8>),
    List(Vec<Json>),
    Object(BTreeMap<Vec<u8>, Json>),
}

/// What a text says that may go on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Begun {
    Nothing,
    Whole(Json),
    /// What all scalars begin with that it may become.
    Scalar(Vec<u8>),
    /// A number that may go on, as it is written.
    Number(Vec<u8>),
    /// Items, and one more or none.
    List(Vec<Json>, Box<Begun>),
    /// Members, and the key and the value of one more.
    Object(BTreeMap<Vec<u8>, Json>, Option<Key>, Box<Begun>),
}

/// A key, or what it begins with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    text: Vec<u8>,
    is_whole: bool,
}

impl Json {
    /// About how many bytes its text has at most.
    pub fn size(&self) -> usize {
        match self {
            Json::Scalar(text) => text.len() + 2,
            Json::List(items) => 2 + items.iter().map(|item| item.size() + 2).sum::<usize>(),
            Json::Object(members) => {
                2 + members.iter().map(|(key, member)| key.len() + member.size() + 6).sum::<usize>()
            }
        }
    }
}

impl Key {
    fn may_be(&self, name: &[u8]) -> bool {
        if self.is_whole { name == self.text } else { name.starts_with(&self.text) }
    }
}

impl Begun {
    /// What a text says; with a number at its end that is whole where `ended` says so.
    pub fn new(text: &[u8], ended: bool) -> Self {
        Reader { text, at: 0, ended }.value()
    }

    /// Whether it may still become a value. No where it has other members so far, though their keys might come again; yes
    /// where one of them may have begun to.
    pub fn may_become(&self, value: &Json) -> bool {
        match (self, value) {
            (Begun::Nothing, _) => true,
            (Begun::Whole(whole), _) => whole == value,
            (Begun::Scalar(begun), Json::Scalar(value)) => value.starts_with(begun),
            (Begun::Number(_), Json::Scalar(value)) => value.starts_with(&[NUMBER]),
            (Begun::List(items, last), Json::List(values)) => {
                values.len() >= items.len()
                    && items.iter().zip(values).all(|(item, value)| item == value)
                    && match &**last {
                        Begun::Nothing => true,
                        last => values.get(items.len()).is_some_and(|value| last.may_become(value)),
                    }
            }
            (Begun::Object(members, key, last), Json::Object(values)) => {
                let again = |name: &Vec<u8>| key.as_ref().is_some_and(|key| key.may_be(name));
                members.iter().all(|(name, member)| again(name) || values.get(name) == Some(member))
                    && members.keys().all(|name| values.contains_key(name))
                    && key.as_ref().is_none_or(|key| match key.is_whole {
                        true => values.get(&key.text).is_some_and(|value| last.may_become(value)),
                        false => values.keys().any(|name| key.may_be(name)),
                    })
            }
            _ => false,
        }
    }
}

/// The value of a whole text; one that is not JSON stands for itself.
pub(crate) fn whole(text: &[u8]) -> Json {
    match Begun::new(text, true) {
        Begun::Whole(value) => value,
        _ => Json::Scalar(text.to_vec()),
    }
}

/// Reads a text from its beginning. It calls itself as deep as the text is nested, which [`memory`](super::memory) bounds.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    ended: bool,
}

impl Reader<'_> {
    /// The next byte that is not white space.
    fn next(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn value(&mut self) -> Begun {
        match self.next() {
            None => Begun::Nothing,
            Some(b'[') => self.list(),
            Some(b'{') => self.object(),
            Some(b'"') => match self.string() {
                Key { text, is_whole: true } => Begun::Whole(Json::Scalar(text)),
                Key { text, .. } => Begun::Scalar(text),
            },
            Some(_) => self.word(),
        }
    }

    fn list(&mut self) -> Begun {
        let mut items = Vec::new();
        self.at += 1;
        loop {
            match self.next() {
                Some(b']') => {
                    self.at += 1;
                    return Begun::Whole(Json::List(items));
                }
                Some(b',') => self.at += 1,
                _ => match self.value() {
                    Begun::Whole(item) => items.push(item),
                    last => return Begun::List(items, Box::new(last)),
                },
            }
        }
    }

    fn object(&mut self) -> Begun {
        let mut members = BTreeMap::new();
        self.at += 1;
        loop {
            match self.next() {
                Some(b'}') => {
                    self.at += 1;
                    return Begun::Whole(Json::Object(members));
                }
                Some(b'"') => {}
                Some(_) => {
                    self.at += 1;
                    continue;
                }
                None => return Begun::Object(members, None, Box::new(Begun::Nothing)),
            }
            let key = self.string();
            if self.next() == Some(b':') {
                self.at += 1;
            }
            match self.value() {
                Begun::Whole(value) => drop(members.insert(key.text, value)),
                last => return Begun::Object(members, Some(key), Box::new(last)),
            }
        }
    }

    fn string(&mut self) -> Key {
        let text = string(&self.text[self.at..]);
        let length = length(&self.text[self.at..]);
        self.at += length.unwrap_or(self.text.len() - self.at);
        Key { text, is_whole: length.is_some() }
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> Begun {
        let rest = &self.text[self.at..];
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        // What is not JSON is passed over.
        let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len()).max(1);
        let word = &rest[..length];
        self.at += length;
        let open = length == rest.len() && !self.ended;
        match word[0] {
            b'-' | b'0'..=b'9' if open => Begun::Number(word.to_vec()),
            b'-' | b'0'..=b'9' => Begun::Whole(Json::Scalar(number(word))),
            _ if open && ![&b"true"[..], b"false", b"null"].contains(&word) => Begun::Scalar(word.to_vec()),
            _ => Begun::Whole(Json::Scalar(word.to_vec())),
        }
    }
}

/// How long a string is that a text begins with; None if it has not ended.
fn length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The characters of a string, up to its end or to an escape that is not whole.
fn string(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    let mut at = 1;
    while let Some(byte) = text.get(at).copied() {
        at += 1;
        match byte {
            b'"' => {
                out.push(END);
                break;
            }
            b'\\' => match escaped(&text[at..]) {
                Some((point, length)) => {
                    character(point, &mut out);
                    at += length;
                }
                None => break,
            },
            byte => out.push(byte),
        }
    }
    out
}

/// The character of an escape behind its backslash, and its length; None if more may belong to it.
fn escaped(text: &[u8]) -> Option<(u32, usize)> {
    let byte = *text.first()?;
    if byte != b'u' {
        let point = match byte {
            b'b' => 8,
            b't' => 9,
            b'n' => 10,
            b'f' => 12,
            b'r' => 13,
            byte => byte.into(),
        };
        return Some((point, 1));
    }
    let unit = |text: &[u8]| u32::from_str_radix(std::str::from_utf8(text.get(..4)?).ok()?, 16).ok();
    let first = unit(&text[1..])?;
    if !(0xd800..0xdc00).contains(&first) {
        return Some((first, 5));
    }
    // The second half of a pair may follow.
    let behind = &text[5..];
    if behind.is_empty() || behind == b"\\" {
        return None;
    }
    let Some(second) = behind.strip_prefix(b"\\u") else { return Some((first, 5)) };
    let second = unit(second)?;
    match (0xdc00..0xe000).contains(&second) {
        true => Some((0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 11)),
        false => Some((first, 5)),
    }
}

/// Appends a character in UTF-8, the half of a pair likewise.
fn character(point: u32, out: &mut Vec<u8>) {
    match char::from_u32(point) {
        Some(char) => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let low = |bits: u32| 0x80 | (bits & 0x3f) as u8;
            out.extend([0xe0 | (point >> 12) as u8, low(point >> 6), low(point)]);
        }
    }
}

/// A number's digits and how many zeros are behind them.
fn number(text: &[u8]) -> Vec<u8> {
    let (sign, unsigned) = match text.strip_prefix(b"-") {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let unsigned = String::from_utf8_lossy(unsigned);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((&unsigned, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{part}");
    let digits = all.trim_start_matches('0');
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return vec![NUMBER, b'0'];
    }
    // An exponent may have any number of digits.
    let exponent = exponent.parse::<BigInt>().unwrap_or_default();
    let zeros = (digits.len() - kept.len()) as i64 - part.len() as i64;
    let written = format!("{sign}{kept}e{}", exponent + zeros);
    [&[NUMBER], written.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn equal_values_are_equal_however_they_are_written() {
        for same in [
            &["\"A\"", " \"\\u0041\"", "\"\\u0041\" "][..],
            &["\"a/b\\n\"", r#""a\/b\u000a""#],
            &["\"😀\"", r#""\ud83d\ude00""#, r#""\uD83D\uDE00""#],
            &[r#""\ud83d\n""#, r#""\uD83D\n""#],
            &["1", "1.0", "10e-1", "1E0", "0.1e+1"],
            &["0", "-0", "0.00", "0e9", "-0.0E-3"],
            &["-120", "-1.2e2", "-120.0"],
            &["1e99999999999999999999", "10E+99999999999999999998", "0.1e100000000000000000000"],
            &["1e-9223372036854775808", "0.1e-9223372036854775807", "10e-9223372036854775809"],
            &["true", "true "],
            &[
                r#"{"a": [1, {}], "b": ""}"#,
                r#"{"b":"", "\u0061" : [ 1.0,{ }]}"#,
                r#"{"b": 0, "a": [1, {}], "b": ""}"#,
            ],
        ] {
            let all: Vec<_> = same.iter().map(|text| whole(text.as_bytes())).collect();
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{same:?}");
        }
        let different = [
            "1",
            "10",
            "\"1\"",
            "0.1",
            "-1",
            "true",
            "null",
            "\"\"",
            "\"a\"",
            "\"a\\\"\"",
            "1e400",
            "[]",
            "[[]]",
            "[1]",
            "[1, 1]",
            "[\"1\"]",
            "[\"1\", 1]",
            "{}",
            "[{}]",
            r#"{"a": 1}"#,
            r#"{"a": "1"}"#,
            r#"{"1": "a"}"#,
            r#"{"a": 1, "b": 1}"#,
        ];
        for (at, one) in different.iter().enumerate() {
            for other in &different[..at] {
                assert_ne!(whole(one.as_bytes()), whole(other.as_bytes()), "{one} {other}");
            }
        }
    }

    #[test]
    fn what_has_begun_may_become_the_whole_and_not_others() {
        for (text, yes, no) in [
            ("", &["1", "[]", "{}"][..], &[][..]),
            ("1", &["1", "12", "-3"], &["\"1\"", "[]"]),
            ("tru", &["true"], &["null", "\"tru\""]),
            ("[1", &["[1]", "[17, 2]"], &["[]", "[\"1\"]", "{}"]),
            ("[1,", &["[1]", "[1, 2]"], &["[]", "[2]"]),
            ("{\"a", &[r#"{"ab": 1}"#, r#"{"x": 2, "a": 1}"#], &["{}", r#"{"b": 1}"#]),
            ("{\"a\"", &[r#"{"a": 1}"#], &[r#"{"ab": 1}"#]),
            ("{\"a\": \"x", &[r#"{"a": "xy"}"#], &[r#"{"a": "y"}"#, r#"{"b": "x"}"#]),
            ("{\"a\": 1, \"", &[r#"{"b": 2, "a": 1}"#, r#"{"a": 2}"#], &[r#"{"b": 1}"#]),
            ("{\"a\": 1, \"a\": ", &[r#"{"b": 2, "a": 1}"#, r#"{"a": 2}"#], &[r#"{"b": 1}"#]),
            ("{\"a\": 1, ", &[r#"{"b": 2, "a": 1}"#], &[r#"{"a": 2}"#, "[]"]),
        ] {
            let begun = Begun::new(text.as_bytes(), false);
            for value in yes {
                assert!(begun.may_become(&whole(value.as_bytes())), "{text} {value}");
            }
            for value in no {
                assert!(!begun.may_become(&whole(value.as_bytes())), "{text} {value}");
            }
        }
        assert!(!Begun::new(b"[1", true).may_become(&whole(b"[12]")));
    }

    /// Values whose equality serde_json tells: keys that are quoted alike, and whole numbers.
    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-12..12i64).prop_map(Value::from),
            "[ab\"\\\\é\n]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("[ab\"]{0,2}", inner), 0..3)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_are_those_of_serde_json(one in values(), other in values()) {
            let (first, second) = (one.to_string(), serde_json::to_string_pretty(&other).unwrap());
            prop_assert_eq!(whole(first.as_bytes()) == whole(second.as_bytes()), one == other);
            let Value::Object(members) = &one else { return Ok(()) };
            let turned: serde_json::Map<_, _> = members.clone().into_iter().rev().collect();
            prop_assert_eq!(whole(Value::Object(turned).to_string().as_bytes()), whole(first.as_bytes()));
        }

        #[test]
        fn what_has_begun_may_become_the_whole(one in values()) {
            let text = one.to_string();
            let value = whole(text.as_bytes());
            for end in 0..=text.len() {
                prop_assert!(Begun::new(&text.as_bytes()[..end], false).may_become(&value), "{text} up to {end}");
            }
        }
    }
}
