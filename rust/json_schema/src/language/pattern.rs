//! Languages as patterns that the grammar's compiler reads.
//!
//! A language without intersection and complement is written as it is made; of another one the states of its automaton are
//! left out one after another first, which may take as much as the cube of their number and is bounded.

use std::collections::{BTreeMap, BTreeSet};

use super::{ANY, ANY_CHAR, EMPTY, Lang, Languages, NEVER, Node, complement, normal};

/// Bytes of a pattern.
const MAX_LENGTH: usize = 40_000;

impl Languages {
    /// A regular expression for exactly this language (from `^` to `$`), in the dialect of the grammar's compiler; none
    /// if it gets too long.
    ///
    /// A class that has U+0000 and lacks the quotation mark or the backslash loses U+0000: the compiler writes a class
    /// of all control characters as "any escape", these two among them.
    pub(crate) fn pattern(&mut self, lang: Lang) -> Option<String> {
        self.pattern_within(lang, MAX_LENGTH)
    }

    /// The same for a number of bytes.
    pub(crate) fn pattern_within(&mut self, lang: Lang, longest: usize) -> Option<String> {
        let lang = if self.is_positive(lang, 0)? { lang } else { self.solved(lang)? };
        let mut out = String::from("^(?:");
        self.write(lang, &mut out, 0, longest)?;
        out.push_str(")$");
        Some(out)
    }

    /// Whether it is made without intersection and complement, so that it is empty only if it is [`NEVER`].
    pub(crate) fn is_plain(&self, lang: Lang) -> bool {
        self.is_positive(lang, 0) == Some(true)
    }

    fn is_positive(&self, lang: Lang, depth: usize) -> Option<bool> {
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
                Node::And(_) | Node::Not(_) | Node::Multiple(..) => false,
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

    /// The same language without intersection and complement: of its automaton one state after another is left out.
    fn solved(&mut self, lang: Lang) -> Option<Lang> {
        let automaton = self.automaton(lang, 400)?;
        let count = automaton.ways.len();
        // The end is a state of its own, behind the others.
        let (end, mut ways) = (count, vec![BTreeMap::new(); count + 1]);
        let mut into = vec![BTreeSet::new(); count + 1];
        for (state, on) in automaton.ways.iter().enumerate() {
            let mut targets: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
            for &(low, high, next) in on {
                targets.entry(next).or_default().push((low, high));
            }
            for (next, ranges) in targets {
                ways[state].insert(next, self.class(normal(ranges)));
                into[next].insert(state);
            }
            if automaton.accepts[state] {
                ways[state].insert(end, EMPTY);
                into[end].insert(state);
            }
        }
        // A state is left out where that joins the fewest ways (Delgado and Morais, "Approximation to the smallest regular
        // expression for a given regular language", 2004).
        let mut left: Vec<usize> = (1..count).collect();
        while let Some(at) = (0..left.len()).min_by_key(|&at| into[left[at]].len() * ways[left[at]].len()) {
            let state = left.swap_remove(at);
            self.leave_out(state, &mut ways, &mut into);
            if self.size() > 200_000 {
                return None;
            }
        }
        let around = ways[0].get(&0).copied().unwrap_or(NEVER);
        let around = self.repeat(around, 0, None);
        let last = ways[0].get(&end).copied().unwrap_or(NEVER);
        Some(self.concat(around, last))
    }

    /// Joins the ways into a state with those out of it.
    fn leave_out(&mut self, state: usize, ways: &mut [BTreeMap<usize, Lang>], into: &mut [BTreeSet<usize>]) {
        let mut out = std::mem::take(&mut ways[state]);
        let around = out.remove(&state).unwrap_or(NEVER);
        let around = self.repeat(around, 0, None);
        let mut before = std::mem::take(&mut into[state]);
        before.remove(&state);
        for (next, way) in out {
            let way = self.concat(around, way);
            into[next].remove(&state);
            for &from in &before {
                let through = self.concat(ways[from][&state], way);
                let known = ways[from].get(&next).copied().unwrap_or(NEVER);
                let joined = self.or(vec![known, through]);
                ways[from].insert(next, joined);
                into[next].insert(from);
            }
        }
        for from in before {
            ways[from].remove(&state);
        }
    }

    fn write(&self, lang: Lang, out: &mut String, depth: usize, longest: usize) -> Option<()> {
        if depth > 400 || out.len() > longest {
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
                    self.write(head, out, depth + 1, longest)?;
                    rest = tail;
                }
                self.write(rest, out, depth + 1, longest)?;
            }
            Node::Or(parts) => {
                out.push_str("(?:");
                for (at, &part) in parts.iter().enumerate() {
                    if at > 0 {
                        out.push('|');
                    }
                    self.write(part, out, depth + 1, longest)?;
                }
                out.push(')');
            }
            Node::Repeat(inner, min, max) => {
                out.push_str("(?:");
                self.write(*inner, out, depth + 1, longest)?;
                out.push(')');
                match (min, max) {
                    (0, None) => out.push('*'),
                    (1, None) => out.push('+'),
                    (0, Some(1)) => out.push('?'),
                    (min, None) => out.push_str(&format!("{{{min},}}")),
                    (min, Some(max)) => out.push_str(&format!("{{{min},{max}}}")),
                }
            }
            Node::And(_) | Node::Not(_) | Node::Multiple(..) => return None,
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
        Some(c) if c.is_alphanumeric() || c == '_' => out.push(c),
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
