//! Schemas as boolean expressions over constraints: a keyword's effect on one type of value.
//!
//! Expressions are hash-consed: an equal number is an equal expression, and a child of an array or an object is such a
//! number. That makes every combination that `allOf`, `$ref`, `not` and the like reach one state of a tree automaton,
//! recursion included (after Comon et al., "Tree Automata Techniques and Applications"). O(1) a node, but for the length of its parts.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use crate::language::Lang;
use crate::number::Decimal;

/// An expression.
pub(crate) type Expr = u32;
/// Allows nothing.
pub(crate) const FALSE: Expr = 0;
/// Allows everything.
pub(crate) const TRUE: Expr = 1;

/// The place of a keyword: an index into the list of their names.
pub(crate) type Path = u32;

/// A type of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    Array,
    Object,
}

pub(crate) const KINDS: [Kind; 6] =
    [Kind::Null, Kind::Boolean, Kind::Number, Kind::Text, Kind::Array, Kind::Object];

/// A constraint on numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum NumberRule {
    Whole,
    /// The bound, and whether it is exclusive.
    Min(Decimal, bool),
    Max(Decimal, bool),
    Multiple(Decimal),
    Among(Rc<[Decimal]>),
    /// The bound beside it lies further inward than the keyword's: what is more than that is not known.
    Narrowed,
    /// A constraint without an exact form.
    Unknown,
}

/// A constraint on strings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TextRule {
    In(Lang),
    AtLeast(u64),
    AtMost(u64),
    Among(Rc<[Rc<str>]>),
    Unknown,
}

/// A constraint on arrays.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ArrayRule {
    AtLeast(u64),
    AtMost(u64),
    /// The item at the position, if there is one.
    Item(usize, Expr),
    /// All items from the position on.
    From(usize, Expr),
    /// How many of the items from a position on match this.
    Count {
        from: usize,
        item: Expr,
        min: u64,
        max: Option<u64>,
    },
    Unique,
    Unknown,
}

/// A constraint on objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ObjectRule {
    Requires(Rc<str>),
    /// The property, if it is there.
    Property(Rc<str>, Expr),
    /// All properties with such a name.
    Names(Lang, Expr),
    AtLeast(u64),
    AtMost(u64),
    Unknown,
}

/// A constraint on the values of one type; values of other types satisfy it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Atom {
    /// The allowed types, one bit for each of [`KINDS`]; the only constraint on all types.
    Kinds(u8),
    Boolean(bool),
    Number(NumberRule, Path),
    Text(TextRule, Path),
    Array(ArrayRule, Path),
    Object(ObjectRule, Path),
    /// A constraint on all types without an exact form.
    Unknown(Path),
}

/// The node of an expression.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ExprNode {
    False,
    True,
    And(Rc<[Expr]>),
    Or(Rc<[Expr]>),
    /// Exactly one of them.
    One(Rc<[Expr]>),
    Not(Expr),
    /// A schema of the document, whose expression is built when it is needed.
    Schema(u32),
    Atom(Rc<Atom>),
}

/// The arena of expressions.
pub(crate) struct Expressions {
    nodes: Vec<ExprNode>,
    index: HashMap<ExprNode, Expr>,
}

impl Expressions {
    pub(crate) fn new() -> Self {
        let mut this = Expressions { nodes: Vec::new(), index: HashMap::new() };
        this.make(ExprNode::False);
        this.make(ExprNode::True);
        this
    }

    pub(crate) fn node(&self, expr: Expr) -> ExprNode {
        self.nodes[expr as usize].clone()
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    fn make(&mut self, node: ExprNode) -> Expr {
        if let Some(&known) = self.index.get(&node) {
            return known;
        }
        let expr = self.nodes.len() as Expr;
        self.nodes.push(node.clone());
        self.index.insert(node, expr);
        expr
    }

    pub(crate) fn atom(&mut self, atom: Atom) -> Expr {
        self.make(ExprNode::Atom(Rc::new(atom)))
    }

    pub(crate) fn kinds(&mut self, kinds: &[Kind]) -> Expr {
        let bits = kinds.iter().fold(0, |bits, &kind| bits | 1 << kind as u8);
        self.atom(Atom::Kinds(bits))
    }

    pub(crate) fn schema(&mut self, number: u32) -> Expr {
        self.make(ExprNode::Schema(number))
    }

    pub(crate) fn not(&mut self, expr: Expr) -> Expr {
        match self.nodes[expr as usize] {
            ExprNode::False => TRUE,
            ExprNode::True => FALSE,
            ExprNode::Not(inner) => inner,
            _ => self.make(ExprNode::Not(expr)),
        }
    }

    fn join(&mut self, parts: &[Expr], nothing: Expr, all: Expr) -> Result<Vec<Expr>, Expr> {
        let mut flat: Vec<Expr> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for &part in parts {
            let inner = match &self.nodes[part as usize] {
                ExprNode::And(inner) if nothing == TRUE => inner.to_vec(),
                ExprNode::Or(inner) if nothing == FALSE => inner.to_vec(),
                _ => vec![part],
            };
            for part in inner {
                if part == all {
                    return Err(all);
                }
                if part != nothing && seen.insert(part) {
                    flat.push(part);
                }
            }
        }
        for &part in &flat {
            if matches!(self.nodes[part as usize], ExprNode::Not(inner) if seen.contains(&inner)) {
                return Err(all);
            }
        }
        match flat.as_slice() {
            [] => Err(nothing),
            [one] => Err(*one),
            _ => Ok(flat),
        }
    }

    /// All of them; the order is kept, for it is the order in which properties are written.
    pub(crate) fn and(&mut self, parts: &[Expr]) -> Expr {
        match self.join(parts, TRUE, FALSE) {
            Ok(flat) => self.make(ExprNode::And(flat.into())),
            Err(one) => one,
        }
    }

    /// Any of them.
    pub(crate) fn or(&mut self, parts: &[Expr]) -> Expr {
        match self.join(parts, FALSE, TRUE) {
            Ok(flat) => self.make(ExprNode::Or(flat.into())),
            Err(one) => one,
        }
    }

    /// Exactly one of them.
    pub(crate) fn one(&mut self, parts: &[Expr]) -> Expr {
        let parts: Vec<Expr> = parts.iter().copied().filter(|&part| part != FALSE).collect();
        match parts.as_slice() {
            [] => FALSE,
            [one] => *one,
            _ => self.make(ExprNode::One(parts.into())),
        }
    }
}
