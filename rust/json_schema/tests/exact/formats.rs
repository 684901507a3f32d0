//! Formats: of dates, those that the calendar has.

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
