//! A suffix automaton that counts: the longest known suffix of a text, and what most often followed it.
//!
//! ```text
//!   texts  a b c | a b d            state = all strings that end at the same places
//!                                   link  = the longest suffix that ends at more places
//!   root ─a,b─► {ab, b} ─d─► {abd, bd, d}
//!                  └────c──► {abc, bc, c}       counts: ab 2, abc 1, abd 1; the favourite of a tie is the newest: d
//! ```
//!
//! Built online (Blumer et al., 1985), over several texts. A state keeps its favourite transition in itself, so
//! that a draft is a walk along favourites, and the quotient of two counts is the probability of a token, as in the
//! suffix trees of SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975). At most two states and three transitions
//! a token; 30 to 55 bytes, as the text repeats itself more or less.
//!
//! Appending a token is O(1) on average; counts are kept for the `DEPTH` longest classes of suffixes of each
//! place, which is all of them unless the text repeats itself at length.

use super::chunks::Chunks;
use super::edges::{Edges, NONE};

/// The state of the empty string.
pub(super) const ROOT: u32 = 0;

/// So many states along the links from a place are counted.
const DEPTH: usize = 32;

#[derive(Debug, Clone, Copy)]
struct State {
    /// Length of the longest string.
    length: u32,
    link: u32,
    /// How often it occurs.
    count: u32,
    /// The favourite transition; a state without one has no others either.
    token: u32,
    target: u32,
    /// The first of the other transitions.
    more: u32,
}

/// A place in the automaton: a string that occurs in its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub state: u32,
    /// Of the string; at most the length of the state's longest.
    pub length: u32,
}

/// A suffix automaton over texts.
#[derive(Debug)]
pub(super) struct Automaton {
    states: Chunks<State>,
    edges: Edges,
    last: u32,
    tokens: usize,
}

impl Default for Automaton {
    fn default() -> Self {
        let mut automaton =
            Self { states: Chunks::default(), edges: Edges::default(), last: ROOT, tokens: 0 };
        automaton.push(0, NONE);
        automaton
    }
}

impl Automaton {
    fn push(&mut self, length: u32, link: u32) -> u32 {
        let state = self.states.len() as u32;
        self.states.push(State { length, link, count: 0, token: 0, target: NONE, more: NONE });
        state
    }

    /// Where a token leads from a state.
    fn next(&self, state: u32, token: u32) -> Option<u32> {
        let here = &self.states[state];
        if here.target != NONE && here.token == token {
            return Some(here.target);
        }
        if here.more == NONE {
            return None;
        }
        self.edges.find(state, token).map(|edge| self.edges[edge].target)
    }

    fn add_transition(&mut self, state: u32, token: u32, target: u32) {
        let here = self.states[state];
        if here.target == NONE {
            (self.states[state].token, self.states[state].target) = (token, target);
        } else {
            self.states[state].more = self.edges.insert(state, token, target, here.more);
        }
    }

    /// A new text begins.
    pub fn begin(&mut self) {
        self.last = ROOT;
    }

    /// The text goes on with a token.
    pub fn append(&mut self, token: u32) {
        let before = self.last;
        let length = self.states[before].length + 1;
        self.last = match self.next(before, token) {
            Some(known) if self.states[known].length == length => known,
            Some(known) => self.split(before, token, known),
            None => {
                let new = self.push(length, ROOT);
                let mut at = before;
                while at != NONE {
                    if let Some(known) = self.next(at, token) {
                        let fits = self.states[known].length == self.states[at].length + 1;
                        let link = if fits { known } else { self.split(at, token, known) };
                        self.states[new].link = link;
                        break;
                    }
                    self.add_transition(at, token, new);
                    at = self.states[at].link;
                }
                new
            }
        };
        self.tokens += 1;
        self.count(before, token);
    }

    /// The strings of `known` up to one token longer than those of `from` now end at more places than the others:
    /// they get a state of their own.
    fn split(&mut self, from: u32, token: u32, known: u32) -> u32 {
        let old = self.states[known];
        let new = self.push(self.states[from].length + 1, old.link);
        (self.states[new].count, self.states[new].token) = (old.count, old.token);
        self.states[new].target = old.target;
        let mut edge = old.more;
        while edge != NONE {
            let copied = self.edges[edge];
            let sibling = self.states[new].more;
            self.states[new].more = self.edges.insert(new, copied.token, copied.target, sibling);
            edge = copied.sibling;
        }
        self.states[known].link = new;
        let mut at = from;
        while at != NONE {
            let here = self.states[at];
            if here.target == known && here.token == token {
                self.states[at].target = new;
            } else {
                match self.edges.find(at, token) {
                    Some(edge) if self.edges[edge].target == known => self.edges.redirect(edge, new),
                    _ => break,
                }
            }
            at = here.link;
        }
        new
    }

    /// Counts the suffixes that now end with `token`, and lets it become the favourite of those before it.
    fn count(&mut self, before: u32, token: u32) {
        let mut at = self.last;
        for _ in 0..DEPTH {
            if at == ROOT {
                break;
            }
            self.states[at].count += 1;
            at = self.states[at].link;
        }
        let (mut from, mut target) = (before, self.last);
        for _ in 0..DEPTH {
            if from == NONE {
                break;
            }
            let here = self.states[from];
            // The strings of `from` with the token behind them are in the first class that is short enough.
            while self.states[self.states[target].link].length > here.length {
                target = self.states[target].link;
            }
            if here.token != token && self.states[target].count >= self.states[here.target].count {
                if let Some(edge) = self.edges.find(from, token) {
                    self.edges.rename(edge, here.token, here.target);
                }
                (self.states[from].token, self.states[from].target) = (token, target);
            }
            from = here.link;
        }
    }

    /// The place of the string in the state to which it belongs: states are split while sequences stand there.
    fn settle(&self, mut place: Place) -> Place {
        while place.state != ROOT && place.length <= self.states[self.states[place.state].link].length {
            place.state = self.states[place.state].link;
        }
        place
    }

    /// The longest suffix of the place's string with `token` behind it that is known.
    pub fn advance(&self, place: Place, token: u32) -> Place {
        let mut at = self.settle(place);
        loop {
            if let Some(state) = self.next(at.state, token) {
                return Place { state, length: at.length + 1 };
            }
            if at.state == ROOT {
                return Place::default();
            }
            let state = self.states[at.state].link;
            at = Place { state, length: self.states[state].length };
        }
    }

    /// The longest suffix of the current text that occurs elsewhere too.
    pub fn repeated(&self) -> Place {
        let link = self.states[self.last].link;
        if link == NONE { Place::default() } else { Place { state: link, length: self.states[link].length } }
    }

    /// The most frequent continuation of the string of a place: the token, the place after it, and how often; with how
    /// often the string occurs. Shorter suffixes, down to `shortest`, are asked if nothing follows.
    pub fn favourite(&self, place: Place, shortest: u32) -> Option<(u32, Place, u32, u32)> {
        let mut at = self.settle(place);
        while at.length >= shortest.max(1) {
            let here = &self.states[at.state];
            if here.target != NONE {
                let next = Place { state: here.target, length: at.length + 1 };
                return Some((here.token, next, self.states[here.target].count, here.count));
            }
            at = Place { state: here.link, length: self.states[here.link].length };
        }
        None
    }

    /// Tokens of all texts.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn bytes(&self) -> usize {
        self.states.bytes() + self.edges.bytes()
    }

    /// Forgets all texts; memory is kept for up to `kept` states.
    pub fn clear(&mut self, kept: usize) {
        self.states.clear(kept);
        self.edges.clear(kept);
        (self.last, self.tokens) = (ROOT, 0);
        self.push(0, NONE);
    }

    /// Frees a little; whether there was something left. Nothing else may be asked of it afterwards.
    pub fn drop_chunk(&mut self) -> bool {
        self.states.drop_chunk() || self.edges.drop_chunk()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(texts: &[Vec<u32>]) -> Automaton {
        let mut automaton = Automaton::default();
        for text in texts {
            automaton.begin();
            text.iter().for_each(|&token| automaton.append(token));
        }
        automaton
    }

    fn occurrences(texts: &[Vec<u32>], string: &[u32]) -> u32 {
        let of = |text: &Vec<u32>| text.windows(string.len()).filter(|part| *part == string).count();
        texts.iter().map(of).sum::<usize>() as u32
    }

    fn follow(automaton: &Automaton, text: &[u32]) -> Place {
        text.iter().fold(Place::default(), |place, &token| automaton.advance(place, token))
    }

    fn texts(most: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
        prop::collection::vec(prop::collection::vec(0u32..4, 1..most), 0..5)
    }

    #[test]
    fn the_newest_of_equals_and_then_the_most_frequent() {
        let mut automaton = build(&[vec![1, 2, 3], vec![1, 2, 4]]);
        let favourite = |automaton: &Automaton| automaton.favourite(follow(automaton, &[9, 1, 2]), 1);
        let (token, _, times, of) = favourite(&automaton).unwrap();
        assert_eq!((token, times, of), (4, 1, 2));
        for text in [[1, 2, 3], [1, 2, 5]] {
            automaton.begin();
            text.iter().for_each(|&token| automaton.append(token));
        }
        let (token, place, times, of) = favourite(&automaton).unwrap();
        assert_eq!((token, times, of, place.length), (3, 2, 4, 3));
    }

    #[test]
    fn what_is_cleared_is_forgotten_and_freed() {
        let mut automaton = build(&[(0..5000).map(|token| token % 97).collect()]);
        let bytes = automaton.bytes();
        automaton.clear(0);
        assert!(automaton.bytes() < bytes / 2 && automaton.tokens() == 0);
        assert_eq!(follow(&automaton, &[1, 2]), Place::default());
        automaton.append(1);
        assert_eq!(follow(&automaton, &[1, 2, 1]).length, 1);
        while automaton.drop_chunk() {}
        assert!(automaton.bytes() < 1000);
    }

    proptest! {
        /// After any text the place is the longest suffix of it that occurs in the texts.
        #[test]
        fn the_longest_known_suffix(texts in texts(60), asked in prop::collection::vec(0u32..4, 0..40)) {
            let automaton = build(&texts);
            let place = follow(&automaton, &asked);
            let longest = (0..=asked.len()).rev().find(|&length| {
                length == 0 || occurrences(&texts, &asked[asked.len() - length..]) > 0
            });
            prop_assert_eq!(place.length as usize, longest.unwrap());
        }

        /// The favourite is a token that follows most often, and both counts are right.
        #[test]
        fn the_favourite(texts in texts(24), asked in prop::collection::vec(0u32..4, 1..10)) {
            let automaton = build(&texts);
            let place = follow(&automaton, &asked);
            let known = &asked[asked.len() - place.length as usize..];
            let after = |token| occurrences(&texts, &[known, &[token]].concat());
            let most = (0..4).map(after).max().unwrap();
            match automaton.favourite(place, place.length.max(1)) {
                Some((token, next, times, of)) => {
                    prop_assert_eq!((times, next.length), (most, place.length + 1));
                    prop_assert_eq!((after(token), occurrences(&texts, known)), (most, of));
                }
                None => prop_assert!(most == 0 || known.is_empty()),
            }
        }

        /// A place that follows a text while others are added is still that of a known suffix.
        #[test]
        fn standing_while_it_grows(texts in texts(30), asked in prop::collection::vec(0u32..4, 1..30)) {
            let mut automaton = Automaton::default();
            let mut place = Place::default();
            let mut added = vec![];
            for (at, &token) in asked.iter().enumerate() {
                place = automaton.advance(place, token);
                let known = &asked[at + 1 - place.length as usize..=at];
                prop_assert!(known.is_empty() || occurrences(&added, known) > 0);
                if let Some(text) = texts.get(at) {
                    automaton.begin();
                    text.iter().for_each(|&token| automaton.append(token));
                    added.push(text.clone());
                }
                if let Some((token, ..)) = automaton.favourite(place, place.length) {
                    let known = &asked[at + 1 - place.length as usize..=at];
                    prop_assert!(occurrences(&added, &[known, &[token]].concat()) > 0);
                }
            }
        }

        /// The text's own longest repeated suffix.
        #[test]
        fn repeated(text in prop::collection::vec(0u32..3, 1..80)) {
            let automaton = build(std::slice::from_ref(&text));
            let longest = (0..text.len()).rev().find(|&length| {
                length == 0 || occurrences(std::slice::from_ref(&text), &text[text.len() - length..]) > 1
            });
            prop_assert_eq!(automaton.repeated().length as usize, longest.unwrap());
            prop_assert!(automaton.states.len() <= 2 * text.len() + 1);
        }
    }
}
