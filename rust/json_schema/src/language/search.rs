//! A pattern that is searched for, as the language of the whole strings in which it is found.
//!
//! The pattern is read from left to right, with the language of the strings before the current position. An anchor,
//! lookahead, lookbehind or word boundary intersects that language, or the one after the position. Exact or none. Cost: the alternatives that such terms stand in, bounded.

use super::regex::{self, Term, word};
use super::{ANY, EMPTY, Lang, Languages, NEVER, normal};

/// How many alternatives a pattern may expand to.
const MAX_CASES: u32 = 400;

/// The strings in which `pattern` is found; none where that cannot be said exactly.
pub(crate) fn language(langs: &mut Languages, pattern: &str) -> Option<Lang> {
    let term = regex::read(pattern)?;
    Builder { langs, cases: 0 }.found(ANY, true, &[&term])
}

/// Makes the language of a pattern.
struct Builder<'a> {
    langs: &'a mut Languages,
    cases: u32,
}

impl Builder<'_> {
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
    fn found(&mut self, before: Lang, from_start: bool, terms: &[&Term]) -> Option<Lang> {
        self.cases += 1;
        if self.cases > MAX_CASES {
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
            Term::End => self.ended(before, rest),
            Term::Ahead(wanted, inner) => {
                // At the start of the string what follows is all of it.
                let all = from_start && before == EMPTY;
                let after = self.found(EMPTY, all, rest)?;
                let mut look = self.found(EMPTY, all, &[inner])?;
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
            // Only the last character counts.
            Term::Boundary(wanted) if from_start || !self.langs.nullable(before) => {
                let after = self.found(EMPTY, false, rest)?;
                Some(self.at_boundary(before, after, *wanted))
            }
            _ => None,
        }
    }

    /// `before`, at the end of the string: nothing may follow, so `rest` has to do with nothing.
    fn ended(&mut self, before: Lang, rest: &[&Term]) -> Option<Lang> {
        for item in rest.iter().filter(|item| !matches!(item, Term::End)) {
            let plain = self.plain(item)?;
            if !self.langs.nullable(plain) {
                return Some(NEVER);
            }
        }
        Some(before)
    }

    /// `before`, then `after`, where a word begins or ends between them, or does not.
    fn at_boundary(&mut self, before: Lang, after: Lang, wanted: bool) -> Lang {
        let word = self.langs.class(normal(word()));
        let ends = self.langs.concat(ANY, word);
        let begins = self.langs.concat(word, ANY);
        let (not_ends, not_begins) = (self.langs.not(ends), self.langs.not(begins));
        let cases = if wanted {
            [(ends, not_begins), (not_ends, begins)]
        } else {
            [(ends, begins), (not_ends, not_begins)]
        };
        let cases = cases.map(|(left, right)| {
            let left = self.langs.and(vec![before, left]);
            let right = self.langs.and(vec![after, right]);
            self.langs.concat(left, right)
        });
        self.langs.or(cases.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pattern() -> impl Strategy<Value = String> {
        let atoms = [
            "a", "b", ".", "[^a]", "[ab]", "\\w", "\\W", "-", "", "^", "$", "\\b", "\\B", "(?=a)", "(?!b)",
            "(?<=a)",
        ];
        let leaf = prop::sample::select(atoms.to_vec()).prop_map(str::to_owned);
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                prop::collection::vec(inner.clone(), 2..3).prop_map(|parts| format!("({})", parts.join("|"))),
                (inner.clone(), prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}", "{2,}"]))
                    .prop_map(|(inner, times)| format!("(?:{inner}){times}")),
                inner.prop_map(|inner| format!("(?!{inner})")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn a_backtracking_engine_agrees(
            pattern in pattern(),
            texts in prop::collection::vec("[ab\\-]{0,4}", 12),
        ) {
            let Ok(oracle) = jsonschema::options().build(&json!({ "pattern": pattern })) else { return Ok(()) };
            let mut langs = Languages::new(200_000);
            let Some(lang) = language(&mut langs, &pattern) else { return Ok(()) };
            let written = langs.pattern(lang);
            let opposite = langs.not(lang);
            let opposite = langs.pattern(opposite);
            for text in texts {
                let found = oracle.is_valid(&json!(text));
                prop_assert_eq!(langs.matches(lang, &text), Some(found), "{} {:?}", pattern, text);
                // As the grammar's compiler reads it, too.
                for (written, expected) in [(&written, found), (&opposite, !found)] {
                    let Some(written) = written else { continue };
                    let mut builder = RegexBuilder::new();
                    let regex = builder.mk_regex_for_serach(written).unwrap();
                    let taken = builder.to_regex(regex).is_match(&text);
                    prop_assert_eq!(taken, expected, "{} as {} {:?}", pattern, written, text);
                }
            }
        }
    }

    #[test]
    fn what_dialects_read_otherwise_is_not_guessed() {
        let mut langs = Languages::new(100_000);
        for pattern in [
            "(a)\\1",
            "\\Aa",
            "a\\z",
            "(?i)a",
            "(?i:a)",
            "a**",
            "*a",
            "(a",
            "a)",
            "[z-a]",
            "[\\d-x]",
            "\\u{110000}",
            "\\ud800",
        ] {
            assert_eq!(language(&mut langs, pattern), None, "{pattern}");
        }
        for (pattern, yes, no) in [
            ("^[[]$", "[", "a"),
            ("^[a&&b]$", "&", ""),
            ("^\\s$", "\u{FEFF}", "\u{85}"),
            ("^.$", "\u{85}", "\u{2028}"),
            ("^a{,2}$", "a{,2}", "a"),
            ("^\\p{Lu}$", "É", "é"),
            ("^\\ud83d\\ude00$", "\u{1F600}", ""),
            ("^\\cJ\\x41\\u{42}\\0$", "\nAB\0", "A"),
            ("^(?<year>\\d{4})$", "2024", "٢٠٢٤"),
        ] {
            let lang = language(&mut langs, pattern).unwrap();
            assert_eq!(langs.matches(lang, yes), Some(true), "{pattern}");
            assert_eq!(langs.matches(lang, no), Some(false), "{pattern}");
        }
    }
}
