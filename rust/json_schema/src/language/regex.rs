//! Patterns of JSON Schema (ECMA-262 with the `u` flag), read.
//!
//! A term says exactly what ECMA-262 says, or there is none: back references, flags and escapes that other dialects
//! read otherwise are not guessed. O(length of the pattern).

use super::{Ranges, complement, normal};

const MAX_LENGTH: usize = 10_000;
const MAX_DEPTH: usize = 40;

/// A pattern, read.
#[derive(Debug, Clone)]
pub(crate) enum Term {
    Class(Ranges),
    Sequence(Vec<Term>),
    Choice(Vec<Term>),
    Repeat(Box<Term>, u32, Option<u32>),
    Start,
    End,
    /// `(?=)` and `(?!)`: whether it must follow.
    Ahead(bool, Box<Term>),
    /// `(?<=)` and `(?<!)`.
    Behind(bool, Box<Term>),
    /// `\b`, or with false `\B`.
    Boundary(bool),
}

/// Reads `pattern`; none where it says something that is not taken exactly.
pub(crate) fn read(pattern: &str) -> Option<Term> {
    if pattern.len() > MAX_LENGTH {
        return None;
    }
    let mut reader = Reader { text: pattern.chars().collect(), at: 0, depth: 0 };
    let term = reader.choice()?;
    (reader.at == reader.text.len()).then_some(term)
}

fn space() -> Vec<(u32, u32)> {
    let mut out = vec![(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680)];
    out.extend([(0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]);
    out.extend([(0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]);
    out
}

/// What `\w` matches.
pub(crate) fn word() -> Vec<(u32, u32)> {
    vec![(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
}

struct Reader {
    text: Vec<char>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn take(&mut self, expected: &str) -> bool {
        let fits = expected.chars().enumerate().all(|(i, c)| self.text.get(self.at + i) == Some(&c));
        if fits {
            self.at += expected.chars().count();
        }
        fits
    }

    fn choice(&mut self) -> Option<Term> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            options.push(self.sequence()?);
        }
        self.depth -= 1;
        Some(if options.len() == 1 { options.pop()? } else { Term::Choice(options) })
    }

    fn sequence(&mut self) -> Option<Term> {
        let mut items = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let item = self.atom()?;
            items.push(self.quantified(item)?);
        }
        Some(Term::Sequence(items))
    }

    fn atom(&mut self) -> Option<Term> {
        Some(match self.next()? {
            '^' => Term::Start,
            '$' => Term::End,
            '.' => Term::Class(complement(&[(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])),
            '(' => self.group()?,
            '[' => Term::Class(self.set()?),
            '\\' if self.take("b") => Term::Boundary(true),
            '\\' if self.take("B") => Term::Boundary(false),
            '\\' => Term::Class(normal(self.escape(false)?)),
            '*' | '+' | '?' => return None,
            // `{`, `}` and `]` alone stand for themselves, as browsers read them.
            '{' if self.bounds_follow() => return None,
            c => Term::Class(normal(vec![(c as u32, c as u32)])),
        })
    }

    fn group(&mut self) -> Option<Term> {
        let inner = if self.take("?=") {
            Term::Ahead(true, Box::new(self.choice()?))
        } else if self.take("?!") {
            Term::Ahead(false, Box::new(self.choice()?))
        } else if self.take("?<=") {
            Term::Behind(true, Box::new(self.choice()?))
        } else if self.take("?<!") {
            Term::Behind(false, Box::new(self.choice()?))
        } else if self.take("?:") {
            self.choice()?
        } else if self.take("?<") || self.take("?P<") {
            while self.next()? != '>' {}
            self.choice()?
        } else if self.peek() == Some('?') {
            return None;
        } else {
            self.choice()?
        };
        self.take(")").then_some(inner)
    }

    fn bounds_follow(&self) -> bool {
        let rest: String = self.text[self.at..].iter().take(24).collect();
        let Some((inside, _)) = rest.split_once('}') else { return false };
        let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        match inside.split_once(',') {
            Some((min, max)) => !min.is_empty() && digits(min) && digits(max),
            None => !inside.is_empty() && digits(inside),
        }
    }

    fn quantified(&mut self, item: Term) -> Option<Term> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.at += 1;
                if !self.bounds_follow() {
                    self.at -= 1;
                    return Some(item);
                }
                let end = self.at + self.text[self.at..].iter().position(|&c| c == '}')?;
                let inside: String = self.text[self.at..end].iter().collect();
                self.at = end;
                match inside.split_once(',') {
                    Some((min, "")) => (min.parse().ok()?, None),
                    Some((min, max)) => (min.parse().ok()?, Some(max.parse().ok()?)),
                    None => {
                        let count = inside.parse().ok()?;
                        (count, Some(count))
                    }
                }
            }
            _ => return Some(item),
        };
        self.at += 1;
        if max.is_some_and(|max| max < min) || matches!(item, Term::Start | Term::End | Term::Boundary(_)) {
            return None;
        }
        // Lazy or greedy, the same strings.
        self.take("?");
        if matches!(self.peek(), Some('*' | '+' | '?')) {
            return None;
        }
        Some(Term::Repeat(Box::new(item), min, max))
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let end = self.at + digits;
        let text: String = self.text.get(self.at..end)?.iter().collect();
        if !text.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        self.at = end;
        u32::from_str_radix(&text, 16).ok()
    }

    fn unicode(&mut self) -> Option<u32> {
        if self.take("{") {
            let end = self.at + self.text[self.at..].iter().position(|&c| c == '}')?;
            let code = self.hex(end - self.at)?;
            self.at = end + 1;
            return (code <= 0x10FFFF).then_some(code);
        }
        let code = self.hex(4)?;
        if (0xD800..0xDC00).contains(&code) && self.take("\\u") {
            let low = self.hex(4)?;
            return (0xDC00..0xE000)
                .contains(&low)
                .then(|| 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
        }
        (!(0xD800..0xE000).contains(&code)).then_some(code)
    }

    /// What follows a backslash.
    fn escape(&mut self, in_set: bool) -> Option<Vec<(u32, u32)>> {
        let one = |c: u32| Some(vec![(c, c)]);
        match self.next()? {
            'd' => Some(vec![(0x30, 0x39)]),
            'D' => Some(complement(&[(0x30, 0x39)]).into_vec()),
            'w' => Some(word()),
            'W' => Some(complement(&normal(word())).into_vec()),
            's' => Some(space()),
            'S' => Some(complement(&normal(space())).into_vec()),
            'n' => one(0x0A),
            'r' => one(0x0D),
            't' => one(0x09),
            'v' => one(0x0B),
            'f' => one(0x0C),
            'b' if in_set => one(0x08),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => one(0),
            'x' => self.hex(2).and_then(one),
            'u' => self.unicode().and_then(one),
            'c' => {
                let c = self.next()?;
                if c.is_ascii_alphabetic() { one(c as u32 % 32) } else { None }
            }
            'p' => self.property(false),
            'P' => self.property(true),
            c if c.is_alphanumeric() => None,
            c => one(c as u32),
        }
    }

    fn property(&mut self, negated: bool) -> Option<Vec<(u32, u32)>> {
        if !self.take("{") {
            return None;
        }
        let end = self.at + self.text[self.at..].iter().position(|&c| c == '}')?;
        let name: String = self.text[self.at..end].iter().collect();
        self.at = end + 1;
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=') {
            return None;
        }
        let sign = if negated { 'P' } else { 'p' };
        let parsed = regex_syntax::parse(&format!("\\{sign}{{{name}}}")).ok()?;
        match parsed.kind() {
            regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
                Some(class.iter().map(|range| (range.start() as u32, range.end() as u32)).collect())
            }
            _ => None,
        }
    }

    /// What stands between brackets.
    fn set(&mut self) -> Option<Ranges> {
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            if self.take("]") {
                break;
            }
            let low = self.set_atom()?;
            if self.peek() == Some('-') && self.text.get(self.at + 1).is_some_and(|&c| c != ']') {
                self.at += 1;
                let high = self.set_atom()?;
                match (low.as_slice(), high.as_slice()) {
                    (&[(a, b)], &[(c, d)]) if a == b && c == d && a <= c => ranges.push((a, c)),
                    _ => return None,
                }
            } else {
                ranges.extend(low);
            }
        }
        let ranges = normal(ranges);
        Some(if negated { complement(&ranges) } else { ranges })
    }

    fn set_atom(&mut self) -> Option<Vec<(u32, u32)>> {
        match self.next()? {
            '\\' => self.escape(true),
            c => Some(vec![(c as u32, c as u32)]),
        }
    }
}
