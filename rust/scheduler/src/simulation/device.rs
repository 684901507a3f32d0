//! The device.

use crate::features::prompt_logprobs::PromptLogProbsExtension;
use std::collections::VecDeque;

use super::expected::{Expected, score, state, sum};
use super::model::{VOCABULARY, extend, logprob};
use super::outcome::{Outcome, RowTrace};
use super::row::Row;
use super::states::States;
use crate::step::buffers::StepBuffers;
use crate::step::layout::StepLayout;

/// The device: KV cache and `last_token`, and the results of steps not fetched yet.
pub(super) struct Device {
    pub(super) block_size: usize,
    pub(super) layout: StepLayout,
    /// By page table.
    pub(super) windows: Vec<Option<usize>>,
    // See `rotation`: where long sequences begin in the table of angles.
    pub(super) short_context: usize,
    pub(super) cells: Vec<Option<(u64, u64)>>,
    pub(super) states: States,
    pub(super) last_token: Vec<u32>,
    pub(super) results: VecDeque<Outcome>,
}

impl Device {
    /// Where the angles of a row's sequence begin: rows of the table beyond those of short sequences are long ones'.
    pub(super) fn rotation(&self, positions: &[i32]) -> usize {
        let short = self.short_context;
        if positions[0] as usize >= short { short } else { 0 }
    }

    /// Runs a step. `owner` returns the request behind an index of the sequence table.
    pub(super) fn run(&mut self, mut step: StepBuffers<'_>, owner: impl Fn(u32) -> Expected) {
        self.feed(&mut step);
        self.draft(&mut step, &owner);
        let rows = self.rows(&step, &owner);
        self.check_sizes(&step, &rows);
        self.check_slots(&step, rows.len());
        let mut chains = vec![0; step.header.num_tokens as usize];
        let (mut pooled, mut scores, mut traces) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            let mut written = self.write_keys(&step, row, &mut chains);
            let mut read = self.read_keys(row);
            let (sources, slots) = self.run_state(&step, row, &mut chains);
            read.extend(sources);
            written.extend(slots);
            let (first_pooled, first_score) = (pooled.len(), scores.len());
            pooled.extend(pool(&step, row, &chains, first_pooled / 2).into_iter().flatten());
            scores.extend(score_prompt(&step, row, &chains, first_score));
            traces.push(RowTrace {
                read,
                written,
                logits: row.logits.clone(),
                pooled: first_pooled..pooled.len(),
                scored: first_score..scores.len(),
            });
        }
        assert_eq!(pooled.len(), 2 * step.header.num_pooled_rows as usize);
        assert_eq!(scores.len(), step.header.num_prompt_logits as usize);
        let (tokens, counts) = self.sample(&step, &chains, owner);
        let logprobs = logprobs(&step, &tokens);
        self.results.push_back(Outcome {
            tokens,
            counts,
            logprobs,
            pooled,
            prompt_logprobs: scores,
            rows: traces,
        });
    }

    /// Fills in the tokens that only the device knows.
    fn feed(&self, step: &mut StepBuffers<'_>) {
        for feed in 0..step.header.num_feeds as usize {
            let token = self.last_token[step.feed_sequence[feed] as usize];
            step.token_ids[step.feed_token[feed] as usize] = token as i32;
        }
    }

    /// Fills in the tokens of the draft model, some of them wrong.
    fn draft(&self, step: &mut StepBuffers<'_>, owner: &impl Fn(u32) -> Expected) {
        for at in 0..step.header.num_sampled as usize {
            let drafts = step.device_drafts[at] as usize;
            if drafts == 0 {
                continue;
            }
            assert_eq!(drafts as i32, step.logit_start[at + 1] - step.logit_start[at] - 1);
            let row = step.sample_rows[at] as usize;
            let expected = owner(step.row_sequence[row] as u32);
            let (tokens, length, _) = self.span(step, row);
            for behind in 1..=drafts {
                let wrong = u32::from(expected.misleads(length - behind));
                let draft = (expected.tokens[length - behind] + wrong) % VOCABULARY as u32;
                assert_eq!(std::mem::replace(&mut step.token_ids[tokens.end - behind], draft as i32), 0);
            }
        }
    }

    /// The header's sums are those of the rows, and decodes come first.
    fn check_sizes(&self, step: &StepBuffers<'_>, rows: &[Row<'_>]) {
        let header = &step.header;
        let [tokens, pages, feeds, decodes, pooled_rows, pooled_tokens] = [
            header.num_tokens,
            header.num_pages,
            header.num_feeds,
            header.num_decode_rows,
            header.num_pooled_rows,
            header.num_pooled_tokens,
        ]
        .map(|number| number as usize);
        assert_eq!(step.query_start[rows.len()] as usize, tokens);
        let last_table = (self.layout.tables() - 1) * (self.layout.max_rows() + 1);
        assert_eq!(step.page_indptr[last_table + rows.len()] as usize, pages);
        assert!(pooled_rows == 0 || step.pool_start[pooled_rows] as usize == pooled_tokens);
        let longest_query = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        assert_eq!(step.header.max_query_length as usize, longest_query);
        let longest = rows.iter().map(|row| row.length).max().unwrap_or(0);
        assert_eq!(step.header.max_kv_length as usize, longest);
        let fed = &step.feed_sequence[..feeds];
        for row in rows.iter().skip(decodes) {
            assert!(!fed.contains(&step.row_sequence[row.number]), "decodes come first");
        }
    }

    /// Computes a row's tokens: the chain of each, written where its KV goes. Returns the cells.
    fn write_keys(&mut self, step: &StepBuffers<'_>, row: &Row<'_>, chains: &mut [u64]) -> Vec<usize> {
        let mut written = Vec::new();
        let computed = &row.expected.tokens[..row.computed()];
        let mut chain = computed.iter().fold(0, |chain, token| extend(chain, *token));
        for (at, position) in row.tokens.clone().zip(row.computed()..) {
            let token = step.token_ids[at] as u32;
            let is_draft = position >= row.known;
            assert!(is_draft || token == row.expected.tokens[position], "token at {position}");
            assert_eq!(step.positions[at] as usize, row.rotation + position);
            chain = extend(chain, token);
            chains[at] = chain;
            for table in 0..self.windows.len() {
                let cell = row.cell(table, position);
                assert_eq!(step.slot_mapping[table * self.layout.max_tokens() + at] as usize, cell);
                self.states.overwrite(cell);
                self.cells[cell] = Some((chain, row.salt));
                written.push(cell);
            }
        }
        written
    }

    /// Reads what a row's tokens see in every table, which must be the row's own prefix. Returns the cells before those of
    /// the step.
    fn read_keys(&self, row: &Row<'_>) -> Vec<usize> {
        let mut prefixes = Vec::new();
        for &token in &row.expected.tokens[..row.known] {
            prefixes.push(extend(prefixes.last().copied().unwrap_or(0), token));
        }
        let mut read = Vec::new();
        for (table, window) in self.windows.iter().enumerate() {
            let first = window.map_or(0, |window| (row.computed() + 1).saturating_sub(window));
            for (position, prefix) in prefixes.iter().enumerate().skip(first) {
                let cell = row.cell(table, position);
                assert_eq!(self.cells[cell], Some((*prefix, row.salt)), "KV at position {position}");
                if position < row.computed() {
                    read.push(cell);
                }
            }
        }
        read
    }
}

/// The sum of the states that a row wants, if it is the `at`th that pools.
fn pool(step: &StepBuffers<'_>, row: &Row<'_>, chains: &[u64], at: usize) -> Option<[f32; 2]> {
    if at >= step.header.num_pooled_rows as usize {
        return None;
    }
    let wanted = &step.pool_token[step.pool_start[at] as usize..step.pool_start[at + 1] as usize];
    let pools = wanted.last() == Some(&(row.tokens.end as i32 - 1));
    pools.then(|| sum(wanted.iter().map(|token| state(chains[*token as usize]))))
}

/// The scores of a row's prompt tokens, whose logits are those from the `first` on.
fn score_prompt(step: &StepBuffers<'_>, row: &Row<'_>, chains: &[u64], first: usize) -> Vec<f32> {
    let wanted = step.prompt_token[..step.header.num_prompt_logits as usize].iter().skip(first);
    let own = wanted.take_while(|token| row.tokens.contains(&(**token as usize)));
    let scores: Vec<f32> = own
        .zip(&step.prompt_target[first..])
        .map(|(token, target)| {
            let position = step.positions[*token as usize] as usize - row.rotation;
            let own = row.expected.tokens[..row.expected.submit.prompt_length as usize].get(position + 1);
            assert!(own.is_none_or(|own| *own == *target as u32), "behind position {position}");
            score(chains[*token as usize], *target as u32)
        })
        .collect();
    assert!(scores.is_empty() || row.expected.submit.extensions.has::<PromptLogProbsExtension>());
    scores
}

/// The log-probabilities of sampled tokens, where a row wants any.
fn logprobs(step: &StepBuffers<'_>, tokens: &[i32]) -> Option<Vec<f32>> {
    if step.header.num_logprobs_rows == 0 {
        return None;
    }
    let place = |(logit, token): (usize, &i32)| {
        let row = step.logit_row[logit] as usize;
        let position = step.sample_position[row] as usize + logit - step.logit_start[row] as usize;
        logprob(*token as u32, position)
    };
    Some(tokens.iter().enumerate().map(place).collect())
}
