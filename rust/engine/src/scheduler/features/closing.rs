//! Closes an answer under a grammar before its tokens run out.
//!
//! ```text
//!  token ──► a completion that fits is known: go on          {"a": "xy  ◄ "}
//!            it only just fits:               begin it
//!            none fits any more:              take the token back, and begin the one from before it
//! ```
//!
//! So a completion is known from the first that was found on, unless a few tokens open more than [`ROOM`] others can
//! close. The answer loses what it could still have said, but it parses. Within [`HORIZON`] of the limit O(search) a
//! token, more rarely where there is much room; nothing before.

use crate::grammar::Grammar;

/// Completions are searched for when so many tokens are left.
const HORIZON: u32 = 256;
/// Spare tokens: taking one back costs a step.
const MARGIN: usize = 4;

/// With more spare tokens than this the next search may be later than at the next token.
const ROOM: usize = 128;

/// The end of one answer.
#[derive(Debug, Default)]
pub struct Closing {
    /// A completion from here and an end token, last first.
    known: Option<Vec<u32>>,
    begun: bool,
    /// The next search is due when so many tokens may still come.
    due: Option<u32>,
}

impl Closing {
    /// The token that must come next, once the end has begun.
    pub fn next(&self) -> Option<u32> {
        self.known.as_ref().filter(|_| self.begun)?.last().copied()
    }

    /// Searches for a completion where `left` more tokens may come; `end` is a token that ends an answer. False if the
    /// answer has gone too far, and its last token is to be taken back.
    pub fn look(&mut self, grammar: &mut dyn Grammar, left: u32, end: Option<u32>) -> bool {
        if left > HORIZON || self.due.is_some_and(|due| left > due) {
            self.known = None;
            return true;
        }
        let room = (left as usize).saturating_sub(usize::from(end.is_some()));
        match grammar.closing_tokens(room) {
            Some(tokens) => {
                let spare = room - tokens.len();
                self.begun = spare <= MARGIN;
                // Where there is so much room, no few tokens open more than fits into it.
                let ahead = spare.saturating_sub(tokens.len() + ROOM) / 8;
                self.due = Some(left.saturating_sub(1 + ahead as u32));
                self.known = Some(end.into_iter().chain(tokens.into_iter().rev()).collect());
                true
            }
            None if self.known.is_some() => {
                self.begun = true;
                false
            }
            None => {
                self.due = Some(left.saturating_sub(1 + left / 8));
                true
            }
        }
    }

    /// `grammar` has taken `token`, and `left` more may come. False if `grammar` has given the token back, as the answer
    /// could not be ended after it.
    pub fn advance(&mut self, grammar: &mut dyn Grammar, token: u32, left: u32, end: Option<u32>) -> bool {
        if self.begun {
            let taken = self.known.as_mut().and_then(Vec::pop);
            debug_assert_eq!(taken, Some(token), "nothing else could come");
            return true;
        }
        let fits = self.look(grammar, left, end);
        if !fits {
            grammar.roll_back(1);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer is any number of rounds; a token `n` opens a round that `n` tokens 0 end, 1 ends the answer.
    struct Rounds(Vec<u32>);

    impl Rounds {
        fn open(&self) -> usize {
            let last = self.0.iter().rposition(|token| *token > 1);
            last.map_or(0, |last| self.0[last] as usize - (self.0.len() - last - 1))
        }
    }

    impl Grammar for Rounds {
        fn mask(&mut self) -> std::sync::Arc<crate::grammar::masks::Mask> {
            unreachable!("nothing is sampled here")
        }

        fn known_mask(&mut self) -> Option<std::sync::Arc<crate::grammar::masks::Mask>> {
            None
        }

        fn advance(&mut self, token: u32) -> bool {
            let allowed = if self.open() > 0 { token == 0 } else { token > 0 };
            if allowed {
                self.0.push(token);
            }
            allowed
        }

        fn roll_back(&mut self, tokens: usize) {
            self.0.truncate(self.0.len() - tokens);
        }

        fn is_terminated(&self) -> bool {
            self.0.last() == Some(&1)
        }

        fn forced_tokens(&mut self, _: usize, _: &mut Vec<u32>) {}

        fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
            (self.open() <= limit).then(|| vec![0; self.open()])
        }
    }

    /// Writes rounds of `size` until the end, within `limit` tokens; returns the tokens, and how many were taken back.
    fn write(size: u32, limit: u32) -> (Vec<u32>, usize) {
        let (mut grammar, mut closing, mut back) = (Rounds(Vec::new()), Closing::default(), 0);
        assert!(closing.look(&mut grammar, limit, Some(1)));
        while !grammar.is_terminated() && grammar.0.len() < limit as usize {
            let token = closing.next().unwrap_or(if grammar.open() > 0 { 0 } else { size });
            assert!(grammar.advance(token));
            let left = limit - grammar.0.len() as u32;
            back +=
                usize::from(!grammar.is_terminated() && !closing.advance(&mut grammar, token, left, Some(1)));
        }
        (grammar.0, back)
    }

    #[test]
    fn an_answer_ends_within_its_limit_however_far_a_token_leads() {
        for size in [2, 3, 7, 30, 63, 100] {
            for limit in 1..300 {
                let (tokens, back) = write(size, limit);
                assert_eq!(tokens.last(), Some(&1), "rounds of {size} within {limit}: {tokens:?}");
                assert!(back <= 1);
            }
        }
    }

    #[test]
    fn what_has_room_is_let_alone() {
        let mut closing = Closing::default();
        assert!(closing.look(&mut Rounds(vec![200]), 257, Some(1)));
        assert_eq!(closing.known, None);
        assert!(closing.look(&mut Rounds(vec![200]), 250, Some(1)));
        assert_eq!((closing.next(), closing.due), (None, Some(249)));
        assert!(closing.look(&mut Rounds(vec![5]), 249, Some(1)));
        assert_eq!((closing.next(), closing.due), (None, Some(235)));
        assert!(closing.look(&mut Rounds(vec![5]), 10, Some(1)));
        assert_eq!(closing.next(), Some(0));
    }

    #[test]
    fn what_cannot_be_ended_goes_on() {
        let mut closing = Closing::default();
        assert!(closing.look(&mut Rounds(vec![99]), 50, Some(1)));
        assert_eq!((closing.next(), closing.due), (None, Some(43)));
    }
}
