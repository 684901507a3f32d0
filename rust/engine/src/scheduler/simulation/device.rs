//! The device.

use std::collections::VecDeque;

use super::expected::{Expected, score, state, sum};
use super::model::{VOCABULARY, extend, logprob};
use super::outcome::{Outcome, RowTrace};
use crate::scheduler::step::buffers::{StepBuffers, StepLayout, header};

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

/// The tokens whose states the `at`th row that pools wants, if that is the row that ends with token `last`.
fn pooled_tokens_of<'a>(step: &'a StepBuffers<'_>, at: usize, rows: usize, last: usize) -> &'a [i32] {
    if at >= rows {
        return &[];
    }
    let tokens = &step.pool_token[step.pool_start[at] as usize..step.pool_start[at + 1] as usize];
    if tokens.last() == Some(&(last as i32)) { tokens } else { &[] }
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
    pub(super) fn run(&mut self, step: StepBuffers<'_>, owner: impl Fn(u32) -> Expected) {
        let rows = step.header[header::NUM_ROWS] as usize;
        let [tokens, sampled, pages, feeds] =
            [header::NUM_TOKENS, header::NUM_SAMPLED, header::NUM_PAGES, header::NUM_FEEDS]
                .map(|at| step.header[at] as usize);
        assert_eq!(step.query_start[rows] as usize, tokens);
        let tables = self.windows.len();
        assert_eq!(step.page_indptr[(tables - 1) * (self.layout.max_rows() + 1) + rows] as usize, pages);
        for feed in 0..feeds {
            let token = self.last_token[step.feed_sequence[feed] as usize];
            step.token_ids[step.feed_token[feed] as usize] = token as i32;
        }
        let mut step = step;
        self.move_rows(&mut step, rows);
        let fed = step.feed_sequence[..feeds].to_vec();
        let (mut longest_query, mut longest_kv, mut prefills) = (0, 0, false);
        let mut chains = vec![0; tokens];
        let mut traces = Vec::new();
        let [pooled_rows, pooled_tokens] =
            [header::NUM_POOLED_ROWS, header::NUM_POOLED_TOKENS].map(|at| step.header[at] as usize);
        let mut pooled = Vec::new();
        let prompt_logits = step.header[header::NUM_PROMPT_LOGITS] as usize;
        let mut scores = Vec::new();
        for row in 0..rows {
            let sequence = step.row_sequence[row] as u32;
            let expected = owner(sequence);
            let tokens = step.query_start[row] as usize..step.query_start[row + 1] as usize;
            assert!(!tokens.is_empty());
            let last = tokens.end - 1;
            let (short, rotation) = (self.short_context, self.rotation(&step.positions[tokens.clone()]));
            let length = step.positions[tokens.end - 1] as usize + 1 - rotation;
            assert!(rotation > 0 || short == 0 || length <= short, "short rotations reach so far");
            // Keys of both kinds are never mixed.
            let salt = expected.submit.cache_salt ^ ((rotation as u64) << 32);
            // By table: the tokens before its first page, and its pages.
            let tables: Vec<(usize, &[i32])> = (0..tables)
                .map(|table| {
                    let kept = step.kv_length[table * self.layout.max_rows() + row] as usize;
                    let indptr = &step.page_indptr[table * (self.layout.max_rows() + 1) + row..];
                    let pages = &step.page_indices[indptr[0] as usize..indptr[1] as usize];
                    let most = kept + step.assumed_drafts[row] as usize;
                    let pages_needed = kept.div_ceil(self.block_size)..=most.div_ceil(self.block_size);
                    assert!(pages_needed.contains(&pages.len()), "pages cover the row's KV");
                    assert!((length - kept).is_multiple_of(self.block_size));
                    let seen = self.windows[table]
                        .map_or(0, |window| (length - tokens.len() + 1).saturating_sub(window));
                    assert!(length - kept <= seen, "pages begin before what the row sees");
                    assert!(seen - (length - kept) < self.block_size, "and not earlier than they must");
                    (length - kept, pages)
                })
                .collect();
            prefills |= row >= step.header[header::NUM_DECODE_ROWS] as usize;
            assert!(!prefills || !fed.contains(&step.row_sequence[row]), "decodes come first");
            longest_query = longest_query.max(tokens.len());
            longest_kv = longest_kv.max(length + moved(&step, row, &self.accepted));
            let cell = |table: usize, position: usize| {
                let (before, pages) = tables[table];
                let page = pages[(position - before) / self.block_size] as usize;
                page * self.block_size + position % self.block_size
            };
            let start = length - tokens.len();
            let sampling = step.sample_rows[..sampled].iter().position(|at| *at as usize == row);
            let drafts =
                sampling.map_or(0, |at| step.logit_start[at + 1] - step.logit_start[at] - 1) as usize;
            let known = length - drafts;
            let from_device = sampling.map_or(0, |at| step.device_drafts[at]) as usize;
            assert!(from_device == 0 || from_device == drafts);
            for position in length - from_device..length {
                let wrong = u32::from(expected.misleads(position));
                let draft = (expected.tokens[position] + wrong) % VOCABULARY as u32;
                let place = &mut step.token_ids[tokens.end - (length - position)];
                assert_eq!(std::mem::replace(place, draft as i32), 0);
            }
            let mut written = Vec::new();
            let mut chain = expected.tokens[..start].iter().fold(0, |chain, token| extend(chain, *token));
            for (at, position) in tokens.zip(start..length) {
                let token = step.token_ids[at] as u32;
                assert!(position >= known || token == expected.tokens[position], "token at {position}");
                assert_eq!(step.positions[at] as usize, rotation + position);
                chain = extend(chain, token);
                chains[at] = chain;
                for table in 0..tables.len() {
                    let cell = cell(table, position);
                    assert_eq!(step.slot_mapping[table * self.layout.max_tokens() + at] as usize, cell);
                    self.cells[cell] = Some((chain, salt));
                    written.push(cell);
                }
            }
            // Each token sees those of its window in every table.
            let mut prefixes = Vec::new();
            for &token in &expected.tokens[..known] {
                prefixes.push(extend(prefixes.last().copied().unwrap_or(0), token));
            }
            let mut read = Vec::new();
            for (table, window) in self.windows.iter().enumerate() {
                let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
                for (position, prefix) in prefixes.iter().enumerate().skip(first) {
                    let cell = cell(table, position);
                    assert_eq!(self.cells[cell], Some((*prefix, salt)), "KV at position {position}");
                    if position < start {
                        read.push(cell);
                    }
                }
            }
            let logits =
                sampling.map_or(0..0, |at| step.logit_start[at] as usize..step.logit_start[at + 1] as usize);
            let before = pooled.len();
            let states = pooled_tokens_of(&step, before / 2, pooled_rows, last);
            if !states.is_empty() {
                pooled.extend(sum(states.iter().map(|token| state(chains[*token as usize]))));
            }
            let before_scores = scores.len();
            let inside = step.query_start[row]..step.query_start[row + 1];
            let own = step.prompt_token[..prompt_logits].iter().skip(before_scores);
            for (at, token) in own.take_while(|token| inside.contains(token)).enumerate() {
                let position = step.positions[*token as usize] as usize - rotation;
                let target = step.prompt_target[before_scores + at];
                assert_eq!(target as u32, expected.tokens[position + 1], "behind position {position}");
                scores.push(score(chains[*token as usize], target as u32));
            }
            assert!(scores.len() == before_scores || expected.submit.prompt_logprobs.is_some());
            let (pooled, scored) = (before..pooled.len(), before_scores..scores.len());
            traces.push(RowTrace { read, written, logits, pooled, scored });
        }
        assert_eq!(
            (step.header[header::MAX_QUERY_LENGTH] as usize, step.header[header::MAX_KV_LENGTH] as usize),
            (longest_query, longest_kv)
        );
        assert_eq!(pooled.len(), 2 * pooled_rows);
        assert_eq!(scores.len(), prompt_logits);
        assert!(pooled_rows == 0 || step.pool_start[pooled_rows] as usize == pooled_tokens);
        let (tokens, counts) = self.sample(&step, &chains, owner);
        let logprobs = (step.header[header::NUM_LOGPROBS_ROWS] > 0).then(|| {
            let place = |logit: usize| {
                let row = step.logit_row[logit] as usize;
                let position = step.sample_position[row] as usize + logit - step.logit_start[row] as usize;
                logprob(tokens[logit] as u32, position)
            };
            (0..tokens.len()).map(place).collect()
        });
        let prompt_logprobs = scores;
        self.results.push_back(Outcome { tokens, counts, logprobs, pooled, prompt_logprobs, rows: traces });
    }

    /// Moves the rows back whose sequences had fewer right drafts than they assume.
    fn move_rows(&mut self, step: &mut StepBuffers<'_>, rows: usize) {
        let sampled = step.header[header::NUM_SAMPLED] as usize;
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
