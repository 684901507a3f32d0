//! `strftime_now`: the time that templates put into system messages, in English.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A local time, with the fields of Python's `time.struct_time`.
#[derive(Debug, Clone, Copy)]
pub struct LocalTime {
    /// Such as 2024.
    pub year: u32,
    /// From 1.
    pub month: u32,
    /// From 1.
    pub day: u32,
    /// From 0.
    pub hour: u32,
    /// From 0.
    pub minute: u32,
    /// From 0.
    pub second: u32,
    /// From 0 for Monday.
    pub weekday: u32,
    /// From 1.
    pub yearday: u32,
}

impl LocalTime {
    /// Returns the time in a layout of `strftime`.
    pub(crate) fn format(&self, layout: &str) -> Result<String, Error> {
        let mut text = String::new();
        let mut rest = layout.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let directive = rest.next().unwrap_or('%');
            let is_bare = directive == '-';
            let directive = if is_bare { rest.next().unwrap_or('-') } else { directive };
            let written = self.directive(directive).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now has no directive '%{directive}'"),
                )
            })?;
            let shortened = written.trim_start_matches(['0', ' ']);
            text.push_str(match shortened {
                _ if !is_bare => &written,
                "" => "0",
                _ => shortened,
            });
        }
        Ok(text)
    }

    fn directive(&self, directive: char) -> Option<String> {
        let day = DAYS[self.weekday as usize % 7];
        let month = MONTHS[(self.month as usize + 11) % 12];
        let hour = (self.hour + 11) % 12 + 1;
        let (year, clock) = (self.year, format!("{:02}:{:02}", self.hour, self.minute));
        Some(match directive {
            'a' => day[..3].into(),
            'A' => day.into(),
            'b' | 'h' => month[..3].into(),
            'B' => month.into(),
            'c' => format!("{} {} {:2} {clock}:{:02} {year}", &day[..3], &month[..3], self.day, self.second),
            'd' => format!("{:02}", self.day),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month, self.day, year % 100),
            'e' => format!("{:2}", self.day),
            'F' => format!("{year}-{:02}-{:02}", self.month, self.day),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour:02}"),
            'j' => format!("{:03}", self.yearday),
            'm' => format!("{:02}", self.month),
            'M' => format!("{:02}", self.minute),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.into(),
            'R' => clock,
            'S' => format!("{:02}", self.second),
            'T' | 'X' => format!("{clock}:{:02}", self.second),
            'u' => (self.weekday + 1).to_string(),
            'w' => ((self.weekday + 1) % 7).to_string(),
            'y' => format!("{:02}", year % 100),
            'Y' => year.to_string(),
            'z' | 'Z' => String::new(), // as for Python's times without a zone
            '%' => "%".into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::LocalTime;

    const TIME: LocalTime =
        LocalTime { year: 2024, month: 7, day: 4, hour: 0, minute: 5, second: 9, weekday: 3, yearday: 186 };

    #[test]
    fn layouts_are_written_in_english() {
        let written = TIME.format("%d %b %Y|%A, %B %-d|%I:%M %p|%Y-%m-%dT%H:%M:%S|%j%%|%y").unwrap();
        assert_eq!(written, "04 Jul 2024|Thursday, July 4|12:05 AM|2024-07-04T00:05:09|186%|24");
    }

    #[test]
    fn unknown_directives_are_refused_by_name() {
        assert!(TIME.format("%Q").unwrap_err().to_string().contains("'%Q'"));
        assert!(TIME.format("%10000000000d").is_err());
    }
}
