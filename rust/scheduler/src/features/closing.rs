//! Closes an answer under a grammar before its tokens run out.
//!
//! ```text
//!  token ──► its shortest completion fits, with room to spare: go on          {"a": "xy  ◄ "}
//!            it only just fits:                                begin it
//!            it does not fit:                                  take the token back, and begin the one from before it
//! ```
//!
//! An answer that can be ended within its tokens at the beginning can be so after every token, however far one leads. It
//! loses what it could still have said, but it parses. Far from the limit O(1) a token, near it O(lexemes of the
//! completion).

use pyengine_grammar::Grammar;

/// Spare tokens: taking one back costs a step.
const MARGIN: usize = 4;

/// The end of one answer.
#[derive(Debug, Default)]
pub struct Closing {
    /// What is left of the end that has begun, last token first.
    begun: Option<Vec<u32>>,
    /// The answer could be ended after its last token.
    fits: bool,
}

impl Closing {
    /// The token that must come next, once the end has begun.
    pub fn next(&self) -> Option<u32> {
        self.begun.as_ref()?.last().copied()
    }

    /// Why an answer with `left` tokens cannot be ended within them, after [`look`](Self::look).
    pub fn complaint(&self, grammar: &mut dyn Grammar, left: u32, end: Option<u32>) -> Option<String> {
        (!self.fits).then(|| match grammar.closing_tokens(usize::MAX) {
            Some(tokens) => {
                let least = tokens.len() + usize::from(end.is_some());
                format!(
                    "the shortest answer that its grammar allows has {least} tokens, but only {left} may come"
                )
            }
            None => {
                "the shortest answer that its grammar allows is too long, or too much work, to be found, \
                so that it cannot be closed within max_tokens"
                    .to_owned()
            }
        })
    }

    /// Sees whether the answer can be ended where `left` more tokens may come; `end` is a token that ends an answer. False
    /// if it could before its last token, and cannot now.
    pub fn look(&mut self, grammar: &mut dyn Grammar, left: u32, end: Option<u32>) -> bool {
        let room = (left as usize).saturating_sub(usize::from(end.is_some()));
        if room > MARGIN && grammar.closes_within(room - MARGIN) {
            self.fits = true;
            return true;
        }
        self.begin(grammar, room, end) || !self.fits
    }

    /// Begins the end; false if that takes more than `room` tokens.
    fn begin(&mut self, grammar: &mut dyn Grammar, room: usize, end: Option<u32>) -> bool {
        let Some(tokens) = grammar.closing_tokens(room) else { return false };
        self.begun = Some(end.into_iter().chain(tokens.into_iter().rev()).collect());
        self.fits = true;
        true
    }

    /// `grammar` has taken `token`, and `left` more may come. False if `grammar` has given the token back, as the answer
    /// could not be ended after it.
    pub fn advance(&mut self, grammar: &mut dyn Grammar, token: u32, left: u32, end: Option<u32>) -> bool {
        if let Some(left) = &mut self.begun {
            let taken = left.pop();
            debug_assert_eq!(taken, Some(token), "nothing else could come");
            return true;
        }
        if self.look(grammar, left, end) {
            return true;
        }
        grammar.roll_back(1);
        let room = (left as usize + 1).saturating_sub(usize::from(end.is_some()));
        if self.begin(grammar, room, end) {
            return false;
        }
        // Lexemes in each other's way have hidden that there was none.
        self.fits = false;
        grammar.advance(token)
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
        fn mask(&mut self) -> std::sync::Arc<pyengine_grammar::masks::Mask> {
            unreachable!("nothing is sampled here")
        }

        fn known_mask(&mut self) -> Option<std::sync::Arc<pyengine_grammar::masks::Mask>> {
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

        fn closes_within(&mut self, limit: usize) -> bool {
            self.open() <= limit
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
        for size in [2, 3, 7, 30, 63, 100, 400] {
            for limit in 1..600 {
                let (tokens, back) = write(size, limit);
                assert_eq!(tokens.last(), Some(&1), "rounds of {size} within {limit}: {tokens:?}");
                assert!(back <= 1);
            }
        }
    }

    #[test]
    fn what_has_room_is_let_alone() {
        let mut closing = Closing::default();
        assert!(closing.look(&mut Rounds(vec![200]), 900, Some(1)));
        assert_eq!((closing.next(), closing.fits), (None, true));
        assert!(closing.look(&mut Rounds(vec![200]), 204, Some(1)));
        assert_eq!((closing.next(), closing.fits), (Some(0), true));
    }

    #[test]
    fn what_cannot_be_ended_goes_on() {
        let mut closing = Closing::default();
        assert!(closing.look(&mut Rounds(vec![99]), 50, Some(1)));
        let complaint = closing.complaint(&mut Rounds(vec![99]), 50, Some(1)).unwrap();
        assert!(complaint.contains("has 100 tokens, but only 50 may come") && closing.next().is_none());
        assert!(closing.look(&mut Rounds(vec![5]), 50, Some(1)));
        assert_eq!(closing.complaint(&mut Rounds(vec![5]), 50, Some(1)), None);
    }
}
