//! The parts of a description, and how each may begin and end.

use std::rc::Rc;

use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// A part of a description.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// A terminal.
    Regular {
        name: String,
        lexeme: Lexeme,
    },
    /// A special token.
    Token(u32),
    /// An expression with its own lexemes.
    Opaque(String),
    Sequence(Vec<Node>),
    AnyOf(Vec<Node>),
    Repeat {
        part: Rc<Node>,
        min: u32,
        max: Option<u32>,
        separator: Option<Box<Node>>,
    },
    /// Parts in any order, each at most once, and whether it must come.
    AnyOrder {
        parts: Vec<(Node, bool)>,
        separator: Option<Box<Node>>,
    },
}

/// The properties of a terminal's language that matter to its neighbours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lexeme {
    /// The terminal may end with free text.
    pub(super) open: bool,
    /// The terminal may be empty.
    pub(super) empty: bool,
    /// The terminal is one text, so its end is known.
    pub(super) fixed: bool,
}

impl Lexeme {
    /// A terminal that does not end with free text.
    pub(crate) fn closed(empty: bool) -> Self {
        Self { open: false, empty, fixed: false }
    }

    /// Text without end.
    pub(crate) fn free() -> Self {
        Self { open: true, empty: true, fixed: false }
    }

    /// Exactly one text, which is not empty.
    pub(crate) fn fixed() -> Self {
        Self { open: false, empty: false, fixed: true }
    }

    /// One after the other.
    pub(super) fn then(self, next: Self) -> Self {
        Self {
            open: next.open || (self.open && next.empty),
            empty: self.empty && next.empty,
            fixed: self.fixed && next.fixed,
        }
    }

    /// One or the other.
    pub(super) fn or(self, other: Self) -> Self {
        Self { open: self.open || other.open, empty: self.empty || other.empty, fixed: false }
    }
}

/// The names and the lexemes, if all are terminals.
pub(super) fn regular(nodes: &[Node]) -> Option<(Vec<&str>, Vec<Lexeme>)> {
    let all = nodes.iter().map(|node| match node {
        Node::Regular { name, lexeme } => Some((name.as_str(), *lexeme)),
        _ => None,
    });
    all.collect()
}

/// The nodes without sequences in sequences.
pub(super) fn flat(nodes: Vec<Node>) -> Vec<Node> {
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node {
            Node::Sequence(parts) => out.extend(flat(parts)),
            node => out.push(node),
        }
    }
    out
}

/// The ways in which a node that follows a free text may begin.
pub(super) fn expand(node: Node) -> Result<Vec<Vec<Node>>, Refusal> {
    match node {
        Node::AnyOf(options) => Ok(options.into_iter().map(|option| vec![option]).collect()),
        Node::Repeat { part, min, max, separator } => {
            let mut once = vec![(*part).clone()];
            if max != Some(1) {
                let part = match separator {
                    Some(separator) => Rc::new(Node::Sequence(vec![*separator, (*part).clone()])),
                    None => part,
                };
                let (min, max) = (min.saturating_sub(1), max.map(|max| max - 1));
                once.push(Node::Repeat { part, min, max, separator: None });
            }
            Ok(if min == 0 { vec![Vec::new(), once] } else { vec![once] })
        }
        Node::Opaque(_) | Node::AnyOrder { .. } => Err(refusal(
            "a free_text would run on over the JSON, grammar or parts in any order that follow it: put a text between them",
        )),
        node => Ok(vec![vec![node]]),
    }
}
