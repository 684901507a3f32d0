//! Reads EBNF as llama.cpp (GBNF) and xgrammar write it.
//!
//! ```text
//!  root  ::= "[" ws value ("," ws value)* "]"      rules that need no recursion are regular: terminals
//!  value ::= num | root                            the others are rules
//!  num   ::= "-"? [0-9]+                           neighbours that are regular become one lexeme
//!  ws    ::= " "?
//! ```
//!
//! Characters are Unicode, not bytes. Look-ahead, references to tokens and xgrammar's macros, which Lark lacks, are refused
//! by name. O(source).

use rustc_hash::FxHashMap;

use crate::grammar::Refusal;
use crate::grammar::lowering::description::refusal;
use crate::grammar::lowering::lark::{Lexeme, Node, Writer, literal, regex};

/// How deep groups may be nested, and how long a chain of rules that name each other may be.
const MAX_DEPTH: usize = 200;
/// How often something may be repeated with a count.
const MAX_REPEATS: u32 = 10_000;

/// The right side of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Literal(String),
    /// A regex for one character.
    Character(String),
    Name(String),
    Sequence(Vec<Expression>),
    AnyOf(Vec<Expression>),
    Repeat(Box<Expression>, u32, Option<u32>),
}

/// Adds the rules of an EBNF grammar to `writer`; returns its root.
pub(crate) fn lower(writer: &mut Writer, source: &str) -> Result<Node, Refusal> {
    let rules = Parser { source, at: 0, depth: 0 }.rules()?;
    if !rules.contains_key("root") {
        return Err(refusal("the EBNF has no rule `root`"));
    }
    let mut lowering = Lowering { rules, known: FxHashMap::default(), writer };
    lowering.rule("root", 0)
}

struct Lowering<'a> {
    rules: FxHashMap<String, Expression>,
    known: FxHashMap<String, Known>,
    writer: &'a mut Writer,
}

#[derive(Clone)]
enum Known {
    /// It is being lowered: a reference to it is recursive, and uses this name.
    Open {
        name: String,
        used: bool,
    },
    Done(Node),
}

impl Lowering<'_> {
    fn rule(&mut self, name: &str, depth: usize) -> Result<Node, Refusal> {
        if depth > MAX_DEPTH {
            return Err(refusal(format!(
                "the rules of the EBNF name each other over more than {MAX_DEPTH} steps"
            )));
        }
        match self.known.get_mut(name) {
            Some(Known::Done(node)) => return Ok(node.clone()),
            Some(Known::Open { name, used }) => {
                *used = true;
                return Ok(Node::Opaque(name.clone()));
            }
            None => {}
        }
        let expression = self.rules.get(name).cloned();
        let expression = expression.ok_or_else(|| refusal(format!("the EBNF has no rule `{name}`")))?;
        let own = self.writer.reserve()?;
        self.known.insert(name.to_owned(), Known::Open { name: own.clone(), used: false });
        let node = self.expression(expression, depth)?;
        let recursive = matches!(self.known.get(name), Some(Known::Open { used: true, .. }));
        let node = match node {
            node @ Node::Regular { .. } if !recursive => node,
            node => {
                let body = self.writer.sequence(vec![node], 0)?;
                self.writer.write(&own, &body);
                Node::Opaque(own)
            }
        };
        self.known.insert(name.to_owned(), Known::Done(node.clone()));
        Ok(node)
    }

    fn expression(&mut self, expression: Expression, depth: usize) -> Result<Node, Refusal> {
        let depth = depth + 1;
        let all = |this: &mut Self, inner: Vec<Expression>| {
            inner.into_iter().map(|inner| this.expression(inner, depth)).collect::<Result<Vec<_>, _>>()
        };
        match expression {
            Expression::Literal(text) => {
                self.writer.terminal(&literal(&text), Lexeme::closed(text.is_empty()))
            }
            Expression::Character(class) => self.writer.terminal(&regex(&class), Lexeme::closed(false)),
            Expression::Name(name) => self.rule(&name, depth),
            Expression::Sequence(parts) => {
                let parts = all(self, parts)?;
                self.writer.joined(parts)
            }
            Expression::AnyOf(options) => {
                let options = all(self, options)?;
                self.writer.any_of(options)
            }
            Expression::Repeat(part, min, max) => {
                let part = self.expression(*part, depth)?;
                self.writer.repeated(part, min, max, None)
            }
        }
    }
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
                if self.peek() == Some('(') && !self.source[..self.at].ends_with(' ') {
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
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count <= MAX_REPEATS);
        let counts = match inside.split_once(',') {
            None => number(inside).map(|count| (count, Some(count))),
            Some((min, max)) => {
                let min = if min.trim().is_empty() { Some(0) } else { number(min) };
                let max = if max.trim().is_empty() { Some(None) } else { number(max).map(Some) };
                min.zip(max).filter(|(min, max)| max.is_none_or(|max| *min <= max))
            }
        };
        let counts =
            counts.ok_or_else(|| self.wrong(&format!("`{{{inside}}}` is no count that is supported")))?;
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

#[cfg(test)]
mod tests {
    use crate::grammar::backends::compile;
    use crate::grammar::backends::tests::{accepts, compiled};
    use crate::grammar::cancellation::CancelToken;
    use crate::grammar::context::tests::small;
    use crate::grammar::lowering::description::Description;

    #[test]
    fn grammars_accept_what_they_say() {
        let tokens = small(&["ab", "12", "\", \""]);
        let list = "# a list\nroot  ::= \"[\" ws (value (\",\" ws value)*)? \"]\"\nvalue ::= num\n  | root\n\
                    num ::= \"-\"? [0-9]+ ws\nws ::= [ \\t]{0,2}\n";
        let cases: [(&str, &[&str], &[&str]); 6] = [
            (list, &["[]", "[1]", "[ 12, [-3,[]]]", "[1 , 2]"], &["[", "[1,]", "[   1]", "[--1]"]),
            ("root ::= [a-z]* \"ab\" .", &["ab!", "xabé", "abab\n"], &["ab", "Xab!"]),
            ("root ::= 'it''s' | \"\\x41\\u00e9\\\"\"", &["its", "Aé\""], &["it's", ""]),
            (
                "root ::= e\ne ::= e \"+\" t | t t ::= [^+()]+ | \"(\" e \")\"",
                &["a+b", "(a+b)+c"],
                &["+", "(a"],
            ),
            ("root ::= (\"a\" | \"b\" root){2}", &["aa", "baaa"], &["a", "ba", "baa"]),
            ("root ::= \"\"", &[""], &["a"]),
        ];
        for (source, good, bad) in cases {
            let grammar = compiled(&tokens, serde_json::json!({"kind": "ebnf", "source": source}));
            for text in good {
                assert!(accepts(&tokens, &grammar, text), "{source} should accept {text:?}");
            }
            for text in bad {
                assert!(!accepts(&tokens, &grammar, text), "{source} should not accept {text:?}");
            }
        }
        let part = serde_json::json!({"kind": "sequence", "parts": [
            {"kind": "text", "text": "<tool>"}, {"kind": "ebnf", "source": list}, {"kind": "text", "text": "."}]});
        let grammar = compiled(&tokens, part);
        assert!(accepts(&tokens, &grammar, "<tool>[[1]]."));
        assert!(!accepts(&tokens, &grammar, "<tool>[[1]]"));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let tokens = small(&[]);
        let chain: String = (0..5000).map(|at| format!("r{at} ::= \"(\" r{} \")\"\n", at + 1)).collect();
        for (source, named) in [
            ("start ::= \"a\"", "`root`"),
            ("root ::= other", "`other`"),
            ("root ::= \"a", "no end"),
            ("root ::= (\"a\"", "`)`"),
            ("root ::= [z-a]", "backwards"),
            ("root ::= []", "empty"),
            ("root ::= \"a\" (=\"b\")", "look-ahead"),
            ("root ::= <think>", "tokens"),
            ("root ::= TagDispatch((\"a\", b))", "TagDispatch"),
            ("root ::= \"a\"{3,2}", "count"),
            ("root ::= \"a\"{99999999}", "count"),
            ("root ::= \"\\q\"", "escape"),
            ("root = \"a\"", "::="),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root ::= \"a\" ;", "`;`"),
            (&format!("root ::= {}", "(".repeat(5000)), "nested"),
            (&format!("root ::= r0\n{chain}r5000 ::= root"), "steps"),
        ] {
            let description = Description::Ebnf { source: source.to_owned() };
            let Err(refusal) = compile(&tokens, description, &CancelToken::default()) else {
                panic!("{source}")
            };
            assert!(refusal.message.contains(named), "{source}: {}", refusal.message);
        }
    }
}
