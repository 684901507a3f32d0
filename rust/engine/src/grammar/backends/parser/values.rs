//! The value of a text of JSON that is neither an array nor an object, so that equal values are equal bytes.
//!
//! ```text
//!  "\u0041b"  ─►  " A b end        strings by their characters, however they are escaped
//!  10.0, 1e1  ─►  # 1 e 1          numbers by their digits, without zeros around them
//! ```
//!
//! O(text).

use num_bigint::BigInt;

/// Behind the last character of a string; no text has it.
const END: u8 = 0xff;
/// Begins a number.
const NUMBER: u8 = b'#';

/// What a whole text says.
pub(super) fn whole(text: &[u8]) -> Vec<u8> {
    let text = trimmed(text);
    match text.first() {
        Some(b'"') => string(text),
        Some(b'-' | b'0'..=b'9') => number(text),
        _ => text.to_vec(),
    }
}

/// What all values begin with that a text may still become.
pub(super) fn begun(text: &[u8]) -> Vec<u8> {
    let text = trimmed(text);
    match text.first() {
        Some(b'"') => string(text),
        Some(b'-' | b'0'..=b'9') => vec![NUMBER],
        _ => text.to_vec(),
    }
}

fn trimmed(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_start();
    // Nothing is trimmed from the end of a string that has not ended.
    if text.first() == Some(&b'"') { text } else { text.trim_ascii_end() }
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
    use super::*;

    #[test]
    fn equal_values_are_equal_bytes() {
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
        ] {
            let all: Vec<_> = same.iter().map(|text| whole(text.as_bytes())).collect();
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{same:?}");
        }
        let different =
            ["1", "10", "\"1\"", "0.1", "-1", "true", "null", "\"\"", "\"a\"", "\"a\\\"\"", "1e400"];
        for (at, one) in different.iter().enumerate() {
            for other in &different[..at] {
                assert_ne!(whole(one.as_bytes()), whole(other.as_bytes()), "{one} {other}");
            }
        }
    }

    #[test]
    fn what_has_begun_begins_the_whole() {
        for text in ["\"aé\\u00e9\\ud83d\\ude00b\\\"\"", r#""\ud83dx""#, "-12.5e3", "true", "\"\\\\\""] {
            let value = whole(text.as_bytes());
            for end in 0..=text.len() {
                let begun = begun(&text.as_bytes()[..end]);
                assert!(value.starts_with(&begun), "{text} up to {end}: {begun:?} of {value:?}");
            }
        }
    }
}
