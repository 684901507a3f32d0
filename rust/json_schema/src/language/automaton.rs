//! Membership and emptiness of languages: Brzozowski derivatives, and the automaton that they form.
//!
//! A derivative is the language of the strings that may follow a character; the distinct derivatives are the states of a
//! deterministic automaton (Owens, Reppy, Turon, "Regular-expression derivatives re-examined", 2009). Emptiness costs
//! the states reached times the character classes of each; every derivative is spent from a budget, beyond
//! which the answer is "unknown".

use std::collections::{HashMap, HashSet};

use super::{ANY, EMPTY, Lang, Languages, NEVER, Node, contains};

/// The automaton of a language: state 0 is the start.
pub(crate) struct Automaton {
    /// Per state its ways on: from, to (both included), next state. States without a way to the end are left out.
    pub ways: Vec<Vec<(u32, u32, usize)>>,
    /// Whether the text may end in a state.
    pub accepts: Vec<bool>,
}

impl Languages {
    /// What may follow the character `c`.
    pub(crate) fn derivative(&mut self, lang: Lang, c: u32) -> Lang {
        self.fuel = self.fuel.saturating_sub(1);
        match self.node(lang).clone() {
            Node::Never | Node::Empty => NEVER,
            Node::Class(ranges) => {
                if contains(&ranges, c) {
                    EMPTY
                } else {
                    NEVER
                }
            }
            Node::Concat(..) => {
                // Along the chain in a loop: a pattern may be long, the stack is not.
                let (mut parts, mut rest) = (Vec::new(), lang);
                while let Node::Concat(head, tail) = *self.node(rest) {
                    let first = self.derivative(head, c);
                    parts.push(self.concat(first, tail));
                    rest = tail;
                    if !self.nullable(head) {
                        rest = NEVER;
                    }
                }
                parts.push(self.derivative(rest, c));
                self.or(parts)
            }
            Node::Or(parts) => {
                let parts = parts.iter().map(|&part| self.derivative(part, c)).collect();
                self.or(parts)
            }
            Node::And(parts) => {
                let parts = parts.iter().map(|&part| self.derivative(part, c)).collect();
                self.and(parts)
            }
            Node::Not(a) => {
                let inner = self.derivative(a, c);
                self.not(inner)
            }
            Node::Repeat(a, min, max) => {
                let head = self.derivative(a, c);
                let rest = self.repeat(a, min.saturating_sub(1), max.map(|max| max - 1));
                self.concat(head, rest)
            }
            Node::Multiple(of, remainder) => match char::from_u32(c).and_then(|c| c.to_digit(10)) {
                Some(digit) => self.multiple(of, (10 * remainder + digit) % of),
                None => NEVER,
            },
        }
    }

    /// Where the next character may begin to make a difference: the first of each piece within which it makes none.
    fn cuts(&mut self, lang: Lang, out: &mut Vec<u32>) {
        self.fuel = self.fuel.saturating_sub(1);
        match self.node(lang).clone() {
            Node::Never | Node::Empty => {}
            Node::Class(ranges) => {
                for &(low, high) in &ranges {
                    out.push(low);
                    out.push(high + 1);
                }
            }
            Node::Concat(..) => {
                let mut rest = lang;
                while let Node::Concat(head, tail) = *self.node(rest) {
                    self.cuts(head, out);
                    rest = if self.nullable(head) { tail } else { NEVER };
                }
                self.cuts(rest, out);
            }
            Node::Or(parts) | Node::And(parts) => parts.iter().for_each(|&part| self.cuts(part, out)),
            Node::Not(a) | Node::Repeat(a, _, _) => self.cuts(a, out),
            Node::Multiple(..) => out.extend('0' as u32..='9' as u32 + 1),
        }
    }

    /// The ways on from a language, joined where they lead to the same.
    fn ways(&mut self, lang: Lang) -> Vec<(u32, u32, Lang)> {
        let mut cuts = vec![0, 0xE000];
        self.cuts(lang, &mut cuts);
        cuts.sort_unstable();
        cuts.dedup();
        let mut out: Vec<(u32, u32, Lang)> = Vec::new();
        for (at, &low) in cuts.iter().enumerate() {
            let high = cuts.get(at + 1).map_or(0x10FFFF, |next| next - 1);
            if low > 0x10FFFF || (0xD800..0xE000).contains(&low) {
                continue;
            }
            let high = if low < 0xD800 { high.min(0xD7FF) } else { high };
            let next = self.derivative(lang, low);
            if next == NEVER {
                continue;
            }
            match out.last_mut() {
                Some(last) if last.2 == next && last.1 + 1 == low => last.1 = high,
                _ => out.push((low, high, next)),
            }
        }
        out
    }

    /// Whether `text` is in the language; none if the budget is spent.
    pub(crate) fn matches(&mut self, lang: Lang, text: &str) -> Option<bool> {
        let mut state = lang;
        for c in text.chars() {
            if state == ANY || state == NEVER {
                break;
            }
            if self.fuel == 0 {
                return None;
            }
            state = self.derivative(state, c as u32);
        }
        Some(self.nullable(state))
    }

    /// Whether there is no string in it; none if that takes more than `limit` states or the budget.
    pub(crate) fn is_empty(&mut self, lang: Lang, limit: usize) -> Option<bool> {
        let mut seen = HashSet::from([lang]);
        let mut todo = vec![lang];
        while let Some(state) = todo.pop() {
            if self.nullable(state) {
                return Some(false);
            }
            for (_, _, next) in self.ways(state) {
                if seen.insert(next) {
                    todo.push(next);
                }
            }
            if seen.len() > limit || self.fuel == 0 {
                return None;
            }
        }
        Some(true)
    }

    /// The same without complements that take nothing from the other parts of an intersection.
    pub(crate) fn without_idle(&mut self, lang: Lang, limit: usize) -> Lang {
        let Node::And(parts) = self.node(lang).clone() else { return lang };
        let mut left = Vec::new();
        for &part in &parts {
            let Node::Not(inner) = *self.node(part) else {
                left.push(part);
                continue;
            };
            let is_idle = parts.iter().any(|&other| {
                let plain = !matches!(self.node(other), Node::Not(_));
                let both = self.and(vec![other, inner]);
                plain && self.is_empty(both, limit) == Some(true)
            });
            if !is_idle {
                left.push(part);
            }
        }
        self.and(left)
    }

    /// The automaton, without the states that lead nowhere; none if it has more than `limit` or the budget is spent.
    pub(crate) fn automaton(&mut self, lang: Lang, limit: usize) -> Option<Automaton> {
        let mut numbers = HashMap::from([(lang, 0)]);
        let mut states = vec![lang];
        let mut ways: Vec<Vec<(u32, u32, usize)>> = Vec::new();
        let mut at = 0;
        while at < states.len() {
            let mut out = Vec::new();
            for (low, high, next) in self.ways(states[at]) {
                let number = *numbers.entry(next).or_insert_with(|| {
                    states.push(next);
                    states.len() - 1
                });
                out.push((low, high, number));
            }
            ways.push(out);
            if states.len() > limit || self.fuel == 0 {
                return None;
            }
            at += 1;
        }
        let accepts: Vec<bool> = states.iter().map(|&state| self.nullable(state)).collect();
        let mut alive = accepts.clone();
        let mut changed = true;
        while changed {
            changed = false;
            for state in (0..ways.len()).rev() {
                if !alive[state] && ways[state].iter().any(|way| alive[way.2]) {
                    alive[state] = true;
                    changed = true;
                }
            }
        }
        for state in &mut ways {
            state.retain(|way| alive[way.2]);
        }
        Some(Automaton { ways, accepts })
    }

    /// Whether it is written as a finite set of strings.
    pub(crate) fn is_finite(&self, lang: Lang) -> bool {
        match self.node(lang) {
            Node::Never | Node::Empty | Node::Class(_) => true,
            Node::Concat(..) => {
                let mut rest = lang;
                while let Node::Concat(head, tail) = *self.node(rest) {
                    if !self.is_finite(head) {
                        return false;
                    }
                    rest = tail;
                }
                self.is_finite(rest)
            }
            Node::Or(parts) => parts.iter().all(|&part| self.is_finite(part)),
            Node::And(parts) => parts.iter().any(|&part| self.is_finite(part)),
            Node::Not(_) | Node::Multiple(..) | Node::Repeat(_, _, None) => false,
            Node::Repeat(inner, _, _) => self.is_finite(*inner),
        }
    }

    /// How many strings it has: none for a number without end. The outer none where that takes too many states.
    pub(crate) fn count(&mut self, lang: Lang) -> Option<Option<u64>> {
        let automaton = self.automaton(lang, 2_000)?;
        let mut into = vec![0; automaton.ways.len()];
        automaton.ways.iter().flatten().for_each(|&(_, _, next)| into[next] += 1);
        let mut texts = vec![0u64; into.len()];
        texts[0] = 1;
        // A state is done once all ways into it are; those on a circle never are.
        let (mut sum, mut done) = (0u64, 0);
        let mut todo: Vec<usize> = (0..into.len()).filter(|&state| into[state] == 0).collect();
        while let Some(state) = todo.pop() {
            done += 1;
            if automaton.accepts[state] {
                sum = sum.saturating_add(texts[state]);
            }
            for &(low, high, next) in &automaton.ways[state] {
                let on = texts[state].saturating_mul(u64::from(high - low) + 1);
                texts[next] = texts[next].saturating_add(on);
                into[next] -= 1;
                if into[next] == 0 {
                    todo.push(next);
                }
            }
        }
        Some((done == into.len()).then_some(sum))
    }

    /// All its strings, if there are at most `limit` of them.
    pub(crate) fn strings(&mut self, lang: Lang, limit: usize) -> Option<Vec<String>> {
        let automaton = self.automaton(lang, 2_000)?;
        let mut out = Vec::new();
        let mut todo = vec![(0, String::new())];
        while let Some((state, text)) = todo.pop() {
            // Every state here leads to an end: a text that is longer than there are states has come in a circle.
            if text.chars().count() > automaton.ways.len() {
                return None;
            }
            if automaton.accepts[state] {
                out.push(text.clone());
            }
            for &(low, high, next) in &automaton.ways[state] {
                if (high - low) as usize >= limit {
                    return None;
                }
                for c in low..=high {
                    let mut longer = text.clone();
                    longer.push(char::from_u32(c)?);
                    todo.push((next, longer));
                }
            }
            if out.len() > limit || todo.len() > 4 * limit + 64 {
                return None;
            }
        }
        out.sort_unstable();
        Some(out)
    }
}
