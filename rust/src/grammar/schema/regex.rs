//! Patterns of JSON Schema (ECMA-262 with the `u` flag) as languages of the whole strings in which they are found.
//!
//! Anchors, lookahead, lookbehind and word boundaries become intersections with what stands before and after. The
//! result says exactly what ECMA-262 says, or there is no result: back references, flags and escapes that other
//! dialects read otherwise are not guessed. Cost: the length of the pattern, times the alternatives that anchors stand
//! in.

use super::language::{ANY, ANY_CHAR, EMPTY, Lang, Languages, NEVER, Ranges, complement, normal};

const MOST_LENGTH: usize = 10_000;
const MOST_DEPTH: usize = 40;
const MOST_CASES: u32 = 400;

#[derive(Debug, Clone)]
enum Term {
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

/// The strings in which `pattern` is found; none where that cannot be said exactly.
pub(super) fn language(langs: &mut Languages, pattern: &str) -> Option<Lang> {
    if pattern.len() > MOST_LENGTH {
        return None;
    }
    let mut reader = Reader { text: pattern.chars().collect(), at: 0, depth: 0 };
    let term = reader.choice()?;
    if reader.at != reader.text.len() {
        return None;
    }
    let mut builder = Builder { langs, cases: 0 };
    builder.found(ANY, true, &[&term])
}

fn space() -> Vec<(u32, u32)> {
    let mut out = vec![(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680)];
    out.extend([(0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]);
    out.extend([(0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]);
    out
}

fn word() -> Vec<(u32, u32)> {
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
        if self.depth > MOST_DEPTH {
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

struct Builder<'a> {
    langs: &'a mut Languages,
    cases: u32,
}

impl Builder<'_> {
    /// What a term without any look around matches.
    fn plain(&mut self, term: &Term) -> Option<Lang> {
        Some(match term {
            Term::Class(ranges) => self.langs.class(ranges.clone()),
            Term::Sequence(items) => {
                let mut whole = EMPTY;
                for item in items.iter().rev() {
                    let item = self.plain(item)?;
                    whole = self.langs.concat(item, whole);
                }
                whole
            }
            Term::Choice(options) => {
                let options = options.iter().map(|option| self.plain(option)).collect::<Option<Vec<_>>>()?;
                self.langs.or(options)
            }
            Term::Repeat(inner, min, max) => {
                let inner = self.plain(inner)?;
                self.langs.repeat(inner, *min, *max)
            }
            _ => return None,
        })
    }

    /// The whole strings that begin with one of `before`, go on with `terms`, and end with anything. `from_start` says
    /// that `before` reaches back to the start of the string.
    fn found(&mut self, before: Lang, from_start: bool, terms: &[&Term]) -> Option<Lang> {
        self.cases += 1;
        if self.cases > MOST_CASES {
            return None;
        }
        let (mut before, mut terms) = (before, terms);
        let (first, rest) = loop {
            let Some((&first, rest)) = terms.split_first() else {
                return Some(self.langs.concat(before, ANY));
            };
            let Some(plain) = self.plain(first) else { break (first, rest) };
            before = self.langs.concat(before, plain);
            terms = rest;
        };
        match first {
            Term::Sequence(items) => {
                let items: Vec<&Term> = items.iter().chain(rest.iter().copied()).collect();
                self.found(before, from_start, &items)
            }
            Term::Choice(options) => {
                let mut all = Vec::new();
                for option in options {
                    let items: Vec<&Term> = std::iter::once(option).chain(rest.iter().copied()).collect();
                    all.push(self.found(before, from_start, &items)?);
                }
                Some(self.langs.or(all))
            }
            Term::Repeat(inner, 0, Some(1)) => {
                let items: Vec<&Term> = std::iter::once(&**inner).chain(rest.iter().copied()).collect();
                let with = self.found(before, from_start, &items)?;
                let without = self.found(before, from_start, rest)?;
                Some(self.langs.or(vec![with, without]))
            }
            Term::Start if from_start => {
                if self.langs.nullable(before) {
                    self.found(EMPTY, true, rest)
                } else {
                    Some(NEVER)
                }
            }
            Term::End => {
                // Nothing may follow, so the rest has to do with nothing.
                for item in rest {
                    if !matches!(item, Term::End) {
                        let plain = self.plain(item)?;
                        if !self.langs.nullable(plain) {
                            return Some(NEVER);
                        }
                    }
                }
                Some(before)
            }
            Term::Ahead(wanted, inner) => {
                let after = self.found(EMPTY, false, rest)?;
                let mut look = self.found(EMPTY, false, &[inner])?;
                if !wanted {
                    look = self.langs.not(look);
                }
                let after = self.langs.and(vec![after, look]);
                Some(self.langs.concat(before, after))
            }
            Term::Behind(wanted, inner) if from_start => {
                let inner = self.plain(inner)?;
                let mut look = self.langs.concat(ANY, inner);
                if !wanted {
                    look = self.langs.not(look);
                }
                let before = self.langs.and(vec![before, look]);
                self.found(before, true, rest)
            }
            Term::Boundary(wanted) if from_start => {
                let after = self.found(EMPTY, false, rest)?;
                let word = self.langs.class(normal(word()));
                let ends = self.langs.concat(ANY, word);
                let begins = self.langs.concat(word, ANY);
                let (not_ends, not_begins) = (self.langs.not(ends), self.langs.not(begins));
                let cases = if *wanted {
                    [(ends, not_begins), (not_ends, begins)]
                } else {
                    [(ends, begins), (not_ends, not_begins)]
                };
                let mut all = Vec::new();
                for (left, right) in cases {
                    let left = self.langs.and(vec![before, left]);
                    let right = self.langs.and(vec![after, right]);
                    all.push(self.langs.concat(left, right));
                }
                Some(self.langs.or(all))
            }
            _ => None,
        }
    }
}

/// Languages as patterns that the grammar's compiler reads: see [`Languages::pattern`].
impl Languages {
    /// A regular expression for exactly this language (from `^` to `$`), in the dialect of the grammar's compiler; none
    /// if it gets too long.
    ///
    /// A class that has U+0000 and lacks the quotation mark or the backslash loses U+0000: the compiler writes a class
    /// of all control characters as "any escape", these two among them.
    pub(super) fn pattern(&mut self, lang: Lang) -> Option<String> {
        let lang = if self.is_positive(lang, 0)? { lang } else { self.solved(lang)? };
        let mut out = String::from("^(?:");
        self.write(lang, &mut out, 0)?;
        out.push_str(")$");
        Some(out)
    }

    /// Whether it is made without intersection and complement, so that it is empty only if it is [`NEVER`].
    pub(super) fn is_plain(&self, lang: Lang) -> bool {
        self.is_positive(lang, 0) == Some(true)
    }

    fn is_positive(&self, lang: Lang, depth: usize) -> Option<bool> {
        use super::language::Node;
        if depth > 400 {
            return None;
        }
        let mut rest = lang;
        let mut all = true;
        while let Node::Concat(head, tail) = *self.node(rest) {
            all &= self.is_positive(head, depth + 1)?;
            rest = tail;
        }
        Some(
            all && match self.node(rest) {
                _ if rest == ANY => true,
                Node::And(_) | Node::Not(_) => false,
                Node::Or(parts) => {
                    for &part in parts {
                        if !self.is_positive(part, depth + 1)? {
                            return Some(false);
                        }
                    }
                    true
                }
                Node::Repeat(inner, _, _) => self.is_positive(*inner, depth + 1)?,
                _ => true,
            },
        )
    }

    /// The same language without intersection and complement: the equations of its automaton, solved one state after
    /// another (Arden's rule).
    fn solved(&mut self, lang: Lang) -> Option<Lang> {
        let automaton = self.automaton(lang, 400)?;
        let count = automaton.ways.len();
        let mut ends: Vec<Lang> =
            automaton.accepts.iter().map(|&yes| if yes { EMPTY } else { NEVER }).collect();
        let mut ways: Vec<std::collections::BTreeMap<usize, Lang>> = Vec::new();
        for state in &automaton.ways {
            let mut targets: std::collections::BTreeMap<usize, Vec<(u32, u32)>> = Default::default();
            for &(low, high, next) in state {
                targets.entry(next).or_default().push((low, high));
            }
            ways.push(targets.into_iter().map(|(next, ranges)| (next, self.class(normal(ranges)))).collect());
        }
        for state in (0..count).rev() {
            let around = ways[state].remove(&state).unwrap_or(NEVER);
            let around = self.repeat(around, 0, None);
            ends[state] = self.concat(around, ends[state]);
            let own: Vec<(usize, Lang)> = ways[state].iter().map(|(&next, &way)| (next, way)).collect();
            let own: Vec<(usize, Lang)> =
                own.into_iter().map(|(next, way)| (next, self.concat(around, way))).collect();
            for earlier in 0..state {
                let Some(way) = ways[earlier].remove(&state) else { continue };
                let through = self.concat(way, ends[state]);
                ends[earlier] = self.or(vec![ends[earlier], through]);
                for &(next, on) in &own {
                    let through = self.concat(way, on);
                    let old = ways[earlier].get(&next).copied().unwrap_or(NEVER);
                    let joined = self.or(vec![old, through]);
                    ways[earlier].insert(next, joined);
                }
            }
            if self.size() > 200_000 {
                return None;
            }
        }
        Some(ends[0])
    }

    fn write(&self, lang: Lang, out: &mut String, depth: usize) -> Option<()> {
        use super::language::Node;
        if depth > 400 || out.len() > 40_000 {
            return None;
        }
        match self.node(lang) {
            _ if lang == ANY => out.push_str("(?s:.*)"),
            Node::Never => out.push_str("[^\\x{0}-\\x{10FFFF}]"),
            Node::Empty => {}
            Node::Class(_) if lang == ANY_CHAR => out.push_str("(?s:.)"),
            Node::Class(ranges) => write_class(ranges, out)?,
            Node::Concat(..) => {
                let mut rest = lang;
                while let Node::Concat(head, tail) = *self.node(rest) {
                    self.write(head, out, depth + 1)?;
                    rest = tail;
                }
                self.write(rest, out, depth + 1)?;
            }
            Node::Or(parts) => {
                out.push_str("(?:");
                for (at, &part) in parts.iter().enumerate() {
                    if at > 0 {
                        out.push('|');
                    }
                    self.write(part, out, depth + 1)?;
                }
                out.push(')');
            }
            Node::Repeat(inner, min, max) => {
                out.push_str("(?:");
                self.write(*inner, out, depth + 1)?;
                out.push(')');
                match (min, max) {
                    (0, None) => out.push('*'),
                    (1, None) => out.push('+'),
                    (0, Some(1)) => out.push('?'),
                    (min, None) => out.push_str(&format!("{{{min},}}")),
                    (min, Some(max)) => out.push_str(&format!("{{{min},{max}}}")),
                }
            }
            Node::And(_) | Node::Not(_) => return None,
        }
        Some(())
    }
}

fn write_class(ranges: &[(u32, u32)], out: &mut String) -> Option<()> {
    let has = |c: u32| ranges.iter().any(|&(low, high)| low <= c && c <= high);
    let mut ranges = ranges.to_vec();
    if has(0) && !(has(0x22) && has(0x5C)) {
        let left = complement(&[(0, 0)]);
        ranges = complement(&normal(
            complement(&ranges).iter().chain(complement(&left).iter()).copied().collect(),
        ))
        .into_vec();
    }
    if ranges.is_empty() {
        return None;
    }
    let write = |c: u32, out: &mut String| match char::from_u32(c) {
        Some(c) if c.is_ascii_alphanumeric() || c == '_' => out.push(c),
        _ => out.push_str(&format!("\\x{{{c:X}}}")),
    };
    if let [(low, high)] = ranges[..]
        && low == high
    {
        write(low, out);
        return Some(());
    }
    out.push('[');
    for (low, high) in ranges {
        write(low, out);
        if high > low {
            out.push('-');
            write(high, out);
        }
    }
    out.push(']');
    Some(())
}
