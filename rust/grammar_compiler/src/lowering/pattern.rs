//! Regexes in a form that both backends read the same way.
//!
//! Answers are matched as a whole: anchors at the ends are dropped, groups do not capture, and preferences between
//! alternatives or repetitions make no difference. What no backend supports (word boundaries, inner anchors, bytes that
//! are not UTF-8) is refused by name. O(pattern).

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look, Repetition};

use pyengine_grammar::Refusal;
use pyengine_grammar::refusal;

/// How deep groups may be nested.
const MAX_DEPTH: u32 = 100;

/// The language of a pattern that is matched as a whole, without anchors, groups and preferences.
///
/// # Errors
/// The pattern is not valid, or uses what is not supported.
pub fn whole(pattern: &str) -> Result<Hir, Refusal> {
    let hir = ParserBuilder::new().nest_limit(MAX_DEPTH).build().parse(pattern);
    let hir = hir.map_err(|error| refusal(format!("the regex is not valid: {error}")))?;
    plain(&hir, true, true)
}

/// Exactly these texts, as a pattern's language.
pub fn choice(choices: &[String]) -> Hir {
    Hir::alternation(choices.iter().map(|choice| Hir::literal(choice.as_bytes())).collect())
}

/// `first` and `last`: whether nothing can come before and after this part.
fn plain(hir: &Hir, first: bool, last: bool) -> Result<Hir, Refusal> {
    Ok(match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => hir.clone(),
        HirKind::Look(Look::Start) if first => Hir::empty(),
        HirKind::Look(Look::End) if last => Hir::empty(),
        HirKind::Look(look) => return Err(refusal(format!("the regex uses {}", name(*look)))),
        HirKind::Capture(capture) => plain(&capture.sub, first, last)?,
        HirKind::Repetition(repetition) => {
            let once = repetition.max == Some(1);
            let sub = Box::new(plain(&repetition.sub, first && once, last && once)?);
            Hir::repetition(Repetition { greedy: true, sub, ..*repetition })
        }
        HirKind::Alternation(options) => {
            let options = options.iter().map(|option| plain(option, first, last));
            Hir::alternation(options.collect::<Result<_, _>>()?)
        }
        HirKind::Concat(parts) => {
            let anchor = |part: &Hir| matches!(part.kind(), HirKind::Look(_) | HirKind::Empty);
            let (before, after) = (
                parts.iter().take_while(|part| anchor(part)).count(),
                parts.iter().rev().take_while(|part| anchor(part)).count(),
            );
            let parts = parts
                .iter()
                .enumerate()
                .map(|(at, part)| plain(part, first && at <= before, last && at + after + 1 >= parts.len()));
            Hir::concat(parts.collect::<Result<_, _>>()?)
        }
    })
}

fn name(look: Look) -> &'static str {
    match look {
        Look::Start | Look::StartLF | Look::StartCRLF => "`^` inside of the text, which is not supported",
        Look::End | Look::EndLF | Look::EndCRLF => "`$` inside of the text, which is not supported",
        _ => "word boundaries, which are not supported",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_at_the_ends_fall_away() {
        for (pattern, plain) in [
            ("^abc$", "abc"),
            ("^(a|^b)$", "[ab]"),
            ("(?:^)?(a+?)(b)??$", "a+b?"),
            ("^$", ""),
            (r"\A[0-9]\z", "[0-9]"),
            ("(^|,)a", ",?a"),
        ] {
            let hir = whole(pattern).unwrap();
            let expected = regex_syntax::parse(plain).unwrap();
            let language = |hir: &Hir| {
                let text = hir.to_string();
                (0..3u8.pow(3))
                    .filter(|at| {
                        let word: String = [at % 3, at / 3 % 3, at / 9]
                            .map(|at| ['a', 'b', ','][at as usize])
                            .iter()
                            .collect();
                        let regex = regex_automata::meta::Regex::new(&format!("^(?:{text})$")).unwrap();
                        (0..=3).any(|length| regex.is_match(&word[..length]))
                    })
                    .collect::<Vec<_>>()
            };
            assert_eq!(language(&hir), language(&expected), "{pattern}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (pattern, named) in [
            (r"\bword\b", "word boundaries"),
            ("a^b", "`^`"),
            ("(a$)+", "`$`"),
            (r"(?-u)\xff", "not valid"),
            ("(", "not valid"),
            (r"(?=a)b", "look-around"),
            (r"(a)\1", "backreferences"),
        ] {
            let refusal = whole(pattern).unwrap_err();
            assert!(refusal.message.contains(named), "{pattern}: {}", refusal.message);
        }
        assert!(whole(&format!("{}a{}", "(".repeat(1000), ")".repeat(1000))).is_err());
    }

    #[test]
    fn choices_are_literal() {
        assert_eq!(choice(&["a.b".into(), "a.b*".into()]).to_string(), r"(?:(?:a\.b)|(?:a\.b\*))");
    }
}
