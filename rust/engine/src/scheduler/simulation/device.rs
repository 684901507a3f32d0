//! The device, and the output that a request must have.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::grammar::Threes;
use super::model::{STOP_TOKEN, VOCABULARY, choose, extend, logprob, mix};
use super::penalties::{digest, recount};
use crate::grammar::Grammar;
use crate::messages::{FinishReason, Pooling, Submit};
use crate::scheduler::step::buffers::{StepBuffers, StepLayout, header};

/// A request's features, and the tokens it would have if nothing ever ended it.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) submit: Submit,
    pub(super) tokens: Vec<u32>,
}

impl Expected {
    pub(super) fn new(submit: Submit, prompt: &[u32], resumed: usize, context: usize) -> Self {
        let mut tokens = prompt.to_vec();
        let mut chain = tokens.iter().fold(0, |chain, token| extend(chain, *token));
        let mut grammar = submit.grammar.as_ref().map(|length| Threes::new(length[0].into()));
        for position in prompt.len()..prompt.len() + submit.max_tokens as usize + 8 {
            let free = grammar.as_ref().is_none_or(Grammar::is_terminated);
            let early = position - prompt.len() + 1 < submit.min_tokens as usize;
            let allows = |token| {
                let follows = grammar.as_ref().is_some_and(|grammar| grammar.allows(token));
                free || (follows && !(early && token == STOP_TOKEN))
            };
            let penalties = recount(&submit, prompt, &tokens[prompt.len()..]);
            let penalized = mix(chain, digest(penalties.into_iter()));
            let token = choose(penalized, submit.sampling.seed, position as u64, allows);
            grammar.as_mut().map(|grammar| grammar.advance(token));
            tokens.push(token);
            chain = extend(chain, token);
        }
        let mut expected = Self { submit, tokens };
        // A request that is submitted again had not ended.
        let known = (prompt.len() + resumed).min(expected.end(context).0.max(prompt.len()));
        let words = expected.tokens[..known].iter().flat_map(|token| token.to_le_bytes());
        expected.submit.tokens = words.collect();
        expected
    }

    /// Whether the draft model is wrong at this position: seldom or often, as the request goes.
    fn misleads(&self, position: usize) -> bool {
        let one_in = 1 + self.submit.key.request % 5;
        mix(self.submit.key.request, position as u64).is_multiple_of(one_in + 1)
    }

    /// The length at which the request ends by itself, and why.
    pub(super) fn end(&self, context: usize) -> (usize, FinishReason) {
        let prompt = self.submit.prompt_length as usize;
        if self.submit.pooling.is_some() {
            return (prompt, FinishReason::Stop);
        }
        if self.submit.max_tokens == 0 {
            return (prompt, FinishReason::Length);
        }
        let limit = (prompt + self.submit.max_tokens as usize).min(context);
        if let Some(length) = &self.submit.grammar {
            let answer = self.tokens[prompt..].iter().position(|token| *token == STOP_TOKEN);
            let length = prompt + answer.map_or(usize::MAX / 2, |at| at + 1).min(length[0].into());
            let reason = if length <= limit { FinishReason::Stop } else { FinishReason::Length };
            return (length.min(limit), reason);
        }
        for length in prompt + 1..=limit {
            let stops = self.submit.stop_token_ids.contains(&self.tokens[length - 1]);
            if stops && length - prompt >= self.submit.min_tokens as usize {
                return (length, FinishReason::Stop);
            }
        }
        (limit, FinishReason::Length)
    }
}

/// The stand-in for the hidden state behind a prefix, by its chain: whole numbers, of which sums are exact.
fn state(chain: u64) -> [f32; 2] {
    [(chain % 64) as f32, 1.0]
}

/// The vector of a prompt.
pub(super) fn vector(pooling: Pooling, prompt: &[u32]) -> [f32; 2] {
    let mut chain = 0;
    let states = prompt.iter().map(|token| {
        chain = extend(chain, *token);
        state(chain)
    });
    match pooling {
        Pooling::Last => states.last().unwrap(),
        Pooling::Mean => sum(states).map(|sum| sum / prompt.len() as f32),
    }
}

/// The stand-in for the log-probability of a token of a prompt behind the prefix with this chain.
fn score(chain: u64, target: u32) -> f32 {
    (extend(chain, target) % 4096) as f32
}

/// Those of a prompt, from the second token on.
pub(super) fn scores(prompt: &[u32]) -> Vec<f32> {
    let mut chain = 0;
    let pairs = prompt.windows(2).map(|pair| {
        chain = extend(chain, pair[0]);
        score(chain, pair[1])
    });
    pairs.collect()
}

fn sum(states: impl Iterator<Item = [f32; 2]>) -> [f32; 2] {
    states.fold([0.0; 2], |sum, state| [sum[0] + state[0], sum[1] + state[1]])
}

/// The results of a step.
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
pub(super) struct RowTrace {
    // Where it found the KV before its own tokens, and where it wrote theirs.
    pub(super) read: Vec<usize>,
    pub(super) written: Vec<usize>,
    // Its logits, none if it did not sample.
    pub(super) logits: Range<usize>,
    // Its numbers in `pooled`, none if it did not pool.
    pub(super) pooled: Range<usize>,
    // Its numbers in `prompt_logprobs`.
    pub(super) scored: Range<usize>,
}

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
    fn rotation(&self, positions: &[i32]) -> usize {
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
        spoiled.into_iter().for_each(|cell| self.cells[cell] = None);
    }

    /// Chooses tokens for each sampling row, after the prefixes whose `chains` they are by token of the step, and says
    /// how many of them count.
    fn sample(
        &mut self,
        step: &StepBuffers<'_>,
        chains: &[u64],
        owner: impl Fn(u32) -> Expected,
    ) -> (Vec<i32>, Vec<i32>) {
        let sampled = step.header[header::NUM_SAMPLED] as usize;
        let (mut result, mut counts, mut with_logprobs) = (Vec::new(), Vec::new(), 0);
        for at in 0..sampled {
            let row = step.sample_rows[at] as usize;
            assert_eq!(step.sample_sequence[at], step.row_sequence[row]);
            let expected = owner(step.row_sequence[row] as u32);
            assert_eq!(step.sampling[at], expected.submit.sampling);
            let logits = step.logit_start[at] as usize..step.logit_start[at + 1] as usize;
            let most = expected.submit.logprobs.map_or(-1, i32::from);
            assert!(step.logprobs[logits.clone()].iter().all(|wanted| *wanted == most));
            assert!(i64::from(most) <= step.header[header::MAX_LOGPROBS]);
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
                assert!(mask < 0 || expected.submit.grammar.is_some());
                assert!(i64::from(mask) < step.header[header::NUM_MASKS]);
                let words = step.mask.len() / step.logit_row.len();
                let allows = |token: u32| {
                    mask < 0
                        || step.mask[mask as usize * words + token as usize / 32] >> (token % 32) & 1 == 1
                };
                let after = step.logit_token[logit] as usize;
                assert_eq!(after, step.query_start[row + 1] as usize - 1 - drafts + number);
                let position = step.sample_position[at] as u64 + number as u64;
                let penalties = match step.header[header::NUM_PENALTIES] {
                    0 => 0..0,
                    _ => step.penalty_start[logit] as usize..step.penalty_start[logit + 1] as usize,
                };
                assert!(penalties.end <= step.header[header::NUM_PENALTIES] as usize);
                assert!(penalties.is_empty() || step.header[header::NUM_PENALIZED_ROWS] > 0);
                let penalty = |at: usize| {
                    (step.penalty_token[at] as u32, step.penalty_factor[at], step.penalty_add[at])
                };
                let penalized = mix(chains[after], digest(penalties.map(penalty)));
                let token = choose(penalized, step.sampling[at].seed, position, allows);
                result.push(token as i32);
                if right {
                    count += 1;
                    self.last_token[step.sample_sequence[at] as usize] = token;
                    self.accepted[step.sample_sequence[at] as usize] = count - 1;
                    right = number < drafts && step.token_ids[after + 1] == token as i32;
                }
            }
            counts.push(count);
        }
        let greedy = step.sampling[..sampled].iter().filter(|rules| rules.temperature == 0.0).count();
        assert_eq!(step.header[header::NUM_LOGPROBS_ROWS] as usize, with_logprobs);
        assert_eq!(step.header[header::NUM_GREEDY] as usize, greedy);
        assert_eq!(step.header[header::NUM_LOGITS] as usize, result.len());
        (result, counts)
    }
}
