//! The text of an EBNF grammar to the right sides of its rules.

use rustc_hash::FxHashMap;

use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// How deep groups may be nested, and how long a chain of rules that name each other may be.
pub(super) const MAX_DEPTH: usize = 200;

/// xgrammar's macros, which are written as calls.
const MACROS: [&str; 4] = ["TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken"];

/// The right side of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Literal(String),
    /// A regex for one character.
    Character(String),
    Name(String),
    Sequence(Vec<Expression>),
    AnyOf(Vec<Expression>),
    Repeat(Box<Expression>, u32, Option<u32>),
}

/// The rules of a grammar by name.
pub(super) fn parse(source: &str) -> Result<FxHashMap<String, Expression>, Refusal> {
    Parser { source, at: 0, depth: 0 }.rules()
}

struct Parser<'a> {
    source: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rules(mut self) -> Result<FxHashMap<String, Expression>, Refusal> {
        let mut rules = FxHashMap::default();
        self.space(true);
        while self.peek().is_some() {
            let name = self.name().ok_or_else(|| self.wrong("the name of a rule is missing"))?;
            self.space(true);
            if !self.take("::=") {
                return Err(self.wrong("`::=` is missing"));
            }
            self.space(true);
            let expression = self.any_of(false)?;
            if rules.insert(name.clone(), expression).is_some() {
                return Err(self.wrong(&format!("the rule `{name}` is there twice")));
            }
            self.space(true);
        }
        Ok(rules)
    }

    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, text: &str) -> bool {
        let there = self.source[self.at..].starts_with(text);
        self.at += if there { text.len() } else { 0 };
        there
    }

    fn wrong(&self, what: &str) -> Refusal {
        let line = 1 + self.source[..self.at].matches('\n').count();
        refusal(format!("the EBNF is not understood in line {line}: {what}"))
    }

    /// Skips white space and comments; line ends too if they mean nothing here.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            if next == '#' {
                let end = self.source[self.at..].find('\n').unwrap_or(self.source.len() - self.at);
                self.at += end;
            } else if next == ' ' || next == '\t' || (lines && (next == '\n' || next == '\r')) {
                self.at += 1;
            } else {
                break;
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.source[self.at..];
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        if !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return None;
        }
        let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
        self.at += length;
        Some(rest[..length].to_owned())
    }

    fn any_of(&mut self, nested: bool) -> Result<Expression, Refusal> {
        self.depth += 1;
        if self.depth > MAX_DEPTH / 2 {
            return Err(self.wrong("groups are nested too deep"));
        }
        let mut options = vec![self.sequence(nested)?];
        loop {
            // A rule may go on in the next line, if that begins with a bar.
            let before = self.at;
            self.space(true);
            if !self.take("|") {
                self.at = if nested { self.at } else { before };
                break;
            }
            self.space(true);
            options.push(self.sequence(nested)?);
        }
        self.depth -= 1;
        Ok(if options.len() == 1 { options.remove(0) } else { Expression::AnyOf(options) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Expression, Refusal> {
        let mut parts = Vec::new();
        loop {
            self.space(nested);
            if !nested && self.begins_rule() {
                break;
            }
            let Some(part) = self.atom()? else { break };
            parts.push(self.repetition(part)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sequence(parts) })
    }

    /// Whether a name and `::=` follow, of a rule that stands in the same line.
    fn begins_rule(&mut self) -> bool {
        let before = self.at;
        let begins = self.name().is_some() && {
            self.space(true);
            self.take("::=")
        };
        self.at = before;
        begins
    }

    fn atom(&mut self) -> Result<Option<Expression>, Refusal> {
        let Some(next) = self.peek() else { return Ok(None) };
        match next {
            '"' | '\'' => self.text(next).map(|text| Some(Expression::Literal(text))),
            '[' => self.class().map(|class| Some(Expression::Character(class))),
            '.' => {
                self.at += 1;
                Ok(Some(Expression::Character("(?s:.)".to_owned())))
            }
            '(' => {
                self.at += 1;
                if self.take("=") {
                    return Err(self.wrong("look-ahead is not supported"));
                }
                let inner = self.any_of(true)?;
                self.space(true);
                if !self.take(")") {
                    return Err(self.wrong("`)` is missing"));
                }
                Ok(Some(inner))
            }
            '|' | ')' | '\n' | '\r' => Ok(None),
            '<' | '!' => Err(self.wrong("references to tokens are not supported")),
            _ => {
                let name = self.name().ok_or_else(|| self.wrong(&format!("`{next}` means nothing here")))?;
                if self.peek() == Some('(') && MACROS.contains(&&*name) {
                    return Err(self.wrong(&format!("`{name}(...)` is not supported")));
                }
                Ok(Some(Expression::Name(name)))
            }
        }
    }

    fn repetition(&mut self, part: Expression) -> Result<Expression, Refusal> {
        let mut part = part;
        loop {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    self.counts()?
                }
                _ => return Ok(part),
            };
            self.at += 1;
            part = Expression::Repeat(Box::new(part), min, max);
        }
    }

    /// `m}`, `m,}`, `,n}` or `m,n}`, up to the brace.
    fn counts(&mut self) -> Result<(u32, Option<u32>), Refusal> {
        let rest = &self.source[self.at..];
        let inside = rest.find('}').map(|end| &rest[..end]).filter(|inside| inside.len() < 32);
        let inside = inside.ok_or_else(|| self.wrong("`}` is missing"))?;
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count < u32::MAX);
        let counts = match inside.split_once(',') {
            None => number(inside).map(|count| (count, Some(count))),
            Some((min, max)) => {
                let min = if min.trim().is_empty() { Some(0) } else { number(min) };
                let max = if max.trim().is_empty() { Some(None) } else { number(max).map(Some) };
                min.zip(max).filter(|(min, max)| max.is_none_or(|max| *min <= max))
            }
        };
        let counts = counts.ok_or_else(|| {
            self.wrong(&format!("`{{{inside}}}` is no count; the limit is {}", u32::MAX - 1))
        })?;
        self.at += inside.len();
        Ok(counts)
    }

    fn text(&mut self, quote: char) -> Result<String, Refusal> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err(self.wrong("a text has no end")),
                Some(next) if next == quote => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(next) => text.push(next),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, Refusal> {
        let next = self.next().ok_or_else(|| self.wrong("it ends in an escape"))?;
        let digits = match next {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '\\' | '"' | '\'' | '[' | ']' | '-' | '^' | '/' => return Ok(next),
            other => return Err(self.wrong(&format!("`\\{other}` is no escape"))),
        };
        let code =
            self.source.get(self.at..self.at + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let char = code.and_then(char::from_u32).ok_or_else(|| self.wrong("an escape names no character"))?;
        self.at += digits;
        Ok(char)
    }

    /// A class of characters, as a regex.
    fn class(&mut self) -> Result<String, Refusal> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let mut empty = true;
        while !self.take("]") {
            let first = self.class_char()?;
            class.push_str(&format!(r"\x{{{:x}}}", first as u32));
            if self.source[self.at..].starts_with('-') && !self.source[self.at..].starts_with("-]") {
                self.at += 1;
                let last = self.class_char()?;
                if last < first {
                    return Err(self.wrong("a range of characters goes backwards"));
                }
                class.push_str(&format!(r"-\x{{{:x}}}", last as u32));
            }
            empty = false;
        }
        if empty {
            return Err(self.wrong("a class of characters is empty"));
        }
        class.push(']');
        Ok(class)
    }

    fn class_char(&mut self) -> Result<char, Refusal> {
        match self.next() {
            None | Some('\n') => Err(self.wrong("a class of characters has no end")),
            Some('\\') => self.escaped(),
            Some(next) => Ok(next),
        }
    }
}
