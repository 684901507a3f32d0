//! Numbers as patterns: those of a range whose text says all that is asked of them.
//!
//! ```text
//!  whole   -2 to 13            -  1 to 2  |  0 to 13
//!  others  between these       -  0 to 1  .  a digit that is not 0 among others
//!                                 0 to 12 .  ...
//! ```
//!
//! O(digits of the bounds).

/// A part behind the point that is not 0.
const FRACTION: &str = r"\.[0-9]*[1-9][0-9]*";

/// A pattern of the whole numbers from `min` to `max`, without a point and without `-0`; none if there is none.
pub(crate) fn whole(min: Option<i128>, max: Option<i128>) -> Option<String> {
    let mut ways = Vec::new();
    if min.is_none_or(|min| min < 0) {
        let from = max.map_or(1, |max| (-max).max(1));
        ways.extend(range(from, min.map(|min| -min)).map(|part| format!("-{part}")));
    }
    if max.is_none_or(|max| max >= 0) {
        ways.extend(range(min.map_or(0, |min| min.max(0)), max));
    }
    (!ways.is_empty()).then(|| format!("(?:{})", ways.join("|")))
}

/// A pattern of the numbers between `min` and `max` that are not whole; none if there is none.
pub(crate) fn fractions(min: Option<i128>, max: Option<i128>) -> Option<String> {
    let mut ways = Vec::new();
    // -(I.f) with its whole part I: at least `min` if I < -min, at most `max` if I >= -max.
    if min.is_none_or(|min| min < 0) {
        let from = max.map_or(0, |max| (-max).max(0));
        ways.extend(range(from, min.map(|min| -min - 1)).map(|part| format!("-{part}")));
    }
    if max.is_none_or(|max| max > 0) {
        ways.extend(range(min.map_or(0, |min| min.max(0)), max.map(|max| max - 1)));
    }
    (!ways.is_empty()).then(|| format!("(?:{}){FRACTION}", ways.join("|")))
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
    use crate::language::{Languages, search};

    use super::*;

    /// Which of `texts` a pattern takes.
    fn taken<'a>(pattern: &str, texts: &[&'a str]) -> Vec<&'a str> {
        let mut langs = Languages::new(1_000_000);
        let lang = search::language(&mut langs, &format!("^(?:{pattern})$")).unwrap();
        texts.iter().copied().filter(|text| langs.matches(lang, text) == Some(true)).collect()
    }

    #[test]
    fn ranges_have_their_numbers_and_no_others() {
        let bounds =
            [None, Some(-1005), Some(-38), Some(-1), Some(0), Some(7), Some(95), Some(100), Some(999)];
        let numbers: Vec<i128> = (-1100..1100).chain([-99_999, 99_999, 100_000]).collect();
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for min in bounds {
            for max in bounds {
                let within: Vec<&str> = (0..texts.len())
                    .filter(|&at| {
                        min.is_none_or(|min| numbers[at] >= min) && max.is_none_or(|max| numbers[at] <= max)
                    })
                    .map(|at| texts[at])
                    .collect();
                match whole(min, max) {
                    Some(pattern) => assert_eq!(taken(&pattern, &texts), within, "{min:?} {max:?}"),
                    None => assert!(within.is_empty(), "{min:?} {max:?}"),
                }
            }
        }
        let all = whole(None, None).unwrap();
        assert!(taken(&all, &["-0", "00", "012", "-", "", "1.0"]).is_empty());
    }

    #[test]
    fn fractions_lie_between_the_bounds() {
        let written = |tenths: i128| {
            format!("{}{}.{}", if tenths < 0 { "-" } else { "" }, tenths.abs() / 10, tenths.abs() % 10)
        };
        let texts: Vec<String> = (-200..200).map(written).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let bounds = [
            (None, None),
            (Some(-2), Some(13)),
            (Some(2), None),
            (None, Some(-3)),
            (None, Some(0)),
            (Some(-1), Some(0)),
        ];
        for (min, max) in bounds {
            let within: Vec<&str> = (-200..200i128)
                .zip(&texts)
                .filter(|(tenths, _)| tenths % 10 != 0)
                .filter(|(tenths, _)| {
                    min.is_none_or(|min| *tenths > 10 * min) && max.is_none_or(|max| *tenths < 10 * max)
                })
                .map(|(_, text)| *text)
                .collect();
            assert_eq!(taken(&fractions(min, max).unwrap(), &texts), within, "{min:?} {max:?}");
        }
        assert!(taken(&fractions(None, None).unwrap(), &["3", "3.", "3.000"]).is_empty());
        assert_eq!(fractions(Some(0), Some(0)), None);
    }

    #[test]
    fn multiples_are_told_by_their_digits() {
        let mut langs = Languages::new(1_000_000);
        for of in [1, 2, 3, 7, 10, 12, 97] {
            let multiples = langs.multiples(of);
            for number in -300..300i64 {
                let expected = number % i64::from(of) == 0;
                assert_eq!(langs.matches(multiples, &number.to_string()), Some(expected), "{number} {of}");
            }
        }
    }
}
