//! The client's predicted output: follows what is generated along it and proposes what comes next in it.
//!
//! ```text
//!  predicted:  a b c d e f g h i j k            after "b" comes "X": perhaps it replaced "c", guess "d"
//!  generated:  a b X Y g h                      after "g h" (found again beyond "b"): run = 2, draft "i j k"
//! ```
//!
//! While both agree a token costs O(1); finding the place again is one binary search in the sorted list of the
//! prediction's pairs of tokens and at most `TRIED` comparisons. 16 bytes a token of the prediction.

use std::sync::Arc;

use super::{Class, Proposer, Source, Text, View};

/// Places with the right two tokens that are compared to find the best one.
const TRIED: usize = 16;

/// Most tokens compared at each of them.
const COMPARED: usize = 16;

/// Where the generated text is in the prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The place of the token expected next; `None`: the text has left the prediction.
    next: Option<usize>,
    /// How many tokens agreed since the place was found.
    run: usize,
    /// The end of the last part that agreed: a new place is looked for from here on first.
    anchor: usize,
    /// Nothing has been generated yet.
    fresh: bool,
}

/// A predicted output and how far the generated text has followed it.
struct Prediction {
    tokens: Arc<[u32]>,
    /// Every pair of tokens with the position after it, sorted.
    pairs: Box<[(u64, u32)]>,
    place: Place,
}

fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) << 32 | u64::from(second)
}

impl Prediction {
    /// O(n log n) in the tokens of the prediction.
    fn new(tokens: Arc<[u32]>) -> Self {
        let mut pairs: Box<[_]> =
            tokens.windows(2).zip(2..).map(|(two, after)| (pair(two[0], two[1]), after)).collect();
        pairs.sort_unstable();
        Self { tokens, pairs, place: Place { next: Some(0), run: 0, anchor: 0, fresh: true } }
    }

    /// The last of `generated` is new.
    fn append(&mut self, generated: &[u32]) {
        self.place = self.follow(self.place, Text { tokens: generated, ahead: &[] });
    }

    /// Where the place moves when the last token of `text` comes.
    fn follow(&self, place: Place, text: Text<'_>) -> Place {
        let token = text.get(text.len() - 1);
        if let Some(next) = place.next
            && self.tokens.get(next) == Some(&token)
        {
            return Place { next: Some(next + 1), run: place.run + 1, anchor: next + 1, fresh: false };
        }
        if let Some((next, run)) = self.find(text, place.anchor) {
            return Place { next: Some(next), run, anchor: next, fresh: false };
        }
        // One wrong token is most often one that replaced another; after two the place is lost.
        let guess = place.next.filter(|_| place.run > 0 || place.fresh).map(|next| next + 1);
        Place { next: guess, run: 0, anchor: place.anchor, fresh: false }
    }

    /// The place after the tokens that the text ends with, and how many agree: the longest of the nearest ones
    /// from `anchor` on, else from the beginning.
    fn find(&self, text: Text<'_>, anchor: usize) -> Option<(usize, usize)> {
        let last = text.len().checked_sub(2)?;
        let wanted = pair(text.get(last), text.get(last + 1));
        let best_from = |position: u32| {
            let from = self.pairs.partition_point(|&entry| entry < (wanted, position));
            let same = self.pairs[from..].iter().take(TRIED).take_while(|entry| entry.0 == wanted);
            same.map(|entry| {
                let end = entry.1 as usize;
                let agreeing = (0..COMPARED.min(end).min(text.len()))
                    .take_while(|&back| self.tokens[end - 1 - back] == text.get(text.len() - 1 - back))
                    .count();
                (agreeing, std::cmp::Reverse(end))
            })
            .max()
        };
        let anchor = u32::try_from(anchor + 1).unwrap_or(u32::MAX);
        best_from(anchor).or_else(|| best_from(0)).map(|(agreeing, end)| (end.0, agreeing))
    }

    /// The class tells how long both have agreed: a guess after a wrong token, the beginning, 1, 4, 16 or more.
    fn draft(&self, text: Text<'_>, limit: usize, draft: &mut Vec<u32>) -> Class {
        let place = (1..=text.ahead.len()).fold(self.place, |place, taken| {
            self.follow(place, Text { tokens: text.tokens, ahead: &text.ahead[..taken] })
        });
        let Some(rest) = place.next.and_then(|next| self.tokens.get(next..)) else { return 0 };
        draft.extend_from_slice(&rest[..limit.min(rest.len())]);
        match place.run {
            0 if place.fresh => 1,
            0 => 0,
            1..4 => 2,
            4..16 => 3,
            _ => 4,
        }
    }
}

/// Follows the prediction of a sequence, if it has one.
#[derive(Default)]
pub(super) struct PredictionProposer(Option<Prediction>);

impl Proposer for PredictionProposer {
    fn source(&self) -> Source {
        Source::Prediction
    }

    fn open(&mut self, sequence: View<'_>, prediction: Option<&Arc<[u32]>>) {
        self.0 = prediction.map(|tokens| Prediction::new(Arc::clone(tokens)));
        if let Some(prediction) = &mut self.0 {
            let output = sequence.output();
            (1..=output.len()).for_each(|end| prediction.append(&output[..end]));
        }
    }

    fn append(&mut self, sequence: View<'_>) {
        if let Some(prediction) = &mut self.0 {
            prediction.append(sequence.output());
        }
    }

    fn clear(&mut self) {
        self.0 = None;
    }

    fn propose(&self, sequence: View<'_>, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Class {
        let text = Text { tokens: sequence.output(), ahead: forced };
        self.0.as_ref().map_or(0, |prediction| prediction.draft(text, limit, draft))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: [u32; 0] = [];

    fn draft(predicted: &[u32], generated: &[u32], ahead: &[u32]) -> (Vec<u32>, Class) {
        let mut prediction = Prediction::new(predicted.into());
        (1..=generated.len()).for_each(|end| prediction.append(&generated[..end]));
        let mut draft = vec![];
        let class = prediction.draft(Text { tokens: generated, ahead }, 3, &mut draft);
        (draft, class)
    }

    const PREDICTED: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

    #[test]
    fn it_is_followed_from_the_beginning() {
        assert_eq!(draft(&PREDICTED, &[], &[]), (vec![1, 2, 3], 1));
        assert_eq!(draft(&PREDICTED, &[1], &[]), (vec![2, 3, 4], 2));
        assert_eq!(draft(&PREDICTED, &[1, 2, 3, 4], &[]), (vec![5, 6, 7], 3));
        assert_eq!(draft(&PREDICTED, &PREDICTED, &[]).0, NOTHING);
        assert_eq!(draft(&PREDICTED, &[1], &[2, 3]), (vec![4, 5, 6], 2), "after what is forced");
        assert_eq!(draft(&[], &[1], &[]).0, NOTHING);
    }

    #[test]
    fn a_replaced_token_is_passed() {
        assert_eq!(draft(&PREDICTED, &[1, 2, 33], &[]), (vec![4, 5, 6], 0));
        assert_eq!(draft(&PREDICTED, &[1, 2, 33, 4], &[]), (vec![5, 6, 7], 2));
        assert_eq!(draft(&PREDICTED, &[0], &[]), (vec![2, 3, 4], 0));
    }

    #[test]
    fn the_place_is_lost_and_found() {
        assert_eq!(draft(&PREDICTED, &[1, 2, 33, 44], &[]).0, NOTHING);
        assert_eq!(draft(&PREDICTED, &[1, 2, 33, 44, 6], &[]).0, NOTHING, "one token is not enough");
        assert_eq!(draft(&PREDICTED, &[1, 2, 33, 44, 6, 7], &[]), (vec![8, 9], 2));
        assert_eq!(draft(&PREDICTED, &[5, 6, 7, 0, 0, 2, 3], &[]).0, [4, 5, 6], "before, if not after");
    }

    #[test]
    fn the_nearest_place_after_the_last_one() {
        let predicted = [1, 2, 7, 3, 1, 2, 8, 3, 1, 2, 9];
        assert_eq!(draft(&predicted, &[1, 2, 7, 3, 5, 5, 1, 2], &[]).0, [8, 3, 1]);
    }

    proptest! {
        /// A draft is a part of the prediction, and what agrees from the beginning is always followed.
        #[test]
        fn a_part_of_it(predicted in prop::collection::vec(0u32..5, 0..40),
                        generated in prop::collection::vec(0u32..5, 0..40),
                        agreed in 0usize..40) {
            let (got, _) = draft(&predicted, &generated, &[]);
            prop_assert!(got.is_empty() || predicted.windows(got.len()).any(|part| part == got));
            let agreed = agreed.min(predicted.len());
            let (got, _) = draft(&predicted, &predicted[..agreed], &[]);
            prop_assert_eq!(&got[..], &predicted[agreed..(agreed + 3).min(predicted.len())]);
        }

        /// After tokens that occur once in the prediction its continuation is found, whatever came before.
        #[test]
        fn found_again(before in prop::collection::vec(100u32..105, 0..20), at in 2usize..30) {
            let predicted: Vec<u32> = (0..30).collect();
            let generated: Vec<u32> = before.into_iter().chain(predicted[at - 2..at].iter().copied()).collect();
            prop_assert_eq!(&draft(&predicted, &generated, &[]).0[..], &predicted[at..(at + 3).min(30)]);
        }
    }
}
