//! What must be true when everything has come to its end.

use std::collections::HashMap;

use super::expected::{following, scores, vector};
use super::extensions::asked;
use super::world::World;
use crate::features::pooling::PoolingExtension;
use crate::features::prompt_logprobs::PromptLogProbsExtension;
use pyengine_messages::FinishReason;

impl World {
    /// Every request had the output that it must have, and every block is free or cached.
    pub(super) fn verify(&mut self) {
        self.read();
        let context = self.context();
        for (key, expected) in &self.expected {
            let stream = &self.streams[key];
            let prompt = expected.submit.prompt_length as usize;
            let reference = &expected.tokens[prompt..];
            assert_eq!(stream.tokens, reference[..stream.tokens.len()], "{key:?}");
            let (length, reason) = expected.end(context);
            let longest = length.saturating_sub(prompt).max(expected.submit.tokens.len() / 4 - prompt);
            assert!(stream.tokens.len() <= longest, "{key:?} overshot");
            let pooled: Option<PoolingExtension> =
                asked(&expected.submit).filter(|_| stream.finish == Some(FinishReason::Stop));
            let wanted = pooled
                .map_or_else(Vec::new, |pooled| vector(pooled.pooling, &expected.tokens[..prompt]).to_vec());
            assert_eq!(stream.vector, wanted, "{key:?}");
            let scores = match asked::<PromptLogProbsExtension>(&expected.submit) {
                Some(wanted) => {
                    let first = (wanted.first as usize).min(prompt - 1);
                    let mut all = scores(&expected.tokens[..prompt]).split_off(first);
                    all.extend(following(&expected.tokens[..prompt], &wanted));
                    all
                }
                None => Vec::new(),
            };
            assert!(scores.starts_with(&stream.prompt_logprobs), "{key:?}");
            // A stream that was over when it was submitted again has nothing more to tell.
            let ran = stream.tokens.len() * 4 + 4 * prompt > expected.submit.tokens.len()
                || expected.submit.max_tokens == 0;
            let ended = matches!(stream.finish, Some(FinishReason::Stop | FinishReason::Length));
            assert!(!(ran && ended) || stream.prompt_logprobs == scores, "{key:?}");
            if prompt > self.setup.max_context.min(self.capacity()) {
                assert_eq!(stream.finish, Some(FinishReason::Error), "{key:?}");
            } else if matches!(stream.finish, Some(FinishReason::Stop | FinishReason::Length)) {
                assert_eq!((stream.tokens.len(), stream.finish), (longest, Some(reason)), "{key:?}");
            } else if stream.finish == Some(FinishReason::Overloaded) {
                assert_eq!(stream.tokens.len() * 4, expected.submit.tokens.len() - prompt * 4);
            } else {
                // A detokenizer that reports a stop string gets no further tokens.
                let cut = self.cut.get(key).copied();
                let silent = cut == Some(FinishReason::Stop) && stream.finish.is_none();
                assert!(silent || stream.finish == cut, "{key:?} {stream:?} {cut:?}");
            }
        }
        let counts = self.kv.counts();
        assert_eq!(counts.held, 0);
        assert_eq!(counts.free + counts.cached, self.setup.num_blocks);
        assert!(!self.planner.has_work());
        let stats: HashMap<_, _> = self.planner.stats().into_iter().collect();
        let finished: u64 =
            stats.iter().filter(|(name, _)| name.starts_with("finished")).map(|(_, n)| n).sum();
        assert_eq!(finished as usize, self.expected.len());
        let answered = stats["finished_stop"] + stats["finished_length"];
        for name in ["duration_ns", "prompt_length", "completion_length"] {
            assert_eq!(self.histogram(name).0, answered, "{name}");
        }
        let (first, more) =
            (self.histogram("time_to_first_token_ns").0, self.histogram("inter_token_latency_ns").0);
        assert!(first <= self.histogram("queue_time_ns").0 && first + more <= stats["completion_tokens"]);
    }
}
