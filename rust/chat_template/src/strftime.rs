//! `strftime_now`: the time that templates put into system messages, in English.

use jiff::ZonedDateTime;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use minijinja::{Error, ErrorKind};

/// A directive may ask for a width, so that a text of any length could be made of a long layout.
const MOST_CHARACTERS: usize = 1_000;

/// The local time in a layout of `strftime`, without its zone, as transformers has it.
pub(crate) fn now(layout: &str) -> Result<String, Error> {
    format(ZonedDateTime::now().datetime(), layout)
}

fn format(time: DateTime, layout: &str) -> Result<String, Error> {
    let refused = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}"));
    if layout.len() > MOST_CHARACTERS {
        return Err(refused(format!("a layout has at most {MOST_CHARACTERS} characters")));
    }
    strtime::format(layout, time).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::format;

    const TIME: jiff::civil::DateTime = jiff::civil::date(2024, 7, 4).at(0, 5, 9, 0);

    #[test]
    fn layouts_are_written_in_english() {
        let layout = "%d %b %Y|%A, %B %-d|%I:%M %p|%Y-%m-%dT%H:%M:%S|%j%%|%y|%F|%e|%a|%D|%T|%u|%w";
        let written = "04 Jul 2024|Thursday, July 4|12:05 AM|2024-07-04T00:05:09|186%|24|2024-07-04| 4|Thu|\
                       07/04/24|00:05:09|4|4";
        assert_eq!(format(TIME, layout).unwrap(), written);
    }

    #[test]
    fn unknown_directives_and_long_layouts_are_refused() {
        for layout in ["%!", "%10000000000d", &"%d".repeat(501)] {
            assert!(format(TIME, layout).is_err(), "{layout}");
        }
    }
}
