//! Rewrites a template's source before it is compiled: what minijinja lacks of jinja2, and where values are metered.
//!
//! ```text
//! {% generation %} … {% endgeneration %}  ►  {% with %} … {% endwith %}, a scope and nothing else
//! {% for x in values %}                   ►  {% for x in (values)|_each %}
//! {% set ns.key = value %}                ►  {% set ns.key = (value)|_weighed %}
//! [a, b]   {'a': b}   a + b               ►  ([a, b])|_weighed and so on
//! a|safe + b                              ►  ((a|safe), ( b))|_added, for the escapes of safe text
//! ```
//!
//! It works on tokens, whose places are exact. Lines stay where they are.

use minijinja::Error;
use minijinja::machinery::{Token, tokenize};

use crate::environment::syntax;

/// Words that an operand follows.
const OPERATORS: [&str; 14] =
    ["if", "else", "elif", "and", "or", "not", "in", "is", "for", "set", "with", "do", "filter", "recursive"];

/// Returns the source for the compiler.
pub(crate) fn rewritten(source: &str) -> Result<String, Error> {
    let mut rewriter = Rewriter::default();
    for token in tokenize(source, false, syntax()) {
        let (token, span) = token?;
        rewriter.take(&token, span.start_offset as usize, span.end_offset as usize);
    }
    Ok(rewriter.edits.apply(source))
}

/// Changes of a source, in the order in which those of one place are written.
#[derive(Default)]
struct Edits(Vec<(usize, usize, &'static str)>);

impl Edits {
    fn replace(&mut self, start: usize, end: usize, text: &'static str) {
        self.0.push((start, end, text));
    }

    fn insert(&mut self, at: usize, text: &'static str) {
        self.replace(at, at, text);
    }

    fn apply(mut self, source: &str) -> String {
        self.0.sort_by_key(|edit| edit.0);
        let mut made = String::with_capacity(source.len() + 16 * self.0.len());
        let mut written = 0;
        for (start, end, text) in self.0 {
            made.push_str(&source[written..start]);
            made.push_str(text);
            written = end;
        }
        made + &source[written..]
    }
}

/// What stands between two brackets, or between the ends of a tag.
#[derive(Default)]
struct Group {
    /// Where it begins, if it is a list or a dict.
    literal: Option<usize>,
    /// Whether it holds more than constants.
    computes: bool,
    sum: Sum,
    /// Where the tag has an expression that is wrapped whole, and with what.
    wrapped: Option<(usize, &'static str)>,
    /// Whether the next token begins such an expression.
    wraps_next: Option<&'static str>,
}

/// Operands with `+` between them, up to an operator that binds less.
#[derive(Default)]
struct Sum {
    start: Option<usize>,
    signs: Vec<(usize, usize)>,
    has_safe: bool,
    has_minus: bool,
}

#[derive(Default)]
struct Rewriter {
    edits: Edits,
    groups: Vec<Group>,
    /// The tag's name, and whether it sets an attribute.
    tag: String,
    sets_attribute: bool,
    /// Where the last token ended, and what it was.
    end: usize,
    after_operand: bool,
    after: &'static str,
}

impl Rewriter {
    fn take(&mut self, token: &Token<'_>, start: usize, end: usize) {
        if let Some(group) = self.groups.last_mut()
            && let Some(filter) = group.wraps_next.take()
        {
            group.wrapped = Some((start, filter));
        }
        if self.ends_sum(token) {
            self.end_sum();
        }
        match token {
            Token::TemplateData(_) => return,
            Token::VariableStart | Token::BlockStart => self.groups.push(Group::default()),
            Token::BracketOpen | Token::BraceOpen | Token::ParenOpen => {
                self.begin_operand(start);
                let is_literal = !matches!(token, Token::ParenOpen) && !self.after_operand;
                let literal = is_literal.then_some(start);
                self.groups.push(Group { literal, ..Group::default() });
            }
            Token::BracketClose | Token::BraceClose | Token::ParenClose => self.close(end),
            Token::VariableEnd | Token::BlockEnd => self.end_tag(),
            Token::Ident(name) => self.name(name, start, end),
            Token::Plus => self.sum().signs.push((start, end)),
            Token::Minus => {
                self.begin_operand(start);
                let is_binary = self.after_operand;
                self.sum().has_minus |= is_binary;
            }
            Token::Assign if self.groups.len() == 1 && self.tag == "set" && self.sets_attribute => {
                self.group().wraps_next = Some(")|_weighed");
            }
            Token::Dot if self.groups.len() == 1 && self.tag == "set" && self.group().wrapped.is_none() => {
                self.sets_attribute = true;
            }
            Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => {
                self.begin_operand(start);
            }
            _ => {}
        }
        self.after_operand = match token {
            Token::Ident(name) => self.after == "." || !OPERATORS.contains(name),
            Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => true,
            Token::BracketClose | Token::BraceClose | Token::ParenClose => true,
            _ => false,
        };
        self.after = match token {
            Token::Dot => ".",
            Token::Pipe => "|",
            Token::BlockStart => "{%",
            _ => "",
        };
        self.end = end;
    }

    fn group(&mut self) -> &mut Group {
        if self.groups.is_empty() {
            self.groups.push(Group::default());
        }
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    fn sum(&mut self) -> &mut Sum {
        &mut self.group().sum
    }

    fn begin_operand(&mut self, start: usize) {
        self.sum().start.get_or_insert(start);
    }

    /// Whether a token binds less than `+`, or ends its group.
    fn ends_sum(&self, token: &Token<'_>) -> bool {
        match token {
            Token::Ident(name) => self.after != "." && OPERATORS.contains(name),
            Token::Comma | Token::Colon | Token::Assign => true,
            Token::Eq | Token::Ne | Token::Lt | Token::Lte | Token::Gt | Token::Gte => true,
            Token::BracketClose | Token::BraceClose | Token::ParenClose => true,
            Token::VariableEnd | Token::BlockEnd => true,
            _ => false,
        }
    }

    fn end_sum(&mut self) {
        let end = self.end;
        let sum = std::mem::take(self.sum());
        let (Some(start), false) = (sum.start, sum.signs.is_empty()) else { return };
        if sum.has_safe && !sum.has_minus {
            self.edits.insert(start, "((");
            for (start, end) in sum.signs {
                self.edits.replace(start, end, "), (");
            }
            self.edits.insert(end, "))|_added");
        } else {
            self.edits.insert(start, "(");
            self.edits.insert(end, ")|_weighed");
        }
    }

    fn close(&mut self, end: usize) {
        let Some(group) = self.groups.pop() else { return };
        if let (Some(start), true) = (group.literal, group.computes) {
            self.edits.insert(start, "(");
            self.edits.insert(end, "|_weighed)");
        }
        self.group().computes |= group.computes;
    }

    fn end_tag(&mut self) {
        let end = self.end;
        if let Some((start, closing)) = self.groups.pop().and_then(|group| group.wrapped) {
            self.edits.insert(start, "(");
            self.edits.insert(end, closing);
        }
        self.groups.clear();
        self.tag.clear();
        self.sets_attribute = false;
    }

    fn name(&mut self, name: &str, start: usize, end: usize) {
        if self.after == "{%" {
            name.clone_into(&mut self.tag);
            match name {
                "generation" => self.edits.replace(start, end, "with"),
                "endgeneration" => self.edits.replace(start, end, "endwith"),
                _ => {}
            }
            return;
        }
        if self.after == "|" {
            self.sum().has_safe |= matches!(name, "safe" | "e" | "escape" | "forceescape");
            return;
        }
        let is_for = self.groups.len() == 1 && self.tag == "for" && self.after != ".";
        match name {
            "in" if is_for && self.group().wrapped.is_none() => self.group().wraps_next = Some(")|_each"),
            "if" | "recursive" if is_for => {
                let before = self.end;
                if let Some((start, closing)) = self.group().wrapped.take() {
                    self.edits.insert(start, "(");
                    self.edits.insert(before, closing);
                    self.tag.clear(); // what follows is the condition
                }
            }
            _ if self.after != "." && OPERATORS.contains(&name) => {}
            _ => {
                self.begin_operand(start);
                self.group().computes = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rewritten;

    #[test]
    fn blocks_for_training_are_scopes() {
        let source = "{% generation %}a{%- endgeneration -%}{% set generation = 1 %}{% raw %}{% generation %}{% endraw %}";
        let plain = source.replacen("generation", "with", 1).replacen("endgeneration", "endwith", 1);
        assert_eq!(rewritten(source).unwrap(), plain);
    }

    #[test]
    fn loops_containers_and_sums_are_metered() {
        let cases = [
            ("{% for a, b in x if a in ['y'] %}", "{% for a, b in (x)|_each if a in ['y'] %}"),
            ("{%- for a in x[1:] recursive -%}", "{%- for a in (x[1:])|_each recursive -%}"),
            ("{% for a in [x, y] + z %}", "{% for a in ((([x, y]|_weighed) + z)|_weighed)|_each %}"),
            ("{{ {'a': x[0]} }}{{ [] }}{{ ['a', 1] }}", "{{ ({'a': x[0]}|_weighed) }}{{ [] }}{{ ['a', 1] }}"),
            ("{{ 'a' + b.if ~ c == d + 1 }}", "{{ ('a' + b.if ~ c)|_weighed == (d + 1)|_weighed }}"),
            (
                "{{ f(a + b, k=-c + d) if not e + f }}",
                "{{ f((a + b)|_weighed, k=(-c + d)|_weighed) if not (e + f)|_weighed }}",
            ),
            ("{{ 'a'|safe + b + c|trim }}", "{{ (('a'|safe ), ( b ), ( c|trim))|_added }}"),
            ("{% set ns.a = b %}{% set a = b.c %}", "{% set ns.a = (b)|_weighed %}{% set a = b.c %}"),
            ("a + b {# x + y #}{{ a[b + c] }}", "a + b {# x + y #}{{ a[(b + c)|_weighed] }}"),
        ];
        for (source, expected) in cases {
            assert_eq!(rewritten(source).unwrap(), expected);
        }
    }
}
