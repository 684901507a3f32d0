//! The device.

use crate::features::prompt_logprobs::PromptLogProbsExtension;
use std::collections::VecDeque;

use super::expected::{Expected, score, state, sum};
use super::model::{VOCABULARY, extend, logprob};
use super::outcome::{Outcome, RowTrace};
use super::row::Row;
use crate::step::buffers::{StepBuffers, StepLayout, header};

/// The device: KV cache and `last_token`, and the results of steps not fetched yet.
pub(super) struct Device {
    pub(super) block_size: usize,
    pub(super) layout: StepLayout,
    /// By page table.
    pub(super) windows: Vec<Option<usize>>,
    // See `rotation`: where long sequences begin in the table of angles.
    pub(super) short_context: usize,
    pub(super) cells: Vec<Option<(u64, u64)>>,
    pub(super) last_token: Vec<u32>,
    /// By slot: how many drafts of its last row were right.
    pub(super) accepted: Vec<i32>,
    /// Rows that assumed drafts to be right, and those of them that it moved back.
    pub(super) assuming: u64,
    pub(super) moved: u64,
    pub(super) results: VecDeque<Outcome>,
}

/// By how much the device moves a row back.
fn moved(step: &StepBuffers<'_>, row: usize, accepted: &[i32]) -> usize {
    match step.assumed_drafts[row] {
        0 => 0,
        assumed => (assumed - accepted[step.row_sequence[row] as usize]) as usize,
    }
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
        self.move_rows(&mut step);
        self.draft(&mut step, &owner);
        let rows = self.rows(&step, &owner);
        self.check_sizes(&step, &rows);
        let mut chains = vec![0; step.header[header::NUM_TOKENS] as usize];
        let (mut pooled, mut scores, mut traces) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            let written = self.write_keys(&step, row, &mut chains);
            let read = self.read_keys(row);
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
        assert_eq!(pooled.len(), 2 * step.header[header::NUM_POOLED_ROWS] as usize);
        assert_eq!(scores.len(), step.header[header::NUM_PROMPT_LOGITS] as usize);
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
        for feed in 0..step.header[header::NUM_FEEDS] as usize {
            let token = self.last_token[step.feed_sequence[feed] as usize];
            step.token_ids[step.feed_token[feed] as usize] = token as i32;
        }
    }

    /// Fills in the tokens of the draft model, some of them wrong.
    fn draft(&self, step: &mut StepBuffers<'_>, owner: &impl Fn(u32) -> Expected) {
        for at in 0..step.header[header::NUM_SAMPLED] as usize {
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
        let [tokens, pages, feeds, decodes, pooled_rows, pooled_tokens] = [
            header::NUM_TOKENS,
            header::NUM_PAGES,
            header::NUM_FEEDS,
            header::NUM_DECODE_ROWS,
            header::NUM_POOLED_ROWS,
            header::NUM_POOLED_TOKENS,
        ]
        .map(|at| step.header[at] as usize);
        assert_eq!(step.query_start[rows.len()] as usize, tokens);
        let last_table = (self.windows.len() - 1) * (self.layout.max_rows() + 1);
        assert_eq!(step.page_indptr[last_table + rows.len()] as usize, pages);
        assert!(pooled_rows == 0 || step.pool_start[pooled_rows] as usize == pooled_tokens);
        let longest_query = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
        assert_eq!(step.header[header::MAX_QUERY_LENGTH] as usize, longest_query);
        let planned = rows.iter().map(|row| row.length + moved(step, row.number, &self.accepted));
        assert_eq!(step.header[header::MAX_KV_LENGTH] as usize, planned.max().unwrap_or(0));
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

    /// Moves the rows back whose sequences had fewer right drafts than they assume.
    fn move_rows(&mut self, step: &mut StepBuffers<'_>) {
        let [rows, sampled] = [header::NUM_ROWS, header::NUM_SAMPLED].map(|at| step.header[at] as usize);
        let assuming = (0..rows).filter(|row| step.assumed_drafts[*row] > 0).collect::<Vec<_>>();
        assert_eq!(step.header[header::NUM_MOVED_ROWS] as usize, assuming.len());
        for row in assuming {
            let by = moved(step, row, &self.accepted);
            self.assuming += 1;
            self.moved += u64::from(by > 0);
            let pages = &step.page_indices[step.page_indptr[row] as usize..];
            let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
            let rotation = self.rotation(&step.positions[tokens.clone()]);
            for token in tokens {
                let position = step.positions[token] as usize - rotation - by;
                let page = pages[position / self.block_size] as usize;
                step.positions[token] = (rotation + position) as i32;
                step.slot_mapping[token] = (page * self.block_size + position % self.block_size) as i32;
            }
            step.kv_length[row] -= by as i32;
            let at = step.sample_rows[..sampled].iter().position(|at| *at as usize == row).unwrap();
            step.sample_position[at] -= by as i64;
        }
    }
}

/// The sum of the states that a row wants, if it is the `at`th that pools.
fn pool(step: &StepBuffers<'_>, row: &Row<'_>, chains: &[u64], at: usize) -> Option<[f32; 2]> {
    if at >= step.header[header::NUM_POOLED_ROWS] as usize {
        return None;
    }
    let wanted = &step.pool_token[step.pool_start[at] as usize..step.pool_start[at + 1] as usize];
    let pools = wanted.last() == Some(&(row.tokens.end as i32 - 1));
    pools.then(|| sum(wanted.iter().map(|token| state(chains[*token as usize]))))
}

/// The scores of a row's prompt tokens, whose logits are those from the `first` on.
fn score_prompt(step: &StepBuffers<'_>, row: &Row<'_>, chains: &[u64], first: usize) -> Vec<f32> {
    let wanted = step.prompt_token[..step.header[header::NUM_PROMPT_LOGITS] as usize].iter().skip(first);
    let own = wanted.take_while(|token| row.tokens.contains(&(**token as usize)));
    let scores: Vec<f32> = own
        .zip(&step.prompt_target[first..])
        .map(|(token, target)| {
            let position = step.positions[*token as usize] as usize - row.rotation;
            assert_eq!(*target as u32, row.expected.tokens[position + 1], "behind position {position}");
            score(chains[*token as usize], *target as u32)
        })
        .collect();
    assert!(scores.is_empty() || row.expected.submit.extensions.has::<PromptLogProbsExtension>());
    scores
}

/// The log-probabilities of sampled tokens, where a row wants any.
fn logprobs(step: &StepBuffers<'_>, tokens: &[i32]) -> Option<Vec<f32>> {
    if step.header[header::NUM_LOGPROBS_ROWS] == 0 {
        return None;
    }
    let place = |(logit, token): (usize, &i32)| {
        let row = step.logit_row[logit] as usize;
        let position = step.sample_position[row] as usize + logit - step.logit_start[row] as usize;
        logprob(*token as u32, position)
    };
    Some(tokens.iter().enumerate().map(place).collect())
}
