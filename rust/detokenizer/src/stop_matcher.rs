//! Stop strings in a text that arrives in parts.
//!
//! *The rule.* The match that completes first ends the request; of those that complete with the same character, the
//! longest, which is the leftmost. The text ends where the match begins, or where it ends if the stop string is to be
//! included. Until then exactly the longest suffix of the text that begins a stop string is withheld.
//!
//! An Aho-Corasick automaton is in the state of the longest suffix of the text that is a prefix of some stop string,
//! which is exactly what has to be withheld: its length is the depth of the state in the trie of the stop strings.
//! The crate does not expose depths, so each stop string is walked once from the start: after `i` bytes the automaton is
//! in the node of depth `i`, and every node is visited.
//!
//! ```text
//!  stop strings: "\n\nQ", "</s>"          text ... o n e . \n \n │ P
//!                                         depth       0  1  2  │ 0     released: "\n\nP"
//! ```
//!
//! Building is O(total length of the stop strings), a step is O(1) a byte, one look-up of a depth a push.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use rustc_hash::FxHashMap;

use pyengine_base::error::{Error, Result};

/// The stop strings of a request, compiled. Shared by all requests that bring the same.
#[derive(Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    automaton: NFA,
    start: StateID,
    /// Bytes of the longest suffix that is a prefix of a stop string; states that are absent have 0.
    depths: FxHashMap<StateID, usize>,
}

/// A stop string that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Which of the stop strings.
    pub index: usize,
    /// Its length in bytes.
    pub length: usize,
    /// Bytes of the scanned part up to the end of the match.
    pub end: usize,
}

impl StopStrings {
    /// Compiles `strings`, none of which may be empty.
    pub fn new(strings: &[String]) -> Result<Self> {
        if strings.iter().any(String::is_empty) {
            return Err(Error::InvalidArgument("a stop string is empty".into()));
        }
        let refused =
            |error: &dyn std::fmt::Display| Error::InvalidArgument(format!("stop strings: {error}"));
        // The contiguous NFA's size is linear in the stop strings, whatever a client sends; a DFA's is not.
        let automaton = NFA::builder()
            .match_kind(MatchKind::Standard)
            .prefilter(false)
            .build(strings)
            .map_err(|error| refused(&error))?;
        let start = automaton.start_state(Anchored::No).map_err(|error| refused(&error))?;
        let mut depths = FxHashMap::default();
        for string in strings {
            let mut state = start;
            for (index, byte) in string.bytes().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                depths.insert(state, index + 1);
            }
        }
        Ok(Self { strings: strings.to_vec(), automaton, start, depths })
    }

    /// The stop strings as they were given.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The state before any text.
    pub fn start(&self) -> StateID {
        self.start
    }

    /// Advances `state` over `part` up to the first match.
    pub fn scan(&self, state: &mut StateID, part: &[u8]) -> Option<Found> {
        for (at, &byte) in part.iter().enumerate() {
            *state = self.automaton.next_state(Anchored::No, *state, byte);
            if self.automaton.is_special(*state) && self.automaton.is_match(*state) {
                return Some(self.longest(*state, at + 1));
            }
        }
        None
    }

    /// How many bytes at the end of the text might become a stop string.
    pub fn withheld(&self, state: StateID) -> usize {
        if state == self.start { 0 } else { self.depths.get(&state).copied().unwrap_or(0) }
    }

    fn longest(&self, state: StateID, end: usize) -> Found {
        let matches = (0..self.automaton.match_len(state)).map(|index| {
            let pattern = self.automaton.match_pattern(state, index);
            Found { index: pattern.as_usize(), length: self.automaton.pattern_len(pattern), end }
        });
        // Of equal stop strings the first.
        matches
            .max_by_key(|found| (found.length, std::cmp::Reverse(found.index)))
            .expect("a match state has a match")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strings(strings: &[&str]) -> Vec<String> {
        strings.iter().map(ToString::to_string).collect()
    }

    /// (start, end, index) of the match that the rule takes, by looking everywhere.
    fn search(stops: &[String], text: &str) -> Option<(usize, usize, usize)> {
        let ends = (1..=text.len()).filter(|end| text.is_char_boundary(*end));
        ends.flat_map(|end| {
            let mut matches: Vec<_> = (0..stops.len())
                .filter(|index| text[..end].ends_with(&stops[*index]))
                .map(|index| (end - stops[index].len(), end, index))
                .collect();
            matches.sort_unstable();
            matches.into_iter().next()
        })
        .next()
    }

    /// Longest suffix of `text` that some stop string begins with and goes on from.
    fn might_become(stops: &[String], text: &str) -> usize {
        let begins = |length: &usize| {
            stops.iter().any(|stop| {
                stop.len() > *length && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - length..])
            })
        };
        (0..=text.len()).rev().find(begins).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn equals_a_search_of_the_whole_text(
            stops in proptest::collection::vec("[abé]{1,4}", 1..5),
            parts in proptest::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let compiled = StopStrings::new(&stops).unwrap();
            let (mut state, mut text) = (compiled.start(), String::new());
            for part in &parts {
                let before = text.len();
                text.push_str(part);
                match compiled.scan(&mut state, part.as_bytes()) {
                    Some(found) => {
                        let end = before + found.end;
                        prop_assert_eq!(Some((end - found.length, end, found.index)), search(&stops, &text));
                        return Ok(());
                    }
                    None => {
                        prop_assert_eq!(search(&stops, &text), None);
                        prop_assert_eq!(compiled.withheld(state), might_become(&stops, &text));
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_of_those_that_end_together() {
        let compiled = StopStrings::new(&strings(&["b", "ab", "ab"])).unwrap();
        let mut state = compiled.start();
        assert_eq!(compiled.scan(&mut state, b"xab"), Some(Found { index: 1, length: 2, end: 3 }));
    }

    #[test]
    fn the_one_that_completes_first_wins_over_one_that_began_earlier() {
        let compiled = StopStrings::new(&strings(&["abcd", "bc"])).unwrap();
        let mut state = compiled.start();
        assert_eq!(compiled.scan(&mut state, b"abcd"), Some(Found { index: 1, length: 2, end: 3 }));
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(matches!(StopStrings::new(&strings(&["a", ""])), Err(Error::InvalidArgument(_))));
    }
}
