//! Penalties as they are defined, counted from scratch at every position, and random rules.

use proptest::prelude::*;
use pyengine_kernels_cpu::sampler::SamplingRow;

use super::model::{VOCABULARY, mix};
use crate::messages::Submit;

/// The penalties of a request.
#[derive(Debug, Clone)]
pub(super) struct PenaltyRules {
    pub(super) sampling: SamplingRow,
    pub(super) logit_bias: Vec<(u32, f32)>,
    pub(super) bad_words: Vec<Vec<u32>>,
}

impl PenaltyRules {
    /// Asks for these in `submit`.
    pub(super) fn ask(self, submit: &mut Submit) {
        let SamplingRow { presence_penalty, frequency_penalty, repetition_penalty, .. } = self.sampling;
        submit.sampling =
            SamplingRow { presence_penalty, frequency_penalty, repetition_penalty, ..submit.sampling };
        (submit.logit_bias, submit.bad_words) = (self.logit_bias, self.bad_words);
    }
}

/// The penalties of the logits that follow `prompt` and `answer`, by token: those that change something.
pub(super) fn recount(submit: &Submit, prompt: &[u32], answer: &[u32]) -> Vec<(u32, f32, f32)> {
    let all = [prompt, answer].concat();
    let rules = &submit.sampling;
    let penalty = |token: u32| {
        let count = answer.iter().filter(|other| **other == token).count() as f32;
        let factor = if all.contains(&token) { rules.repetition_penalty } else { 1.0 };
        let forbidden = submit.bad_words.iter().any(|word| {
            let (last, before) = word.split_last().unwrap();
            *last == token && all.ends_with(before)
        });
        let penalty =
            if count > 0.0 { rules.presence_penalty } else { 0.0 } + rules.frequency_penalty * count;
        let bias: f32 =
            submit.logit_bias.iter().filter(|(other, _)| *other == token).map(|(_, bias)| bias).sum();
        (token, factor, if forbidden { f32::NEG_INFINITY } else { bias - penalty })
    };
    let changes = |(_, factor, add): &(u32, f32, f32)| *factor != 1.0 || *add != 0.0;
    (0..VOCABULARY as u32).map(penalty).filter(changes).collect()
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
    (penalty(), penalty(), repetition, bias, words).prop_map(
        |(presence_penalty, frequency_penalty, repetition_penalty, bias, bad_words)| PenaltyRules {
            sampling: SamplingRow {
                presence_penalty,
                frequency_penalty,
                repetition_penalty,
                ..SamplingRow::NEUTRAL
            },
            logit_bias: bias.into_iter().collect(),
            bad_words,
        },
    )
}
