//! The table of a pattern, made of outlines-core's.
//!
//! ```text
//!  pattern ─► automaton ─► bytes that occur ─► tokens of them ─► outlines-core ─► live states, renumbered from 0
//! ```
//!
//! outlines-core walks every token from every state, and reads patterns by preference (`a|ab` never takes the `b`).
//! So it is given only tokens whose bytes all occur in the automaton, as many as a budget allows, and the pattern
//! between a sentinel (a byte that the pattern lacks) and an anchor at its end, which leaves no preference and keeps
//! the search for later beginnings, which its automaton has too, from growing. States that no final state can be
//! reached from are taken out of its table.
//!
//! O(states × tokens), within a budget.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use outlines_core::index::Index as Outlines;
use outlines_core::vocabulary::Vocabulary;
use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_syntax::hir::Hir;
use rustc_hash::FxHashMap;

use super::{Index, Row, Table};
use crate::cancellation::CancelToken;
use crate::context::Tokens;
use pyengine_grammar::Refusal;
use pyengine_grammar::masks::Mask;
use pyengine_grammar::refusal;

/// Largest automaton, in bytes.
const MAX_AUTOMATON_BYTES: usize = 1 << 20;
/// How many steps outlines-core may take: states times tokens. That is some milliseconds; the parser takes less for more.
const MAX_WALKS: usize = 30_000;
/// Largest table, in transitions.
const MAX_TRANSITIONS: usize = 2_000_000;
/// A row with at least this many tokens is kept as a mask.
const DENSE: usize = 256;

impl Index {
    /// Builds the table; None if it would be too large.
    ///
    /// # Errors
    /// No text of the tokenizer matches, or the compilation was cancelled.
    pub(crate) fn build(
        tokens: &Arc<Tokens>,
        pattern: &Hir,
        cancel: &CancelToken,
    ) -> Result<Option<Self>, Refusal> {
        let Some(automaton) = automaton(pattern) else { return Ok(None) };
        cancel.check()?;
        let Some(survey) = survey(&automaton) else { return Ok(None) };
        let Some(mark) = (0..128u8).find(|byte| !survey.bytes[*byte as usize]) else { return Ok(None) };
        let candidates: Vec<u32> = tokens
            .text_tokens()
            .iter()
            .copied()
            .filter(|token| tokens.text_bytes(*token).iter().all(|byte| survey.bytes[*byte as usize]))
            .collect();
        if survey.states.saturating_mul(candidates.len()) > MAX_WALKS {
            return Ok(None);
        }
        cancel.check()?;
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
        cancel.check()?;
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
        .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
        .determinize_size_limit(Some(2 * MAX_AUTOMATON_BYTES));
    let thompson = regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
    dense::Builder::new().configure(config).thompson(thompson).build(&source).ok()
}

struct Survey {
    /// Bytes on transitions to live states.
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
        if transitions.values().map(|row| row.len()).sum::<usize>() > MAX_TRANSITIONS {
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
            let mut row = Row { next: next.into(), mask: OnceLock::new(), is_final, to_end, towards_end };
            if row.next.len() >= DENSE {
                let mut words = vec![0; tokens.vocab_size().div_ceil(32)];
                row.listed(tokens).write(&mut words);
                memory += 4 * words.len();
                row.mask = OnceLock::from(Arc::new(Mask::new(&words)));
            }
            memory += size_of::<Row>() + 8 * row.next.len();
            states.push(row);
        }
        Ok(Some(Self { tokens: tokens.clone(), states, memory }))
    }
}

/// For every state from which an end can be reached: the number of tokens to it, and the first of them.
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
