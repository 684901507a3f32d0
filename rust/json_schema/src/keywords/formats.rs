//! Formats of strings, as patterns.
//!
//! A format is a language like any other, so it may be negated, counted, and asked of names. Sources: RFC 3339 (dates,
//! times, durations), 5321 (mailboxes), 1123 (host names), 2673 (IPv4), 4291 (IPv6), 9562 (UUIDs), 3986 (URIs).

use std::collections::HashMap;
use std::rc::Rc;

use crate::language::{Lang, Languages, search};

/// The languages of formats, each made when it is first asked for.
#[derive(Default)]
pub(crate) struct Formats {
    known: HashMap<Rc<str>, Option<Lang>>,
}

impl Formats {
    /// The language of the format of that name; none if it is not enforced.
    pub(crate) fn language(&mut self, langs: &mut Languages, name: &str) -> Option<Lang> {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let lang = pattern(name).and_then(|pattern| search::language(langs, &format!("^(?:{pattern})$")));
        self.known.insert(name.into(), lang);
        lang
    }
}

/// A year of the calendar, which has none numbered 0.
const YEAR: &str = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
const ZONE: &str = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

fn pattern(name: &str) -> Option<String> {
    Some(match name {
        "date" => date(),
        "time" => time(),
        "date-time" => format!("{}[Tt]{}", date(), time()),
        "duration" => duration(),
        "email" => email(),
        "hostname" => format!(r"{LABEL}(?:\.{LABEL})*"),
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".to_owned(),
        "uri" => uri(),
        _ => return None,
    })
}

fn date() -> String {
    let long = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])";
    let short = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)";
    let february = "02-(?:0[1-9]|1[0-9]|2[0-8])";
    format!("(?:{YEAR}-(?:{long}|{short}|{february})|{LEAP_YEAR}-02-29)")
}

fn time() -> String {
    format!(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?{ZONE}")
}

/// Units follow each other without a gap: hours and seconds only with minutes between them.
fn duration() -> String {
    let minutes = "[0-9]+M(?:[0-9]+S)?";
    let time = format!("T(?:[0-9]+H(?:{minutes})?|{minutes}|[0-9]+S)");
    let months = "[0-9]+M(?:[0-9]+D)?";
    let date = format!("(?:[0-9]+Y(?:{months})?|{months}|[0-9]+D)");
    format!("P(?:{date}(?:{time})?|{time}|[0-9]+W)")
}

fn email() -> String {
    let atom = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
    let label = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
    format!(r"{atom}(?:\.{atom})*@(?:{label}(?:\.{label})*|\[{}\])", ipv4())
}

fn ipv4() -> String {
    format!(r"(?:{OCTET}\.){{3}}{OCTET}")
}

/// Eight groups, or fewer with `::` for those that are left out; the last two may be an IPv4 address.
fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let last = format!("(?:{group}:{group}|{})", ipv4());
    let mut ways = vec![format!("(?:{group}:){{6}}{last}")];
    for before in 0..=7 {
        let first = match before {
            0 => String::new(),
            1 => format!("(?:{group})?"),
            _ => format!("(?:(?:{group}:){{0,{}}}{group})?", before - 1),
        };
        ways.push(match before {
            7 => format!("{first}::"),
            6 => format!("{first}::{group}"),
            _ => format!("{first}::(?:{group}:){{{}}}{last}", 5 - before),
        });
    }
    format!("(?:{})", ways.join("|"))
}

fn uri() -> String {
    let escaped = "%[0-9A-Fa-f]{2}";
    let plain = r"A-Za-z0-9._~!$&'()*+,;=-";
    let some = |more: &str| format!("(?:[{more}{plain}]|{escaped})");
    let (named, user, letter, query) = (some(""), some(":"), some(":@"), some(":@/?"));
    let future = format!(r"[Vv][0-9A-Fa-f]+\.[:{plain}]+");
    let host = format!(r"(?:\[(?:{}|{future})\]|{named}*)", ipv6());
    let behind = format!("(?:/{letter}*)*");
    let path =
        format!("(?://(?:{user}*@)?{host}(?::[0-9]*)?{behind}|/(?:{letter}+{behind})?|{letter}+{behind}|)");
    format!(r"[A-Za-z][A-Za-z0-9+.-]*:{path}(?:\?{query}*)?(?:#{query}*)?")
}
