//! Formats: what they take, alone and beside other keywords, and of dates those that the calendar has.

use super::*;

fn days(year: u32, month: u32) -> u32 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        _ => 0,
    }
}

#[test]
fn dates_are_those_of_the_calendar() {
    let bench = Bench::new();
    let matcher = |schema| bench.compile(&normalized(&schema).unwrap().schema).unwrap();
    let date = matcher(json!({"type": "string", "format": "date"}));
    let time = matcher(json!({"type": "string", "format": "date-time"}));
    for year in [0, 1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999] {
        for month in 0..=13 {
            for day in [0, 1, 9, 28, 29, 30, 31, 32] {
                let there = year > 0 && 0 < day && day <= days(year, month);
                let text = format!("{year:04}-{month:02}-{day:02}");
                assert_eq!(Bench::accepts(&date, &format!("\"{text}\"")), there, "{text}");
                assert_eq!(Bench::accepts(&time, &format!("\"{text}T10:00:00Z\"")), there, "{text}");
            }
        }
    }
    for text in ["2024-1-01", "12024-01-01", "2024-01-01x", "x2024-01-01", "2024-01"] {
        assert!(!Bench::accepts(&date, &format!("\"{text}\"")), "{text}");
    }
    let within = matcher(json!({"type": "string", "format": "date", "pattern": "^2024", "maxLength": 10}));
    assert!(Bench::accepts(&within, "\"2024-02-29\""));
    assert!(!Bench::accepts(&within, "\"2023-02-28\"") && !Bench::accepts(&within, "\"2024-02-30\""));
}

#[test]
fn texts_of_formats() {
    let bench = Bench::new();
    for (format, good, bad) in [
        ("time", vec!["23:59:60Z", "00:00:00.5+14:00"], vec!["24:00:00Z", "10:00:00", "1:00:00Z"]),
        (
            "duration",
            vec!["P1Y2M3D", "PT1H30M", "P3W", "P1DT5S"],
            vec!["P", "PT", "P1W2D", "PT1H5S", "P1D2H"],
        ),
        (
            "email",
            vec!["a.b+c@x-y.org", "a@[127.0.0.1]", "a@b"],
            vec!["a..b@c", ".a@b", "a@b.", "a@-b", "a b@c", "@b"],
        ),
        ("hostname", vec!["a", "x-1.example.com"], vec!["", "a..b", "-a", "a-", "a_b", "a."]),
        ("ipv4", vec!["0.0.0.0", "255.249.199.9"], vec!["256.0.0.1", "01.0.0.1", "1.2.3", "1.2.3.4.5"]),
        (
            "ipv6",
            vec![
                "::",
                "::1",
                "1::",
                "1:2:3:4:5:6:7:8",
                "1::3:4",
                "::ffff:1.2.3.4",
                "1:2:3:4:5:6:7::",
                "fe80::a:b",
            ],
            vec!["", ":", "1:2:3:4:5:6:7", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", ":1", "1.2.3.4"],
        ),
        (
            "uuid",
            vec!["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
            vec!["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380"],
        ),
        (
            "uri",
            vec![
                "https://u:p@example.com:80/a//b/?q=%20#f",
                "urn:isbn:1",
                "mailto:a@b",
                "http://[::1]/",
                "x:",
                "file:///a",
                "http://[v1.x:y]",
            ],
            vec![
                "//a",
                "a",
                "http://a b",
                "http://[::1",
                "1a:b",
                "a:%2",
                "a:\\",
                "http://a/<b>",
                "http://[1:2]/",
            ],
        ),
    ] {
        let schema = json!({"type": "string", "format": format});
        let matcher = bench.compile(&normalized(&schema).unwrap().schema).unwrap();
        // The opposites of some are more than a pattern holds.
        let other = normalized(&json!({"type": "string", "not": {"format": format}}));
        let other = other.map(|other| bench.compile(&other.schema).unwrap());
        assert_eq!(other.is_err(), ["hostname", "ipv6", "uri"].contains(&format), "{format}");
        let names = json!({"type": "object", "propertyNames": {"format": format}});
        let names = bench.compile(&normalized(&names).unwrap().schema).unwrap();
        for (texts, expected) in [(good, true), (bad, false)] {
            for text in texts {
                let written = dumps(&json!(text));
                assert_eq!(Bench::accepts(&matcher, &written), expected, "{format} {text}");
                assert_eq!(Bench::accepts(&names, &format!("{{{written}: 1}}")), expected, "{format} {text}");
                if let Ok(other) = &other {
                    assert_eq!(Bench::accepts(other, &written), !expected, "not {format} {text}");
                }
            }
        }
    }
}
