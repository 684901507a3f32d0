//! The results of a step, and what they were made of.

use std::collections::BTreeSet;
use std::ops::Range;

use super::device::Device;
use super::model::VOCABULARY;

/// The results of a step.
#[derive(Clone, Default)]
pub(super) struct Outcome {
    pub(super) tokens: Vec<i32>,
    pub(super) counts: Vec<i32>,
    // The log-probability of each token is a function of its position; other rows get two of them.
    pub(super) logprobs: Option<Vec<f32>>,
    // Of the rows that pool, one behind the other.
    pub(super) pooled: Vec<f32>,
    // By logits of prompts, functions of the target's position and of the tokens before it.
    pub(super) prompt_logprobs: Vec<f32>,
    pub(super) rows: Vec<RowTrace>,
}

/// A row of a computed step.
#[derive(Clone)]
pub(super) struct RowTrace {
    // Where it found the KV before its own tokens, and where it wrote theirs; states are behind all cells.
    pub(super) read: Vec<usize>,
    pub(super) written: Vec<usize>,
    // Its logits, none if it did not sample.
    pub(super) logits: Range<usize>,
    // Its numbers in `pooled`, none if it did not pool.
    pub(super) pooled: Range<usize>,
    // Its numbers in `prompt_logprobs`.
    pub(super) scored: Range<usize>,
}

impl Device {
    /// What row `row` of the oldest step wrote is garbage, or what all rows of it did; and so is what was made from it
    /// since.
    pub(super) fn spoil(&mut self, row: Option<usize>) {
        let mut spoiled: BTreeSet<usize> = BTreeSet::new();
        for (number, outcome) in self.results.iter_mut().enumerate() {
            for (at, trace) in outcome.rows.iter().enumerate() {
                let chosen = number == 0 && row.is_none_or(|row| row == at);
                if chosen || trace.read.iter().any(|cell| spoiled.contains(cell)) {
                    spoiled.extend(&trace.written);
                    let tokens = &mut outcome.tokens[trace.logits.clone()];
                    tokens.iter_mut().for_each(|token| *token = (*token + 1) % VOCABULARY as i32);
                    outcome.pooled[trace.pooled.clone()].iter_mut().for_each(|number| *number += 1.0);
                    outcome.prompt_logprobs[trace.scored.clone()].fill(f32::NAN);
                } else {
                    trace.written.iter().for_each(|cell| _ = spoiled.remove(cell));
                }
            }
        }
        spoiled.into_iter().for_each(|cell| self.lose(cell));
    }
}
