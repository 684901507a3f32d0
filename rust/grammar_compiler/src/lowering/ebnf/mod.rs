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

mod parser;

use rustc_hash::FxHashMap;

use self::parser::{Expression, MAX_DEPTH, parse};
use crate::lowering::lark::{Lexeme, Node, Writer, literal, regex};
use crate::lowering::members::Rules;
use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// Adds the rules of an EBNF grammar to `writer`; returns its root.
pub(crate) fn lower(writer: &mut Writer, source: &str) -> Result<Node, Refusal> {
    let rules = parse(source)?;
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
    /// The rule is being lowered: a reference to it is recursive, and uses this name.
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

#[cfg(test)]
mod tests {
    use crate::backends::compile;
    use crate::backends::tests::{accepts, compiled};
    use crate::cancellation::CancelToken;
    use crate::context::tests::small;
    use crate::lowering::description::Description;

    #[test]
    fn grammars_accept_what_they_say() {
        let tokens = small(&["ab", "12", "\", \""]);
        let list = "# a list\nroot  ::= \"[\" ws (value (\",\" ws value)*)? \"]\"\nvalue ::= num\n  | root\n\
                    num ::= \"-\"? [0-9]+ ws\nws ::= [ \\t]{0,2}\n";
        let cases: [(&str, &[&str], &[&str]); 7] = [
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
            ("root ::= f((\"*\" | \"/\")f)*\nf ::= \"a\" | \"(\"root\")\"", &["a", "a*(a/a)"], &["", "a*"]),
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
            ("root ::= \"a\"{99999999999}", "count"),
            ("root ::= \"\\q\"", "escape"),
            ("root = \"a\"", "::="),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root ::= \"a\" ;", "`;`"),
            ("root ::= \"a\" root", "no text that it allows ever ends"),
            ("root ::= x+ \"\\n\"\nx ::= \"a\" ws | \"(\" x \")\" ws\nws ::= [ \\t\\n]*", "ever ends"),
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
