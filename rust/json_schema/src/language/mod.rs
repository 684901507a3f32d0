//! Regular languages of strings as hash-consed expressions.
//!
//! Union, intersection and complement are constructors, so that "a name that no pattern takes" is one expression. The
//! constructors normalise as far as that is cheap: O(parts) each.

mod automaton;
pub(crate) mod numbers;
mod pattern;
mod regex;
pub(crate) mod search;

use std::collections::HashMap;

/// A language; equal numbers are equal languages (not always the other way round).
pub(crate) type Lang = u32;

/// Scalar values as sorted, disjoint, non-adjacent ranges, ends included.
pub(crate) type Ranges = Box<[(u32, u32)]>;

/// No string.
pub(crate) const NEVER: Lang = 0;
/// Only the empty string.
pub(crate) const EMPTY: Lang = 1;
/// Every string.
pub(crate) const ANY: Lang = 2;
/// Every string of one character.
pub(crate) const ANY_CHAR: Lang = 3;

/// How an expression is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Never,
    Empty,
    Class(Ranges),
    /// The first is never a `Concat` itself.
    Concat(Lang, Lang),
    Or(Box<[Lang]>),
    And(Box<[Lang]>),
    Not(Lang),
    /// At least, at most.
    Repeat(Lang, u32, Option<u32>),
    /// Digits that go on from a number with the second remainder to a multiple of the first; none where that is 0.
    Multiple(u32, u32),
}

/// The arena of languages.
pub(crate) struct Languages {
    nodes: Vec<Node>,
    nullable: Vec<bool>,
    index: HashMap<Node, Lang>,
    /// Derivatives that may still be taken.
    pub(crate) fuel: u64,
}

/// The scalar values that `ranges` lacks.
pub(crate) fn complement(ranges: &[(u32, u32)]) -> Ranges {
    let mut out = Vec::new();
    for (first, last) in [(0, 0xD7FF), (0xE000, 0x10FFFF)] {
        let mut next = first;
        for &(low, high) in ranges {
            if high < next || low > last {
                continue;
            }
            if low > next {
                out.push((next, low - 1));
            }
            next = next.max(high + 1);
        }
        if next <= last {
            out.push((next, last));
        }
    }
    out.into()
}

/// Sorts and joins; leaves the surrogates out.
pub(crate) fn normal(mut ranges: Vec<(u32, u32)>) -> Ranges {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for (low, high) in ranges {
        match out.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => out.push((low, high)),
        }
    }
    complement(&complement(&out))
}

/// Whether `c` is in sorted ranges.
pub(crate) fn contains(ranges: &[(u32, u32)], c: u32) -> bool {
    let at = ranges.partition_point(|&(_, high)| high < c);
    ranges.get(at).is_some_and(|&(low, _)| low <= c)
}

impl Languages {
    pub(crate) fn new(fuel: u64) -> Self {
        let mut this = Languages { nodes: Vec::new(), nullable: Vec::new(), index: HashMap::new(), fuel };
        this.make(Node::Never);
        this.make(Node::Empty);
        this.make(Node::Not(NEVER));
        this.make(Node::Class(complement(&[])));
        this
    }

    pub(crate) fn node(&self, lang: Lang) -> &Node {
        &self.nodes[lang as usize]
    }

    /// Whether it has the empty string.
    pub(crate) fn nullable(&self, lang: Lang) -> bool {
        self.nullable[lang as usize]
    }

    /// How many expressions there are, as a measure of memory.
    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    fn make(&mut self, node: Node) -> Lang {
        if let Some(&known) = self.index.get(&node) {
            return known;
        }
        let nullable = match &node {
            Node::Never | Node::Class(_) => false,
            Node::Empty => true,
            Node::Concat(a, b) => self.nullable(*a) && self.nullable(*b),
            Node::Or(parts) => parts.iter().any(|&part| self.nullable(part)),
            Node::And(parts) => parts.iter().all(|&part| self.nullable(part)),
            Node::Not(a) => !self.nullable(*a),
            Node::Repeat(a, min, _) => *min == 0 || self.nullable(*a),
            Node::Multiple(_, remainder) => *remainder == 0,
        };
        let lang = self.nodes.len() as Lang;
        self.nodes.push(node.clone());
        self.nullable.push(nullable);
        self.index.insert(node, lang);
        lang
    }

    /// The strings of one character out of `ranges`.
    pub(crate) fn class(&mut self, ranges: Ranges) -> Lang {
        if ranges.is_empty() {
            return NEVER;
        }
        self.make(Node::Class(ranges))
    }

    pub(crate) fn concat(&mut self, a: Lang, b: Lang) -> Lang {
        let mut heads = Vec::new();
        let mut rest = a;
        while let Node::Concat(head, tail) = *self.node(rest) {
            heads.push(head);
            rest = tail;
        }
        heads.push(rest);
        let mut whole = b;
        for head in heads.into_iter().rev() {
            whole = match (head, whole) {
                (NEVER, _) | (_, NEVER) => NEVER,
                (EMPTY, other) | (other, EMPTY) => other,
                (ANY, ANY) => ANY,
                (ANY, other) if matches!(self.node(other), Node::Concat(ANY, _)) => other,
                (head, tail) => self.make(Node::Concat(head, tail)),
            };
        }
        whole
    }

    /// The digits of the multiples of `of`, which is above 0, with a sign or without; zeros may come first.
    pub(crate) fn multiples(&mut self, of: u32) -> Lang {
        let minus = self.literal("-");
        let sign = self.or(vec![EMPTY, minus]);
        // Tens are zeros at the end.
        let (mut of, mut tens) = (of, 0);
        while of % 10 == 0 {
            (of, tens) = (of / 10, tens + 1);
        }
        let (digits, nothing) = (self.multiple(of, 0), self.literal("0"));
        let (zeros, some) = (self.repeat(nothing, tens, Some(tens)), self.repeat(nothing, 1, None));
        let ended = self.concat(digits, zeros);
        let all = self.or(vec![ended, some]);
        self.concat(sign, all)
    }

    /// Digits that go on from a number with this remainder to a multiple of `of`.
    fn multiple(&mut self, of: u32, remainder: u32) -> Lang {
        // Ten times the remainder is all that counts, if it is not 0: those of 5 are all alike.
        let (mut shared, mut rest) = (of, 10);
        while rest > 0 {
            (shared, rest) = (rest, shared % rest);
        }
        let alike = of / shared;
        let remainder = match (remainder, remainder % alike) {
            (0, _) => 0,
            (_, 0) => alike,
            (_, other) => other,
        };
        self.make(Node::Multiple(of, remainder))
    }

    pub(crate) fn literal(&mut self, text: &str) -> Lang {
        let mut whole = EMPTY;
        for c in text.chars().rev() {
            let head = self.class(Box::new([(c as u32, c as u32)]));
            whole = self.concat(head, whole);
        }
        whole
    }

    /// Exactly these strings, as a tree of their prefixes. `texts` is sorted (by bytes) and without repetition.
    pub(crate) fn finite(&mut self, texts: &[&str]) -> Lang {
        let Some((first, rest)) = texts.split_first() else { return NEVER };
        if rest.is_empty() {
            return self.literal(first);
        }
        // What all share is taken off at once, so that the depth of the recursion is the number of branchings.
        let last = texts[texts.len() - 1];
        let shared: usize =
            first.chars().zip(last.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let prefix = self.literal(&first[..shared]);
        let tails: Vec<&str> = texts.iter().map(|text| &text[shared..]).collect();
        let mut parts = Vec::new();
        let mut at = 0;
        if tails[0].is_empty() {
            parts.push(EMPTY);
            at = 1;
        }
        while at < tails.len() {
            let head = tails[at].chars().next();
            let end = at + tails[at..].partition_point(|tail| tail.chars().next() <= head);
            let part = self.finite(&tails[at..end]);
            parts.push(part);
            at = end;
        }
        let branches = self.or(parts);
        self.concat(prefix, branches)
    }

    pub(crate) fn not(&mut self, a: Lang) -> Lang {
        match *self.node(a) {
            Node::Not(inner) => inner,
            Node::Never => ANY,
            _ => self.make(Node::Not(a)),
        }
    }

    pub(crate) fn or(&mut self, parts: Vec<Lang>) -> Lang {
        let mut flat = Vec::new();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for part in parts {
            match self.node(part) {
                Node::Never => {}
                Node::Class(more) => ranges.extend(more),
                Node::Or(inner) => {
                    for &part in inner {
                        match self.node(part) {
                            Node::Class(more) => ranges.extend(more),
                            _ => flat.push(part),
                        }
                    }
                }
                _ => flat.push(part),
            }
        }
        if !ranges.is_empty() {
            let class = self.class(normal(ranges));
            flat.push(class);
        }
        flat.sort_unstable();
        flat.dedup();
        if flat.contains(&ANY) || self.opposites(&flat) {
            return ANY;
        }
        match flat.as_slice() {
            [] => NEVER,
            [one] => *one,
            _ => self.make(Node::Or(flat.into())),
        }
    }

    pub(crate) fn and(&mut self, parts: Vec<Lang>) -> Lang {
        let mut flat = Vec::new();
        for part in parts {
            match self.node(part) {
                Node::And(inner) => flat.extend(inner.iter().copied()),
                _ if part == ANY => {}
                _ => flat.push(part),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        if flat.contains(&NEVER) || self.opposites(&flat) {
            return NEVER;
        }
        match flat.as_slice() {
            [] => ANY,
            [one] => *one,
            _ if flat.contains(&EMPTY) => {
                if flat.iter().all(|&part| self.nullable(part)) {
                    EMPTY
                } else {
                    NEVER
                }
            }
            _ => self.make(Node::And(flat.into())),
        }
    }

    fn opposites(&self, parts: &[Lang]) -> bool {
        parts
            .iter()
            .any(|&part| matches!(*self.node(part), Node::Not(inner) if parts.binary_search(&inner).is_ok()))
    }

    pub(crate) fn repeat(&mut self, a: Lang, min: u32, max: Option<u32>) -> Lang {
        match (a, min, max) {
            (_, _, Some(0)) | (EMPTY, _, _) => EMPTY,
            (NEVER, 0, _) => EMPTY,
            (NEVER, _, _) => NEVER,
            (_, 1, Some(1)) => a,
            (ANY_CHAR, 0, None) => ANY,
            (ANY, _, _) => ANY,
            _ => {
                if let (Node::Repeat(inner, 0, None), 0 | 1, _) = (self.node(a), min, max) {
                    let inner = *inner;
                    return self.repeat(inner, 0, None);
                }
                self.make(Node::Repeat(a, min, max))
            }
        }
    }
}
