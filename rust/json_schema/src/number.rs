//! Exact decimal numbers, so that constraints on numbers are decided without rounding.
//!
//! A number with more than 20 digits before or 18 after the point is not one of these; keywords with such a number cannot
//! be enforced. O(digits).

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// `digits / 10^places`, with as few places as it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decimal {
    digits: i128,
    places: u32,
}

const MAX_DIGITS: i128 = 100_000_000_000_000_000_000;
const MAX_PLACES: u32 = 18;
/// llguidance makes a state of each remainder.
const MAX_DIVISOR: i128 = 20_000;
/// Whole numbers up to here are exact in a double, which is how llguidance reads a bound.
const MAX_EXACT: i128 = 1 << 53;

impl Decimal {
    pub(crate) fn new(digits: i128, places: u32) -> Option<Self> {
        let (mut digits, mut places) = (digits, places);
        while places > 0 && digits % 10 == 0 {
            digits /= 10;
            places -= 1;
        }
        (digits.abs() <= MAX_DIGITS && places <= MAX_PLACES).then_some(Decimal { digits, places })
    }

    pub(crate) fn whole(value: i128) -> Option<Self> {
        Self::new(value, 0)
    }

    /// Reads the number as it is written (`1.50`, `1e-8`).
    pub(crate) fn from_number(number: &Number) -> Option<Self> {
        let text = number.to_string();
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text.as_str(), 0),
        };
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let part = part.trim_end_matches('0');
        if whole.len() + part.len() > 36 {
            return None;
        }
        let mut digits: i128 = format!("{whole}{part}").parse().ok()?;
        let mut places = part.len() as i32 - exponent;
        if digits == 0 {
            places = 0;
        }
        while places < 0 {
            digits = digits.checked_mul(10)?;
            places += 1;
        }
        // Zeros at the end take no place.
        while places > 0 && digits % 10 == 0 {
            digits /= 10;
            places -= 1;
        }
        Self::new(digits, u32::try_from(places).ok()?)
    }

    /// A bound near one that is none of these numbers, or that a double rounds: less than a part in 10^13 further inward, or
    /// the largest of these numbers.
    pub(crate) fn inward(bound: &Number, at_least: bool) -> Option<Self> {
        let value = bound.as_f64()?;
        if value.abs() >= MAX_DIGITS as f64 {
            let outward = (value < 0.0) == at_least;
            return outward.then(|| Self::whole(if at_least { -MAX_DIGITS } else { MAX_DIGITS })).flatten();
        }
        let before = if value.abs() < 1.0 { 0 } else { value.abs().log10() as u32 + 1 };
        let places = 14u32.saturating_sub(before);
        let scaled = value * 10f64.powi(places as i32);
        // The product may be rounded by less than one.
        let digits = if at_least { scaled.ceil() + 1.0 } else { scaled.floor() - 1.0 };
        Self::new(digits as i128, places)
    }

    pub(crate) fn is_whole(self) -> bool {
        self.places == 0
    }

    /// The number, if it is whole.
    pub(crate) fn as_whole(self) -> Option<i128> {
        self.is_whole().then_some(self.digits)
    }

    pub(crate) fn is_positive(self) -> bool {
        self.digits > 0
    }

    /// The largest whole number not above it.
    pub(crate) fn floor(self) -> Decimal {
        Decimal { digits: self.digits.div_euclid(10_i128.pow(self.places)), places: 0 }
    }

    /// The smallest whole number not below it.
    pub(crate) fn ceil(self) -> Decimal {
        Decimal { digits: -(-self.digits).div_euclid(10_i128.pow(self.places)), places: 0 }
    }

    /// The whole number that is `by` away; only for whole numbers.
    pub(crate) fn step(self, by: i128) -> Decimal {
        Decimal { digits: self.digits + by, places: 0 }
    }

    fn aligned(self, other: Decimal) -> (i128, i128, u32) {
        let places = self.places.max(other.places);
        // At most 10^20 times 10^18: within i128.
        let scale = |number: Decimal| number.digits * 10_i128.pow(places - number.places);
        (scale(self), scale(other), places)
    }

    /// Whether it is a whole multiple of `of`, which is not zero.
    pub(crate) fn is_multiple(self, of: Decimal) -> bool {
        let (a, b, _) = self.aligned(of);
        a % b == 0
    }

    /// The least common multiple; both are positive.
    pub(crate) fn common_multiple(self, other: Decimal) -> Option<Decimal> {
        let (a, b, places) = self.aligned(other);
        let (mut x, mut y) = (a, b);
        while y != 0 {
            (x, y) = (y, x % y);
        }
        Self::new((a / x).checked_mul(b)?, places)
    }

    /// The first and the last whole number whose product with `of` (above zero) lies between the bounds; a bound is left
    /// out itself where the flag says so.
    pub(crate) fn multiples(min: (Decimal, bool), max: (Decimal, bool), of: Decimal) -> (i128, i128) {
        let (a, b, _) = min.0.aligned(of);
        let first = if min.1 { a.div_euclid(b) + 1 } else { -(-a).div_euclid(b) };
        let (a, b, _) = max.0.aligned(of);
        let last = if max.1 { -(-a).div_euclid(b) - 1 } else { a.div_euclid(b) };
        (first, last)
    }

    /// That many times it.
    pub(crate) fn times(self, count: i128) -> Option<Decimal> {
        Self::new(self.digits.checked_mul(count)?, self.places)
    }

    /// Whether llguidance reads it as a bound without rounding.
    pub(crate) fn is_exact_bound(self) -> bool {
        self.digits.abs() <= MAX_EXACT && self.places <= 15 && self.written().is_some()
    }

    /// Whether llguidance reads it as a bound of whole numbers without rounding; `both` says that there is one at the other
    /// side, too. It makes an i64 of a double, the largest i64 of all doubles above.
    pub(crate) fn is_exact_whole_bound(self, at_least: bool, both: bool) -> bool {
        if self.is_exact_bound() {
            return true;
        }
        let most = i128::from(i64::MAX);
        // A double holds at most 2^63 here, so the conversion back is exact.
        let exact = self.is_whole()
            && self.digits.abs() <= most
            && (self.digits as f64 as i128 == self.digits || self.digits == most);
        // Where it is the only one and above zero, llguidance fails at numbers of 19 digits.
        exact && (both || !at_least || self.digits < 1_000_000_000_000_000_000)
    }

    /// Whether llguidance reads it as a divisor without rounding: it reads a double and multiplies that by
    /// ten until nothing is behind the point, and divides digit by digit in 32 bits.
    pub(crate) fn is_exact_divisor(self) -> bool {
        if self.digits > MAX_DIVISOR || self.places > 8 {
            return false;
        }
        let Some(mut value) = self.written().and_then(|number| number.as_f64()) else { return false };
        let mut places = 0;
        while value.fract() != 0.0 && places <= 8 {
            value *= 10.0;
            places += 1;
        }
        places == self.places && value == self.digits as f64
    }

    fn written(self) -> Option<Number> {
        if self.places == 0 {
            let signed = i64::try_from(self.digits).ok().map(Number::from);
            return signed.or_else(|| u64::try_from(self.digits).ok().map(Number::from));
        }
        let number = Number::from_f64(format!("{}e-{}", self.digits, self.places).parse().ok()?)?;
        (Decimal::from_number(&number) == Some(self)).then_some(number)
    }

    /// As a number of JSON; none if it cannot be written without rounding.
    pub(crate) fn to_value(self) -> Option<Value> {
        self.written().map(Value::Number)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b, _) = self.aligned(*other);
        a.cmp(&b)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Decimal> {
        Decimal::from_number(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, digits, places) in [
            ("1.50", 15, 1),
            ("-0.0", 0, 0),
            ("1e2", 100, 0),
            ("1e-8", 1, 8),
            ("12300", 12_300, 0),
            ("-2.5e1", -25, 0),
        ] {
            assert_eq!(read(text), Some(Decimal { digits, places }), "{text}");
        }
        for text in ["1e300", "1e-300", "1e21", "-1.5e308"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(read("9007199254740992").unwrap().is_exact_bound());
        assert!(!read("9007199254740993").unwrap().is_exact_bound());
        for (text, exact) in [
            ("1000000000000000000", true),
            ("9223372036854775807", true),
            ("9223372036854775806", false),
            ("9223372036854775808", false),
            ("-9223372036854775808", false),
            ("-9223372036854774784", true),
        ] {
            assert_eq!(read(text).unwrap().is_exact_whole_bound(false, false), exact, "{text}");
        }
        assert!(!read("1000000000000000000").unwrap().is_exact_whole_bound(true, false));
        assert!(read("1000000000000000000").unwrap().is_exact_whole_bound(true, true));
        assert!(read("0.01").unwrap().is_exact_divisor());
        assert!(!read("0.07").unwrap().is_exact_divisor(), "the compiler's doubling by ten goes astray");
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_hundredths(a in -500..500i64, b in -500..500i64, of in 1..300i64, out in any::<[bool; 2]>()) {
            let hundredths = |n: i64| Decimal::new(n.into(), 2).unwrap();
            let (x, y, step) = (hundredths(a), hundredths(b), hundredths(of));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!(x.is_multiple(step), a % of == 0);
            prop_assert_eq!(x.floor(), Decimal::whole(a.div_euclid(100).into()).unwrap());
            prop_assert_eq!(x.ceil(), Decimal::whole((-(-a).div_euclid(100)).into()).unwrap());
            let (first, last) = Decimal::multiples((x, out[0]), (y, out[1]), step);
            for count in -501..501i64 {
                let at = count * of;
                let inside = (at > a || at == a && !out[0]) && (at < b || at == b && !out[1]);
                prop_assert_eq!(inside, i128::from(count) >= first && i128::from(count) <= last);
            }
            if let Some(both) = step.common_multiple(hundredths(250)) {
                let expected = (1..).map(|n| n * of).find(|n| n % 250 == 0).unwrap();
                prop_assert_eq!(both, hundredths(expected));
            }
        }
    }
}
