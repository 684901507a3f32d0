//! Numbers as Python writes them.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr, ValueKind};

/// An integer of more than 128 bits: templates can only write it.
#[derive(Debug)]
pub(crate) struct BigInteger(pub(crate) String);

impl Object for BigInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an integer by its digits.
pub fn big_integer(digits: String) -> Value {
    digits.parse::<i128>().map_or_else(|_| Value::from_object(BigInteger(digits)), Value::from)
}

/// Returns the value of a float, and nothing for integers and other values.
pub(crate) fn float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

/// Returns a float as Python's `repr` writes it.
pub(crate) fn repr(float: f64) -> String {
    if !float.is_finite() {
        return float.to_string().to_lowercase();
    }
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float == 0.0 || (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::repr;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let floats =
            [0.0, -0.0, 1.0, 0.1, 1e-4, 1e-5, 1.5e-7, 1e15, 1e16, 1.25e100, f64::NAN, f64::NEG_INFINITY];
        let written: Vec<_> = floats.into_iter().map(repr).collect();
        let python = "0.0 -0.0 1.0 0.1 0.0001 1e-05 1.5e-07 1000000000000000.0 1e+16 1.25e+100 nan -inf";
        assert_eq!(written.join(" "), python);
    }
}
