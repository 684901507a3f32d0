//! Bounds the widths and precisions of formats, which can ask for any amount of memory in a few characters.

use minijinja::{Error, ErrorKind};

/// Digits that a width or a precision may have.
const MOST_DIGITS: usize = 4;

/// Refuses `layout`, in the style of `str.format`, if a field asks for a width of more than four digits.
///
/// # Errors
///
/// It does.
pub(crate) fn check_fields(layout: &str) -> Result<(), Error> {
    // Within a field's layout there is no text: any long number is a width, a precision, or the place of an argument.
    for field in layout.split('{').skip(1) {
        check(field.split('}').next().unwrap_or_default())?;
    }
    Ok(())
}

/// Refuses `layout`, in the style of `printf`, likewise.
///
/// # Errors
///
/// It asks for more, or takes a width from a value.
pub(crate) fn check_directives(layout: &str) -> Result<(), Error> {
    for directive in layout.replace("%%", "").split('%').skip(1) {
        let end = directive.find(|c: char| c.is_ascii_alphabetic() || c == '%').unwrap_or(directive.len());
        let flags = &directive[..end];
        if flags.contains('*') {
            return Err(refused());
        }
        check(flags)?;
    }
    Ok(())
}

fn check(layout: &str) -> Result<(), Error> {
    let longest = layout.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if longest > MOST_DIGITS { Err(refused()) } else { Ok(()) }
}

fn refused() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a format's width is not a number of at most four digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_in_fields_are_refused() {
        for layout in ["{:>10000}", "{:.99999}", "a {0:{}} {1:>123456}", "{:0100000d}"] {
            assert!(check_fields(layout).is_err(), "{layout}");
        }
        for layout in ["", "1234567", "{}", "{:>9999}", "{0} 1234567 {x:.2f}", "}1234567"] {
            check_fields(layout).unwrap();
        }
    }

    #[test]
    fn long_numbers_in_directives_are_refused() {
        for layout in ["%10000d", "a %-+99999s", "%*d", "%.12345f"] {
            assert!(check_directives(layout).is_err(), "{layout}");
        }
        for layout in ["", "1234567", "%s 1234567", "%9999d", "100%% 1234567", "%05.2f"] {
            check_directives(layout).unwrap();
        }
    }
}
