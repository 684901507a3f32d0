//! The device's sampler.

use super::device::Device;
use super::expected::Expected;
use super::extensions::asked;
use super::model::{choose, mix};
use super::penalties::digest;
use crate::features::grammars::GrammarExtension;
use crate::features::logprobs::LogProbsExtension;
use crate::features::thinking_budget::ThinkingBudgetExtension;
use crate::step::buffers::StepBuffers;

impl Device {
    /// Chooses tokens for each sampling row, after the prefixes whose `chains` they are by token of the step, and says
    /// how many of them count.
    pub(super) fn sample(
        &mut self,
        step: &StepBuffers<'_>,
        chains: &[u64],
        owner: impl Fn(u32) -> Expected,
    ) -> (Vec<i32>, Vec<i32>) {
        let sampled = step.header.num_sampled as usize;
        let (mut result, mut counts, mut with_logprobs) = (Vec::new(), Vec::new(), 0);
        for at in 0..sampled {
            let row = step.sample_rows[at] as usize;
            assert_eq!(step.sample_sequence[at], step.row_sequence[row]);
            let expected = owner(step.row_sequence[row] as u32);
            assert_eq!(step.sampling[at], expected.submit.sampling);
            let logits = step.logit_start[at] as usize..step.logit_start[at + 1] as usize;
            let most = asked::<LogProbsExtension>(&expected.submit).map_or(-1, |wanted| wanted.count.into());
            assert!(step.logprobs[logits.clone()].iter().all(|wanted| *wanted == most));
            assert!(i64::from(most) <= step.header.max_logprobs);
            with_logprobs += usize::from(most >= 0);
            let drafts = logits.len() - 1;
            let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
            let length = step.positions[tokens.end - 1] as usize + 1 - self.rotation(&step.positions[tokens]);
            assert_eq!(step.sample_position[at] as usize + drafts, length);
            let (mut count, mut right) = (0, true);
            for (number, logit) in logits.enumerate() {
                assert_eq!(step.logit_row[logit] as usize, at);
                let mask = step.mask_row[logit];
                // What is sampled of a sequence that has ended is dropped, and needs none.
                let asks = &expected.submit.extensions;
                let masks = asks.has::<GrammarExtension>() || asks.has::<ThinkingBudgetExtension>();
                assert!(mask < 0 || masks);
                assert!(i64::from(mask) < step.header.num_masks);
                let words = step.mask.len() / step.logit_row.len();
                let allows = |token: u32| {
                    mask < 0
                        || step.mask[mask as usize * words + token as usize / 32] >> (token % 32) & 1 == 1
                };
                let after = step.logit_token[logit] as usize;
                assert_eq!(after, step.query_start[row + 1] as usize - 1 - drafts + number);
                let position = step.sample_position[at] as u64 + number as u64;
                let penalties = match step.header.num_penalties {
                    0 => 0..0,
                    _ => step.penalty_start[logit] as usize..step.penalty_start[logit + 1] as usize,
                };
                assert!(penalties.end <= step.header.num_penalties as usize);
                assert!(penalties.is_empty() || step.header.num_penalized_rows > 0);
                let penalty = |at: usize| {
                    (step.penalty_token[at] as u32, step.penalty_factor[at], step.penalty_add[at])
                };
                let penalized = mix(chains[after], digest(penalties.map(penalty)));
                let token = choose(penalized, step.sampling[at].seed, position, allows);
                result.push(token as i32);
                if right {
                    count += 1;
                    self.last_token[step.sample_sequence[at] as usize] = token;
                    right = number < drafts && step.token_ids[after + 1] == token as i32;
                }
            }
            counts.push(count);
        }
        let greedy = step.sampling[..sampled].iter().filter(|rules| rules.temperature == 0.0).count();
        assert_eq!(step.header.num_logprobs_rows as usize, with_logprobs);
        assert_eq!(step.header.num_greedy as usize, greedy);
        assert_eq!(step.header.num_logits as usize, result.len());
        (result, counts)
    }
}
