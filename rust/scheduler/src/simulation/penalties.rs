//! Penalties as they are defined, counted from scratch at every position, and random rules.

use proptest::prelude::*;
use pyengine_kernels_cpu::sampler::SamplingRow;

use super::extensions::{ask, asked};
use super::model::{VOCABULARY, mix};
use crate::features::penalties::PenaltiesExtension;
use pyengine_messages::Submit;
use pyengine_messages::token_ids;

/// The penalties of a request.
#[derive(Debug, Clone)]
pub(super) struct PenaltyRules {
    pub(super) sampling: SamplingRow,
    pub(super) logit_bias: Vec<(u32, f32)>,
    pub(super) bad_words: Vec<Vec<u32>>,
    pub(super) dry_breakers: Vec<u32>,
}

impl PenaltyRules {
    /// Asks for these in `submit`.
    pub(super) fn ask(self, submit: &mut Submit) {
        let SamplingRow { seed, temperature, .. } = submit.sampling;
        submit.sampling = SamplingRow { seed, temperature, ..self.sampling };
        let Self { logit_bias, bad_words, dry_breakers, .. } = self;
        let dry_breakers = dry_breakers.iter().flat_map(|token| token.to_le_bytes()).collect();
        ask(submit, &PenaltiesExtension { logit_bias, bad_words, dry_breakers });
    }
}

/// The penalties of the logits that follow `prompt` and `answer`, by token: those that change something.
pub(super) fn recount(submit: &Submit, prompt: &[u32], answer: &[u32]) -> Vec<(u32, f32, f32)> {
    let all = [prompt, answer].concat();
    let rules = &submit.sampling;
    let changes: PenaltiesExtension = asked(submit).unwrap_or_default();
    let breakers: Vec<u32> = token_ids(&changes.dry_breakers);
    let penalty = |token: u32| {
        let count = answer.iter().filter(|other| **other == token).count() as f32;
        let factor = if all.contains(&token) { rules.repetition_penalty } else { 1.0 };
        let forbidden = changes.bad_words.iter().any(|word| {
            let (last, before) = word.split_last().unwrap();
            *last == token && all.ends_with(before)
        });
        let penalty =
            if count > 0.0 { rules.presence_penalty } else { 0.0 } + rules.frequency_penalty * count;
        let bias: f32 =
            changes.logit_bias.iter().filter(|(other, _)| *other == token).map(|(_, bias)| bias).sum();
        let repeat = repeated(rules, &breakers, &all, token);
        (token, factor, if forbidden { f32::NEG_INFINITY } else { bias - penalty - repeat })
    };
    let changes = |(_, factor, add): &(u32, f32, f32)| *factor != 1.0 || *add != 0.0;
    (0..VOCABULARY as u32).map(penalty).filter(changes).collect()
}

/// What DRY takes from a token's logit behind `text`, by every pair of a sequence at its end and one before the token.
fn repeated(rules: &SamplingRow, breakers: &[u32], text: &[u32], token: u32) -> f32 {
    if !rules.has_dry() || breakers.contains(&token) {
        return 0.0;
    }
    let allowed = rules.dry_allowed_length as usize;
    let length = (1..text.len())
        .filter(|&end| text[end] == token)
        .flat_map(|end| (1..=end.min(allowed + 50)).map(move |length| (end, length)))
        .filter(|&(end, length)| text.ends_with(&text[end - length..end]))
        .filter(|&(_, length)| !text[text.len() - length..].iter().any(|t| breakers.contains(t)))
        .map(|(_, length)| length)
        .max();
    match length {
        Some(length) if length >= allowed => {
            (allowed..length).fold(rules.dry_multiplier, |penalty, _| penalty * rules.dry_base)
        }
        _ => 0.0,
    }
}

/// A number that says of two lists whether they are the same, in whatever order.
pub(super) fn digest(penalties: impl Iterator<Item = (u32, f32, f32)>) -> u64 {
    let mut penalties: Vec<_> = penalties.collect();
    penalties.sort_by_key(|penalty| penalty.0);
    assert!(
        penalties.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "a token is penalized twice: {penalties:?}"
    );
    let fold = |digest, (token, factor, add): (u32, f32, f32)| {
        mix(mix(digest, token.into()), u64::from(factor.to_bits()) << 32 | u64::from((add + 0.0).to_bits()))
    };
    penalties.into_iter().fold(0, fold)
}

pub(super) fn penalty_rules() -> impl Strategy<Value = PenaltyRules> {
    let penalty = || prop_oneof![Just(0.0f32), Just(0.5), Just(-1.25), Just(0.1)];
    let repetition = prop_oneof![Just(1.0f32), Just(1.3), Just(0.7)];
    let token = || 0..VOCABULARY as u32;
    let bias = prop::collection::btree_map(token(), prop_oneof![4 => -100f32..100.0, 1 => Just(0.0)], 0..4);
    // Of few tokens, so that they come about.
    let word = prop::collection::vec(0..6u32, 1..4);
    let words = prop::collection::vec(prop_oneof![word, prop::collection::vec(token(), 1..3)], 0..12);
    let dry = prop_oneof![1 => Just((0.0f32, 1)), 1 => (prop_oneof![Just(0.5f32), Just(2.0)], 0..4i32)];
    let breakers = prop::collection::vec(token(), 0..3);
    (penalty(), penalty(), repetition, bias, words, dry, breakers).prop_map(
        |(presence_penalty, frequency_penalty, repetition_penalty, bias, bad_words, dry, dry_breakers)| {
            PenaltyRules {
                sampling: SamplingRow {
                    presence_penalty,
                    frequency_penalty,
                    repetition_penalty,
                    dry_multiplier: dry.0,
                    dry_allowed_length: dry.1,
                    dry_base: 1.5,
                    ..SamplingRow::NEUTRAL
                },
                logit_bias: bias.into_iter().collect(),
                bad_words,
                dry_breakers,
            }
        },
    )
}
