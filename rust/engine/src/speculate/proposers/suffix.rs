//! Drafts from the longest known suffix: of the request itself, or of its tenant's recent outputs.
//!
//! ```text
//!  request's own automaton ─► its longest repeated suffix ┐
//!  tenant's newer automaton ─► where the text stands      ├─ the longest match (of equals the more certain)
//!  tenant's older automaton ─► where the text stands        ┘   and from there along the favourites
//! ```
//!
//! The walk ends where the probability of all of it falls below `LEAST`. After SuffixDecoding (Oliaro et al.,
//! 2024, arXiv 2411.04975), which takes trees of the request and of all outputs. A token costs O(1) on average
//! in each automaton, a draft token O(1).

use std::sync::Arc;

use super::automaton::{Automaton, Place};
use super::history::{Generation, History};
use super::{Class, KEPT, Proposer, Source, Text, View};

/// Shortest suffix that counts.
const SHORTEST: u32 = 2;

/// A draft ends where it is less likely than this as a whole.
const LEAST: f32 = 0.2;

/// Where a sequence stands in its tenant's automata.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    places: [(u64, Place); 2],
}

impl Standing {
    fn place(&self, generation: &Generation) -> Place {
        self.places.iter().find(|(id, _)| *id == generation.id).map(|(_, place)| *place).unwrap_or_default()
    }

    /// The sequence goes on with `tokens`.
    fn advance(&mut self, history: &History, tenant: u64, tokens: &[u32]) {
        let mut places = [(0, Place::default()); 2];
        for (place, generation) in places.iter_mut().zip(history.of(tenant)) {
            let from = self.place(generation);
            let here = tokens.iter().fold(from, |at, &token| generation.automaton.advance(at, token));
            *place = (generation.id, here);
        }
        self.places = places;
    }
}

/// The texts that a sequence's suffixes are looked up in.
struct Suffixes<'a> {
    /// Of the request; none if it does not hold all of the text yet.
    own: Option<&'a Automaton>,
    history: &'a History,
    tenant: u64,
    standing: Standing,
}

/// A match in an automaton, and what would come next.
struct Match<'a> {
    automaton: &'a Automaton,
    place: Place,
    /// How often the string occurs where it does not matter: at the end of the request itself.
    uncounted: u32,
    certainty: f32,
}

impl<'a> Match<'a> {
    fn new(automaton: &'a Automaton, place: Place, uncounted: u32, ahead: &[u32]) -> Option<Self> {
        let place = ahead.iter().fold(place, |place, &token| automaton.advance(place, token));
        let (_, next, times, of) = automaton.favourite(place, SHORTEST)?;
        let uncounted = if ahead.is_empty() { uncounted } else { 0 };
        // Seen once is less sure than seen always.
        let certainty = times as f32 / (of.saturating_sub(uncounted).max(times) as f32 + 0.5);
        let length = place.length.min(next.length - 1);
        Some(Self { automaton, place: Place { length, ..place }, uncounted, certainty })
    }
}

impl Suffixes<'_> {
    /// The class tells how long the match is (2, 3, 5, 9, 17 or more tokens) and whether it went on in the same
    /// way nearly always.
    fn draft(&self, text: Text<'_>, limit: usize, draft: &mut Vec<u32>) -> Class {
        let own = self.own.and_then(|own| Match::new(own, own.repeated(), 1, text.ahead));
        let others = self.history.of(self.tenant).filter_map(|generation| {
            Match::new(&generation.automaton, self.standing.place(generation), 0, text.ahead)
        });
        let better = |a: &Match<'_>, b: &Match<'_>| {
            (a.place.length.cmp(&b.place.length)).then(a.certainty.total_cmp(&b.certainty))
        };
        let Some(best) = own.into_iter().chain(others).max_by(better) else { return 0 };
        let (mut place, mut uncounted, mut whole) = (best.place, best.uncounted, 1.0);
        for _ in 0..limit {
            let Some((token, next, times, of)) = best.automaton.favourite(place, SHORTEST) else { break };
            whole *= times as f32 / of.saturating_sub(uncounted).max(times) as f32;
            if whole < LEAST {
                break;
            }
            draft.push(token);
            (place, uncounted) = (next, 0);
        }
        let length = match best.place.length {
            ..3 => 0,
            3..5 => 1,
            5..9 => 2,
            9..17 => 3,
            _ => 4,
        };
        length * 2 + u8::from(best.certainty > 0.65)
    }
}

/// Tokens before the end of a text that are looked up in its tenant's history when the sequence is opened.
const LOOKED_UP: usize = 64;

/// The automaton of a sequence, and its places in those of its tenant.
#[derive(Default)]
pub(super) struct SuffixProposer {
    own: Automaton,
    standing: Standing,
}

impl Proposer for SuffixProposer {
    fn source(&self) -> Source {
        Source::Suffix
    }

    fn open(&mut self, sequence: View<'_>, _prediction: Option<&Arc<[u32]>>) {
        let begin = sequence.tokens.len().saturating_sub(LOOKED_UP);
        self.standing.advance(sequence.history, sequence.tenant, &sequence.tokens[begin..]);
    }

    fn append(&mut self, sequence: View<'_>) {
        let last = sequence.tokens.len() - 1;
        self.standing.advance(sequence.history, sequence.tenant, &sequence.tokens[last..]);
    }

    fn index(&mut self, tokens: &[u32], at: usize) {
        self.own.append(tokens[at]);
    }

    fn clear(&mut self) {
        self.own.clear(KEPT);
        self.standing = Standing::default();
    }

    fn propose(&self, sequence: View<'_>, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Class {
        let View { tokens, indexed, tenant, history, .. } = sequence;
        let own = (indexed == tokens.len()).then_some(&self.own);
        let suffixes = Suffixes { own, history, tenant, standing: self.standing };
        suffixes.draft(Text { tokens, ahead: forced }, limit, draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: [u32; 0] = [];

    const TENANT: u64 = 7;

    fn history(outputs: &[&[u32]]) -> History {
        let mut history = History::new(1000);
        for output in outputs {
            history.remember(TENANT, output);
            history.ingest(usize::MAX);
        }
        history
    }

    fn draft(history: &History, tokens: &[u32], ahead: &[u32], with_own: bool) -> (Vec<u32>, Class) {
        let mut own = Automaton::default();
        tokens.iter().for_each(|&token| own.append(token));
        let mut standing = Standing::default();
        standing.advance(history, TENANT, tokens);
        let own = with_own.then_some(&own);
        let mut draft = vec![];
        let suffixes = Suffixes { own, history, tenant: TENANT, standing };
        let class = suffixes.draft(Text { tokens, ahead }, 6, &mut draft);
        (draft, class)
    }

    #[test]
    fn the_request_itself() {
        let none = history(&[]);
        assert_eq!(draft(&none, &[1, 2, 3, 4, 5, 1, 2], &[], true).0, [3, 4, 5, 1, 2, 3]);
        assert_eq!(draft(&none, &[1, 2, 3, 4, 5, 1, 2], &[], false).0, NOTHING);
        assert_eq!(draft(&none, &[1, 2, 3, 4, 5, 1], &[2], true).0, [3, 4, 5, 1], "after what is forced");
        assert_eq!(draft(&none, &[1, 2, 3], &[], true).0, NOTHING);
    }

    #[test]
    fn the_longest_match_wins() {
        let outputs = history(&[&[1, 2, 3, 4, 50, 60, 70], &[3, 4, 8, 9]]);
        assert_eq!(draft(&outputs, &[3, 4, 9, 2, 3, 4], &[], true).0, [50, 60, 70]);
        assert_eq!(draft(&outputs, &[9, 1, 2, 3, 4], &[], true), (vec![50, 60, 70], 3));
        assert_eq!(draft(&outputs, &[5, 6], &[], true).0, NOTHING);
    }

    #[test]
    fn it_ends_where_it_is_unlikely() {
        let outputs: Vec<_> = (10..16).map(|end| vec![1, 2, 3, end]).collect();
        let outputs: Vec<_> = outputs.iter().map(Vec::as_slice).collect();
        assert_eq!(draft(&history(&outputs), &[1, 2], &[], false).0, [3]);
    }

    #[test]
    fn others_outputs_are_not_seen() {
        let mut outputs = History::new(100);
        outputs.remember(TENANT + 1, &[1, 2, 3, 4]);
        outputs.ingest(usize::MAX);
        assert_eq!(draft(&outputs, &[1, 2], &[], true).0, NOTHING);
    }

    proptest! {
        /// With likely ends, the first token is one that most often followed the longest repeated suffix, and the
        /// draft is made of what is known.
        #[test]
        fn like_a_search(tokens in prop::collection::vec(0u32..4, 0..24)) {
            let (got, _) = draft(&history(&[]), &tokens, &[], true);
            let length = (0..tokens.len()).rev()
                .find(|&length| tokens[..tokens.len() - 1].windows(length.max(1)).any(|part| part == &tokens[tokens.len() - length..]))
                .unwrap_or(0);
            if length < 2 {
                prop_assert!(got.is_empty());
                return Ok(());
            }
            let suffix = &tokens[tokens.len() - length..];
            let after = |token| tokens.windows(length + 1)
                .filter(|part| &part[..length] == suffix && part[length] == token).count();
            let most = (0..4).map(after).max().unwrap();
            let total: usize = (0..4).map(after).sum();
            if most as f32 / total as f32 >= LEAST {
                prop_assert_eq!(got.first().map(|&token| after(token)), Some(most));
            }
        }
    }
}
