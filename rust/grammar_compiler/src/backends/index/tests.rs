//! Both backends against a regex that is read by taking derivatives, and the limits of a table.

use proptest::prelude::*;

use super::*;
use crate::backends::llguidance::Llguidance;
use crate::backends::tests::allowed;
use crate::cancellation::CancelToken;
use crate::context::tests::small;
use crate::lowering::description::Description;
use crate::lowering::{lower, pattern};

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
    let leaf = prop_oneof![Just(Regex::Empty), prop::sample::select(b"abc.".to_vec()).prop_map(Regex::Byte)];
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
    Index::build(tokens, &pattern, &CancelToken::default())
        .unwrap_or_else(|refusal| panic!("{}", refusal.message))
        .expect("it is small enough")
}

fn by_llguidance(tokens: &Arc<Tokens>, text: &str) -> Llguidance {
    let description = Description::Regex { pattern: text.to_owned() };
    let lowered = lower(description, tokens, &CancelToken::default(), &mut Vec::new()).unwrap();
    Llguidance::compile(tokens, lowered, Vec::new()).unwrap_or_else(|refusal| panic!("{}", refusal.message))
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

                // No other text than the forced tokens' may come.
                let mut forced = Vec::new();
                state.forced_tokens(40, &mut forced);
                let mut at = model.clone();
                for byte in forced.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()) {
                    prop_assert!(!at.is_final());
                    for other in 0..=255u8 {
                        prop_assert_eq!(at.after(other) != Regex::Nothing, other == byte);
                    }
                    at = at.after(byte);
                }
                prop_assert!(forced.iter().all(|token| state.advance(*token)));
                state.roll_back(forced.len());

                if let Some(closing) = state.closing_tokens(40) {
                    prop_assert!(closing.iter().all(|token| state.advance(*token)));
                    prop_assert!(state.advance(tokens.end_tokens()[0]));
                    state.roll_back(closing.len() + 1);
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
    let build = |text: &str| Index::build(&tokens, &pattern::whole(text).unwrap(), &CancelToken::default());
    for pattern in ["(?:a|b)*a(?:a|b){25}", "(?s:.*)", "a{100000}", r"\w{1,300}"] {
        assert!(
            build(pattern).unwrap_or_else(|refusal| panic!("{}", refusal.message)).is_none(),
            "{pattern}"
        );
    }
    // Later beginnings must not make it grow.
    assert!(build("a[ab]{25}").unwrap().is_some());
    assert!(build("[^x]{2}").unwrap().is_some());
    assert!(build("[a&&b]").is_err(), "no text matches");
    let cancel = CancelToken::default();
    cancel.cancel();
    assert!(Index::build(&tokens, &pattern::whole("a").unwrap(), &cancel).is_err());
}

#[test]
fn a_choice_prefers_nothing() {
    let tokens = tokens();
    let choices = ["a", "ab", "abc", "b.c"].map(str::to_owned);
    let index = Index::build(&tokens, &pattern::choice(&choices), &CancelToken::default()).unwrap().unwrap();
    assert!(index.memory() > 0);
    for choice in &choices {
        let mut state = index.start();
        let mut ids = Vec::new();
        tokens.tokenize(choice.as_bytes(), &mut ids);
        assert!(ids.iter().all(|id| state.advance(*id)) && state.advance(0), "{choice}");
    }
    let mut state = index.start();
    assert!(state.advance(tokens.byte_token(b'b').unwrap()));
    let mut forced = Vec::new();
    state.forced_tokens(9, &mut forced);
    assert_eq!(tokens.text_bytes(forced[0]), b".");
    assert_eq!(state.closing_tokens(1), None);
    assert_eq!(state.closing_tokens(2).map(|tokens| tokens.len()), Some(2));
}
