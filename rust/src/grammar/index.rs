//! Choices and regexes as a table: one state a row, and a mask is a copy of the row.
//!
//! ```text
//!  pattern ─► automaton, to see how large it is ─► tokens that may occur ─► outlines-core's Index ─► table
//!             too large: llguidance's                                       (states × tokens)        live states only
//! ```
//!
//! outlines-core walks every token from every state, and reads patterns by preference (`a|ab` never takes the `b`).
//! So it is given only tokens whose bytes all occur in the automaton, as many as a budget allows, and the pattern
//! between a sentinel (a byte that the pattern lacks) and an anchor at its end, which leaves no preference and keeps
//! the search for later beginnings, which its automaton has too, from growing. States that no final state can be
//! reached from are taken out of its table.
//!
//! Building is O(states × tokens) within the budget. Then advancing is O(log tokens of the state), a mask O(vocabulary
//! / 32) or, where few tokens are allowed, that many.

use std::collections::VecDeque;
use std::sync::Arc;

use outlines_core::index::Index as Outlines;
use outlines_core::vocabulary::Vocabulary;
use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_syntax::hir::Hir;
use rustc_hash::FxHashMap;

use super::context::Tokens;
use super::description::refusal;
use super::job::Watch;
use super::{Compiled, Grammar, Refusal};

/// Largest automaton, in bytes.
const LARGEST_AUTOMATON: usize = 1 << 20;
/// Most steps of outlines-core: states times tokens.
const MOST_WALKS: usize = 4_000_000;
/// Largest table, in transitions.
const MOST_TRANSITIONS: usize = 2_000_000;
/// Bytes of forced text that are looked at first: for each token that is wanted, and beyond.
const PER_TOKEN: usize = 8;
const BEYOND: usize = 32;
/// From so many tokens on a row is kept as a mask.
const DENSE: usize = 256;

/// A regular language over a vocabulary's tokens.
pub struct Index {
    table: Arc<Table>,
}

struct Table {
    tokens: Arc<Tokens>,
    states: Vec<Row>,
    memory: usize,
}

struct Row {
    /// Tokens that may come, ascending, each with the state it leads to.
    next: Box<[(u32, u32)]>,
    /// The same as a mask, end tokens in it, where they are many.
    mask: Option<Box<[u32]>>,
    /// Whether the text may end here.
    is_final: bool,
    /// How many tokens the shortest way to an end has.
    to_end: u32,
    /// The token that such a way begins with.
    towards_end: u32,
}

impl Index {
    /// Builds the table; None if it would be too large.
    ///
    /// # Errors
    /// No text of the tokenizer matches, or nobody waits any more.
    pub fn build(tokens: &Arc<Tokens>, pattern: &Hir, watch: &Watch) -> Result<Option<Self>, Refusal> {
        let Some(automaton) = automaton(pattern) else { return Ok(None) };
        watch.check()?;
        let Some(survey) = survey(&automaton) else { return Ok(None) };
        let Some(mark) = (0..128u8).find(|byte| !survey.bytes[*byte as usize]) else { return Ok(None) };
        let candidates: Vec<u32> = tokens
            .text_tokens()
            .iter()
            .copied()
            .filter(|token| tokens.text_bytes(*token).iter().all(|byte| survey.bytes[*byte as usize]))
            .collect();
        if survey.states.saturating_mul(candidates.len()) > MOST_WALKS {
            return Ok(None);
        }
        watch.check()?;
        // Ids that outlines-core needs and no token has: its own end, and the sentinel.
        let (end, sentinel) = (tokens.vocab_size() as u32, tokens.vocab_size() as u32 + 1);
        let mut vocabulary = Vocabulary::new(end);
        let mut insert = |bytes: &[u8], id| {
            vocabulary
                .try_insert(bytes.to_vec(), id)
                .map_err(|error| refusal(format!("the regex cannot be compiled: {error}")))
        };
        insert(&[mark], sentinel)?;
        for token in candidates {
            insert(tokens.text_bytes(token), token)?;
        }
        let source = format!(r"\x{mark:02x}(?:{pattern})\z");
        let outlines = Outlines::new(&source, &vocabulary)
            .map_err(|error| refusal(format!("the regex cannot be written with this tokenizer: {error}")))?;
        watch.check()?;
        let start = outlines.next_state(&outlines.initial_state(), &sentinel);
        let start = start.ok_or_else(unmatchable)?;
        Table::from_outlines(tokens, &outlines, start, end)
            .map(|table| table.map(|table| Self { table: Arc::new(table) }))
    }
}

fn unmatchable() -> Refusal {
    refusal("no text matches the regex")
}

/// As large an automaton as outlines-core will build, within limits.
fn automaton(pattern: &Hir) -> Option<dense::DFA<Vec<u32>>> {
    let source = format!(r"(?:{pattern})\z");
    let config = dense::Config::new()
        .start_kind(regex_automata::dfa::StartKind::Anchored)
        .dfa_size_limit(Some(LARGEST_AUTOMATON))
        .determinize_size_limit(Some(2 * LARGEST_AUTOMATON));
    let thompson = regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(LARGEST_AUTOMATON));
    dense::Builder::new().configure(config).thompson(thompson).build(&source).ok()
}

struct Survey {
    /// Bytes that occur on a way that is alive.
    bytes: [bool; 256],
    states: usize,
}

/// Walks the automaton once. None if it cannot be entered without knowing what came before.
fn survey(automaton: &dense::DFA<Vec<u32>>) -> Option<Survey> {
    let input = regex_automata::Input::new("").anchored(Anchored::Yes);
    let start = automaton.start_state_forward(&input).ok()?;
    let mut survey = Survey { bytes: [false; 256], states: 1 };
    let mut seen: rustc_hash::FxHashSet<StateID> = std::iter::once(start).collect();
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        for byte in 0..=255u8 {
            let next = automaton.next_state(state, byte);
            if automaton.is_dead_state(next) || automaton.is_quit_state(next) {
                continue;
            }
            survey.bytes[byte as usize] = true;
            if seen.insert(next) {
                survey.states += 1;
                open.push(next);
            }
        }
    }
    Some(survey)
}

impl Table {
    /// The live part of outlines-core's table, states renumbered from 0, the start.
    fn from_outlines(
        tokens: &Arc<Tokens>,
        outlines: &Outlines,
        start: u32,
        end: u32,
    ) -> Result<Option<Self>, Refusal> {
        let transitions = outlines.transitions();
        if transitions.values().map(|row| row.len()).sum::<usize>() > MOST_TRANSITIONS {
            return Ok(None);
        }
        let way = ways_to_end(outlines, end);
        if !way.contains_key(&start) {
            return Err(unmatchable());
        }
        let mut names: FxHashMap<u32, u32> = FxHashMap::from_iter([(start, 0)]);
        let mut order = vec![start];
        let mut states = Vec::new();
        let mut memory = size_of::<Self>();
        while let Some(state) = order.get(states.len()).copied() {
            let (to_end, towards_end) = way[&state];
            let mut next = Vec::new();
            for (token, target) in transitions.get(&state).into_iter().flatten() {
                if *token == end || !way.contains_key(target) {
                    continue;
                }
                let name = *names.entry(*target).or_insert_with(|| {
                    order.push(*target);
                    order.len() as u32 - 1
                });
                next.push((*token, name));
            }
            next.sort_unstable();
            let is_final = outlines.is_final_state(&state);
            let mut row = Row { next: next.into(), mask: None, is_final, to_end, towards_end };
            if row.next.len() >= DENSE {
                let mut mask = vec![0; tokens.vocab_size().div_ceil(32)];
                row.write(tokens, &mut mask);
                memory += 4 * mask.len();
                row.mask = Some(mask.into());
            }
            memory += size_of::<Row>() + 8 * row.next.len();
            states.push(row);
        }
        Ok(Some(Self { tokens: tokens.clone(), states, memory }))
    }
}

/// For every state that an end can be reached from: in how many tokens, and by which first.
fn ways_to_end(outlines: &Outlines, end: u32) -> FxHashMap<u32, (u32, u32)> {
    let mut back: FxHashMap<u32, Vec<(u32, u32)>> = FxHashMap::default();
    for (state, row) in outlines.transitions() {
        for (token, target) in row {
            if *token != end {
                back.entry(*target).or_default().push((*token, *state));
            }
        }
    }
    // The same way every time, whatever the order of a hash map.
    back.values_mut().for_each(|row| row.sort_unstable());
    let mut finals: Vec<u32> = outlines.final_states().iter().copied().collect();
    finals.sort_unstable();
    let mut way: FxHashMap<u32, (u32, u32)> = finals.iter().map(|state| (*state, (0, end))).collect();
    let mut open = VecDeque::from(finals);
    while let Some(state) = open.pop_front() {
        let (distance, _) = way[&state];
        for (token, before) in back.get(&state).into_iter().flatten() {
            way.entry(*before).or_insert_with(|| {
                open.push_back(*before);
                (distance + 1, *token)
            });
        }
    }
    way
}

impl Row {
    fn write(&self, tokens: &Tokens, mask: &mut [u32]) {
        if let Some(row) = &self.mask {
            let common = row.len().min(mask.len());
            mask[..common].copy_from_slice(&row[..common]);
            mask[common..].fill(0);
            return;
        }
        mask.fill(0);
        let ends = tokens.end_tokens().iter().filter(|_| self.is_final);
        for token in self.next.iter().map(|(token, _)| token).chain(ends) {
            mask[*token as usize / 32] |= 1 << (token % 32);
        }
    }

    fn target(&self, token: u32) -> Option<u32> {
        self.next.binary_search_by_key(&token, |(token, _)| *token).ok().map(|at| self.next[at].1)
    }
}

impl Compiled for Index {
    fn start(&self) -> Box<dyn Grammar> {
        Box::new(State { table: self.table.clone(), path: vec![0], ended: false })
    }

    fn memory(&self) -> usize {
        self.table.memory
    }

    fn backend(&self) -> &'static str {
        "index"
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

struct State {
    table: Arc<Table>,
    /// The states so far, the last one now.
    path: Vec<u32>,
    ended: bool,
}

impl State {
    fn row(&self) -> &Row {
        self.row_of(*self.path.last().expect("the start is never taken back"))
    }

    fn row_of(&self, state: u32) -> &Row {
        &self.table.states[state as usize]
    }

    /// The byte that every allowed token begins with, and whether it is alone the whole way on.
    fn forced_byte(&self, state: u32) -> Option<u8> {
        let row = self.row_of(state);
        if row.is_final {
            return None;
        }
        let mut first = row.next.iter().map(|(token, _)| self.table.tokens.text_bytes(*token)[0]);
        let byte = first.next()?;
        first.all(|other| other == byte).then_some(byte)
    }

    /// The text that is forced, no more than `most` bytes of it, and whether that is all.
    fn forced(&self, most: usize) -> (Vec<u8>, bool) {
        let mut text = Vec::new();
        let mut state = *self.path.last().expect("the start is never taken back");
        // A cycle without a way out would have no end, and such states are not in the table.
        while !self.ended
            && let Some(byte) = self.forced_byte(state)
            && let Some(next) = self.after_byte(state, byte)
        {
            if text.len() >= most {
                return (text, false);
            }
            text.push(byte);
            state = next;
        }
        (text, true)
    }

    /// At most `limit` tokens of a text that is forced, up to where a token could go on beyond it.
    fn spell(&self, text: &[u8], limit: usize, out: &mut Vec<u32>) {
        let mut tokens = Vec::new();
        self.table.tokens.tokenize(text, &mut tokens);
        let mut state = *self.path.last().expect("the start is never taken back");
        let mut at = 0;
        for token in tokens.into_iter().take(limit) {
            // Everything that may come here lies in the forced text, or begins in it and ends beyond.
            let left = text.len() - at;
            let row = self.row_of(state);
            let longer = row.next.iter().any(|(token, _)| self.table.tokens.text_bytes(*token).len() > left);
            match row.target(token) {
                Some(next) if !longer => state = next,
                _ => return,
            }
            at += self.table.tokens.text_bytes(token).len();
            out.push(token);
        }
    }

    /// The state after a byte, by the token that is just it.
    fn after_byte(&self, state: u32, byte: u8) -> Option<u32> {
        self.row_of(state).target(self.table.tokens.byte_token(byte)?)
    }
}

impl Grammar for State {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        if self.ended {
            mask.fill(0);
            for token in self.table.tokens.end_tokens() {
                mask[*token as usize / 32] |= 1 << (token % 32);
            }
            return;
        }
        self.row().write(&self.table.tokens, mask);
    }

    fn advance(&mut self, token: u32) -> bool {
        if self.ended {
            return false;
        }
        if let Some(next) = self.row().target(token) {
            self.path.push(next);
            return true;
        }
        self.ended = self.row().is_final && self.table.tokens.end_tokens().binary_search(&token).is_ok();
        self.ended
    }

    fn roll_back(&mut self, mut tokens: usize) {
        if tokens > 0 && self.ended {
            self.ended = false;
            tokens -= 1;
        }
        self.path.truncate((self.path.len().saturating_sub(tokens)).max(1));
    }

    fn is_terminated(&self) -> bool {
        self.ended || (self.row().is_final && self.row().next.is_empty())
    }

    fn forced_text(&mut self) -> Vec<u8> {
        self.forced(usize::MAX).0
    }

    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>) {
        let before = out.len();
        let mut bytes = limit.saturating_mul(PER_TOKEN).saturating_add(BEYOND);
        if limit == 0 {
            return;
        }
        loop {
            let (text, whole) = self.forced(bytes);
            self.spell(&text, limit, out);
            if whole || out.len() - before == limit {
                return;
            }
            out.truncate(before);
            bytes = bytes.saturating_mul(2);
        }
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        let mut tokens = Vec::new();
        if self.ended {
            return Some(tokens);
        }
        let mut state = *self.path.last().expect("the start is never taken back");
        if self.row_of(state).to_end as usize > limit {
            return None;
        }
        while self.row_of(state).to_end > 0 {
            let token = self.row_of(state).towards_end;
            tokens.push(token);
            state = self.row_of(state).target(token).expect("the way to the end is in the table");
        }
        Some(tokens)
    }

    fn fork(&self) -> Box<dyn Grammar> {
        Box::new(Self { table: self.table.clone(), path: self.path.clone(), ended: self.ended })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::backend::tests::allowed;
    use super::super::context::tests::small;
    use super::super::description::Description;
    use super::super::{lark, llguidance::Llguidance, pattern};
    use super::*;

    /// The model: a regex that is read by taking derivatives.
    #[derive(Debug, Clone, PartialEq)]
    enum Regex {
        Nothing,
        Empty,
        Byte(u8),
        Then(Box<Regex>, Box<Regex>),
        Or(Box<Regex>, Box<Regex>),
        Star(Box<Regex>),
    }

    impl Regex {
        fn then(self, other: Self) -> Self {
            match (self, other) {
                (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
                (Self::Empty, other) | (other, Self::Empty) => other,
                (this, other) => Self::Then(Box::new(this), Box::new(other)),
            }
        }

        fn or(self, other: Self) -> Self {
            match (self, other) {
                (Self::Nothing, other) | (other, Self::Nothing) => other,
                (this, other) if this == other => this,
                (this, other) => Self::Or(Box::new(this), Box::new(other)),
            }
        }

        fn is_final(&self) -> bool {
            match self {
                Self::Empty | Self::Star(_) => true,
                Self::Nothing | Self::Byte(_) => false,
                Self::Then(a, b) => a.is_final() && b.is_final(),
                Self::Or(a, b) => a.is_final() || b.is_final(),
            }
        }

        fn after(&self, byte: u8) -> Self {
            match self {
                Self::Nothing | Self::Empty => Self::Nothing,
                Self::Byte(own) => {
                    if *own == byte {
                        Self::Empty
                    } else {
                        Self::Nothing
                    }
                }
                Self::Or(a, b) => a.after(byte).or(b.after(byte)),
                Self::Star(a) => a.after(byte).then(self.clone()),
                Self::Then(a, b) => {
                    let first = a.after(byte).then((**b).clone());
                    if a.is_final() { first.or(b.after(byte)) } else { first }
                }
            }
        }

        fn pattern(&self) -> String {
            match self {
                Self::Nothing => unreachable!("it is not generated"),
                Self::Empty => "(?:)".into(),
                Self::Byte(byte) => regex_syntax::escape(&(*byte as char).to_string()),
                Self::Then(a, b) => format!("{}{}", a.pattern(), b.pattern()),
                Self::Or(a, b) => format!("(?:{}|{})", a.pattern(), b.pattern()),
                Self::Star(a) => format!("(?:{})*?", a.pattern()),
            }
        }
    }

    fn regexes() -> impl Strategy<Value = Regex> {
        let leaf =
            prop_oneof![Just(Regex::Empty), prop::sample::select(b"abc.".to_vec()).prop_map(Regex::Byte)];
        leaf.prop_recursive(5, 24, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Regex::Then(Box::new(a), Box::new(b))),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Regex::Or(Box::new(a), Box::new(b))),
                inner.prop_map(|a| Regex::Star(Box::new(a))),
            ]
        })
    }

    fn tokens() -> Arc<Tokens> {
        static TOKENS: std::sync::OnceLock<Arc<Tokens>> = std::sync::OnceLock::new();
        TOKENS.get_or_init(|| small(&["ab", "ba", "aa", "abc", "bc", "cc", "a.", "aab", "bcbc"])).clone()
    }

    fn by_index(tokens: &Arc<Tokens>, text: &str) -> Index {
        let pattern = pattern::whole(text).unwrap();
        Index::build(tokens, &pattern, &Watch::default())
            .unwrap_or_else(|refusal| panic!("{}", refusal.message))
            .expect("it is small enough")
    }

    fn by_llguidance(tokens: &Arc<Tokens>, text: &str) -> Llguidance {
        let description = Description::Regex { pattern: text.to_owned() };
        let lowered = lark::lower(description, tokens, &Watch::default(), &mut Vec::new()).unwrap();
        Llguidance::compile(tokens, lowered, &[], Vec::new())
            .unwrap_or_else(|refusal| panic!("{}", refusal.message))
    }

    fn expected(tokens: &Tokens, model: &Regex) -> Vec<u32> {
        let mut expected: Vec<u32> = tokens
            .text_tokens()
            .iter()
            .copied()
            .filter(|token| {
                let after = tokens.text_bytes(*token).iter().fold(model.clone(), |at, byte| at.after(*byte));
                after != Regex::Nothing
            })
            .collect();
        if model.is_final() {
            expected.extend_from_slice(tokens.end_tokens());
        }
        expected.sort_unstable();
        expected
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn both_backends_are_the_regex(
            regex in regexes(),
            picks in prop::collection::vec((0..100usize, 0..6usize), 1..14),
        ) {
            let tokens = tokens();
            let pattern = regex.pattern();
            let compiled: [Box<dyn Compiled>; 2] =
                [Box::new(by_index(&tokens, &pattern)), Box::new(by_llguidance(&tokens, &pattern))];
            for compiled in compiled {
                let mut state = compiled.start();
                let mut models = vec![regex.clone()];
                for (pick, back) in &picks {
                    let model = models.last().unwrap().clone();
                    let expected = expected(&tokens, &model);
                    prop_assert_eq!(&allowed(&mut *state, &tokens), &expected, "{} {}", compiled.backend(), &pattern);
                    let only_end = expected.iter().all(|token| tokens.end_tokens().contains(token));
                    prop_assert!(!state.is_terminated() || only_end);

                    // What is forced is the only way on, and tokens of it are what may be drafted.
                    let forced = state.forced_text();
                    let mut at = model.clone();
                    for byte in &forced {
                        prop_assert!(!at.is_final());
                        for other in 0..=255u8 {
                            prop_assert_eq!(at.after(other) != Regex::Nothing, other == *byte);
                        }
                        at = at.after(*byte);
                    }
                    let mut drafted = Vec::new();
                    state.forced_tokens(40, &mut drafted);
                    let text: Vec<u8> = drafted.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()).collect();
                    prop_assert!(forced.starts_with(&text));
                    let mut fork = state.fork();
                    prop_assert!(drafted.iter().all(|token| fork.advance(*token)));

                    // A completion completes.
                    if let Some(closing) = state.closing_tokens(40) {
                        let mut fork = state.fork();
                        prop_assert!(closing.iter().all(|token| fork.advance(*token)));
                        prop_assert!(fork.advance(tokens.end_tokens()[0]));
                    } else {
                        prop_assert!(compiled.backend() != "index" || pattern.len() > 40);
                    }

                    for wrong in (0..tokens.vocab_size() as u32 + 2).filter(|token| !expected.contains(token)).take(30) {
                        prop_assert!(!state.advance(wrong));
                    }
                    let mut texts: Vec<u32> = expected.clone();
                    texts.retain(|token| !tokens.end_tokens().contains(token));
                    if texts.is_empty() {
                        let end = expected[pick % expected.len()];
                        prop_assert!(state.advance(end) && state.is_terminated());
                        prop_assert_eq!(&allowed(&mut *state, &tokens)[..], tokens.end_tokens());
                        let back = (*back).min(models.len() - 1);
                        state.roll_back(1 + back);
                        models.truncate(models.len() - back);
                        continue;
                    }
                    let token = texts[pick % texts.len()];
                    prop_assert!(state.advance(token));
                    models.push(tokens.text_bytes(token).iter().fold(model, |at, byte| at.after(*byte)));
                    if *back < 3 {
                        let back = (*back).min(models.len() - 1);
                        state.roll_back(back);
                        models.truncate(models.len() - back);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_too_large_is_for_the_other() {
        let tokens = tokens();
        let build = |text: &str| Index::build(&tokens, &pattern::whole(text).unwrap(), &Watch::default());
        for pattern in ["(?:a|b)*a(?:a|b){25}", "(?s:.*)", "a{100000}", r"\w{1,300}"] {
            assert!(
                build(pattern).unwrap_or_else(|refusal| panic!("{}", refusal.message)).is_none(),
                "{pattern}"
            );
        }
        // Later beginnings must not make it grow.
        assert!(build("a[ab]{25}").unwrap().is_some());
        assert!(build("[^x]{25}").unwrap().is_some());
        assert!(build("[a&&b]").is_err(), "no text matches");
        let watch = Watch::default();
        watch.cancel();
        assert!(Index::build(&tokens, &pattern::whole("a").unwrap(), &watch).is_err());
    }

    #[test]
    fn a_choice_prefers_nothing() {
        let tokens = tokens();
        let choices = ["a", "ab", "abc", "b.c"].map(str::to_owned);
        let index = Index::build(&tokens, &pattern::choice(&choices), &Watch::default()).unwrap().unwrap();
        assert!(index.memory() > 0);
        for choice in &choices {
            let mut state = index.start();
            let mut ids = Vec::new();
            tokens.tokenize(choice.as_bytes(), &mut ids);
            assert!(ids.iter().all(|id| state.advance(*id)) && state.advance(0), "{choice}");
        }
        let mut state = index.start();
        assert!(state.advance(tokens.byte_token(b'b').unwrap()));
        assert_eq!(state.forced_text(), b".c");
        assert_eq!(state.closing_tokens(1), None);
        assert_eq!(state.closing_tokens(2).map(|tokens| tokens.len()), Some(2));
    }
}
