//! A pattern that is searched for, as the language of the whole strings in which it is found.
//!
//! What is read so far is the language of what stands before; an anchor, lookahead, lookbehind or word boundary
//! intersects that, or what stands after. Exact or none. Cost: the alternatives that such terms stand in, bounded.

use super::language::{ANY, EMPTY, Lang, Languages, NEVER, normal};
use super::regex::{Term, word};

const MOST_CASES: u32 = 400;

/// Makes the language of a pattern.
pub(super) struct Builder<'a> {
    langs: &'a mut Languages,
    cases: u32,
}

impl<'a> Builder<'a> {
    pub(super) fn new(langs: &'a mut Languages) -> Self {
        Builder { langs, cases: 0 }
    }

    /// What a term without any look around matches.
    fn plain(&mut self, term: &Term) -> Option<Lang> {
        Some(match term {
            Term::Class(ranges) => self.langs.class(ranges.clone()),
            Term::Sequence(items) => {
                let mut whole = EMPTY;
                for item in items.iter().rev() {
                    let item = self.plain(item)?;
                    whole = self.langs.concat(item, whole);
                }
                whole
            }
            Term::Choice(options) => {
                let options = options.iter().map(|option| self.plain(option)).collect::<Option<Vec<_>>>()?;
                self.langs.or(options)
            }
            Term::Repeat(inner, min, max) => {
                let inner = self.plain(inner)?;
                self.langs.repeat(inner, *min, *max)
            }
            _ => return None,
        })
    }

    /// The whole strings that begin with one of `before`, go on with `terms`, and end with anything. `from_start` says
    /// that `before` reaches back to the start of the string.
    pub(super) fn found(&mut self, before: Lang, from_start: bool, terms: &[&Term]) -> Option<Lang> {
        self.cases += 1;
        if self.cases > MOST_CASES {
            return None;
        }
        let (mut before, mut terms) = (before, terms);
        let (first, rest) = loop {
            let Some((&first, rest)) = terms.split_first() else {
                return Some(self.langs.concat(before, ANY));
            };
            let Some(plain) = self.plain(first) else { break (first, rest) };
            before = self.langs.concat(before, plain);
            terms = rest;
        };
        match first {
            Term::Sequence(items) => {
                let items: Vec<&Term> = items.iter().chain(rest.iter().copied()).collect();
                self.found(before, from_start, &items)
            }
            Term::Choice(options) => {
                let mut all = Vec::new();
                for option in options {
                    let items: Vec<&Term> = std::iter::once(option).chain(rest.iter().copied()).collect();
                    all.push(self.found(before, from_start, &items)?);
                }
                Some(self.langs.or(all))
            }
            Term::Repeat(inner, 0, Some(1)) => {
                let items: Vec<&Term> = std::iter::once(&**inner).chain(rest.iter().copied()).collect();
                let with = self.found(before, from_start, &items)?;
                let without = self.found(before, from_start, rest)?;
                Some(self.langs.or(vec![with, without]))
            }
            Term::Start if from_start => {
                if self.langs.nullable(before) {
                    self.found(EMPTY, true, rest)
                } else {
                    Some(NEVER)
                }
            }
            Term::End => {
                // Nothing may follow, so the rest has to do with nothing.
                for item in rest {
                    if !matches!(item, Term::End) {
                        let plain = self.plain(item)?;
                        if !self.langs.nullable(plain) {
                            return Some(NEVER);
                        }
                    }
                }
                Some(before)
            }
            Term::Ahead(wanted, inner) => {
                let after = self.found(EMPTY, false, rest)?;
                let mut look = self.found(EMPTY, false, &[inner])?;
                if !wanted {
                    look = self.langs.not(look);
                }
                let after = self.langs.and(vec![after, look]);
                Some(self.langs.concat(before, after))
            }
            Term::Behind(wanted, inner) if from_start => {
                let inner = self.plain(inner)?;
                let mut look = self.langs.concat(ANY, inner);
                if !wanted {
                    look = self.langs.not(look);
                }
                let before = self.langs.and(vec![before, look]);
                self.found(before, true, rest)
            }
            Term::Boundary(wanted) if from_start => {
                let after = self.found(EMPTY, false, rest)?;
                let word = self.langs.class(normal(word()));
                let ends = self.langs.concat(ANY, word);
                let begins = self.langs.concat(word, ANY);
                let (not_ends, not_begins) = (self.langs.not(ends), self.langs.not(begins));
                let cases = if *wanted {
                    [(ends, not_begins), (not_ends, begins)]
                } else {
                    [(ends, begins), (not_ends, not_begins)]
                };
                let mut all = Vec::new();
                for (left, right) in cases {
                    let left = self.langs.and(vec![before, left]);
                    let right = self.langs.and(vec![after, right]);
                    all.push(self.langs.concat(left, right));
                }
                Some(self.langs.or(all))
            }
            _ => None,
        }
    }
}
