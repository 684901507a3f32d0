//! `commit`: take the tokens of the oldest step in flight.
//!
//! ```text
//!   for each row:  void (its sequence has ended or was preempted)   its tokens are dropped
//!                  a chunk of a prompt                              nothing: its blocks are known since it was planned
//!                  with logits of a prompt                          their log-probabilities go to the detokenizer
//!                  the end of a prompt that no token follows        its vector, if it pools, does too, and it ends
//!                  a token that was known meanwhile                 it is dropped
//!                  sampled tokens: one, and one more for each       append, test for the end, send to the detokenizer;
//!                  draft before it that was right                   blocks of wrong drafts go back
//! ```
//!
//! O(rows + tokens), besides the blocks of what ends; one message to the detokenizer.

use super::buffers::{StepBuffers, header};
use super::{RowRecord, StepRecord};
use crate::features::logprobs::LogProbs;
use crate::features::{DraftedRow, NewToken};
use crate::outbox::OutRow;
use crate::planner::Planner;
use crate::queue::requests::Taken;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, Message, Pooled};

/// Why a request ends for which no token could be sampled.
const NOT_FINITE: &str = "the model's logits are not finite, so no token can be chosen";

/// Why a request ends with its newest token, and the stop token if it was one.
type End = (FinishReason, Option<u32>);

/// The step's log-probabilities, and the first logit of a row among them.
type RowLogProbs<'a> = Option<(LogProbs<'a>, usize)>;

impl Planner {
    /// The oldest step in flight, if these are its results; else it stays in flight.
    pub(crate) fn land_checked(&mut self, results: &StepBuffers<'_>) -> Result<StepRecord> {
        let record = self.steps.land()?;
        match check_results(&record, results) {
            Ok(()) => Ok(record),
            Err(error) => {
                self.steps.put_back(record);
                Err(error)
            }
        }
    }

    /// Takes the tokens of a step's rows; returns how many drafts were right. `failed` are the logits of rows whose logits
    /// processors failed, ascending, and why.
    pub(crate) fn commit_rows(
        &mut self,
        kv: &mut KvAllocator,
        record: &StepRecord,
        results: &StepBuffers<'_>,
        failed: &[(usize, String)],
    ) -> usize {
        let mut sampled = &results.sampled_tokens[..record.num_logits];
        let (mut counts, mut logit, mut accepted, mut prompt_logit) =
            (results.sampled_counts.iter(), 0, 0, 0);
        let mut vectors = results.pooled.chunks(self.layout.hidden_size().max(1));
        let logprobs = record.logprobs.map(|_| LogProbs::of_answers(results));
        let prompt_logprobs = LogProbs::of_prompts(results);
        for row in &record.rows {
            let tokens = match row.samples {
                true => {
                    let (tokens, rest) = sampled.split_at(row.drafts as usize + 1);
                    sampled = rest;
                    &tokens[..counts.next().map_or(1, |count| *count as usize)]
                }
                false => &[],
            };
            let states = if row.pooled { vectors.next().unwrap_or_default() } else { &[] };
            let scored = prompt_logit..prompt_logit + row.scored as usize;
            prompt_logit = scored.end;
            let infinite = prompt_logprobs.chosen[scored.clone()].iter().any(|number| !number.is_finite());
            let scores = (prompt_logprobs, scored);
            if self.steps.table.is_current(row.slot, row.generation) {
                let id = self.steps.table.request[row.slot as usize];
                self.features.pooling.add(id, states);
                let broken = failed.binary_search_by_key(&logit, |(logit, _)| *logit);
                if infinite {
                    self.finish_failed(kv, id, NOT_FINITE);
                } else if let (Ok(at), true) = (broken, row.samples) {
                    self.finish_failed(kv, id, &failed[at].1);
                } else {
                    self.send_scores(id, scores);
                    let logprobs = logprobs.map(|logprobs| (logprobs, logit));
                    accepted += self.commit_row(kv, row, tokens, logprobs);
                }
            }
            // A row that found no token to sample has computed nothing that others may build on.
            let failed = || {
                infinite
                    || tokens.first().is_some_and(|token| *token < 0)
                    || states.iter().any(|number| !number.is_finite())
            };
            if row.publishes && failed() {
                self.retract(kv, record);
            }
            logit += if row.samples { row.drafts as usize + 1 } else { 0 };
        }
        accepted
    }

    /// Returns how many drafts were right.
    fn commit_row(
        &mut self,
        kv: &mut KvAllocator,
        row: &RowRecord,
        sampled: &[i32],
        logprobs: RowLogProbs<'_>,
    ) -> usize {
        let progress = &mut self.steps.table.progress[row.slot as usize];
        progress.committed += row.count - row.drafts;
        progress.planned -= row.drafts;
        progress.drafted -= row.drafts;
        if row.drafts > 0 {
            // At most one row follows drafts in flight, and these are the oldest.
            progress.assumed = 0;
        }
        match row {
            RowRecord { samples: true, .. } if progress.settled > 0 => {
                self.drop_sample(kv, row.slot, sampled)
            }
            RowRecord { samples: true, .. } => self.append(kv, row, sampled, logprobs),
            RowRecord { completes: true, .. } => self.deliver(kv, row.slot),
            _ => 0,
        }
    }

    /// Sends the log-probabilities of a prompt that a row has, which are these of the step's.
    fn send_scores(&mut self, id: RequestId, (logprobs, rows): (LogProbs<'_>, std::ops::Range<usize>)) {
        if rows.is_empty() {
            return;
        }
        let who = (id, self.requests.get(id).key);
        self.features.prompts.take(who, &logprobs, (rows.start, rows.len()), &mut self.outbox);
        self.requests.reuse(id, self.features.prompts.reusable(id));
    }

    /// Ends a request that no tokens follow, with its vector if it pools; it has no drafts.
    fn deliver(&mut self, kv: &mut KvAllocator, slot: u32) -> usize {
        let id = self.steps.table.request[slot as usize];
        self.steps.table.progress[slot as usize].pending -= 1;
        let request = self.requests.get(id);
        match self.features.pooling.vector(id, request.prompt_length) {
            None => self.finish(kv, id, FinishReason::Length),
            Some(None) => self.finish_failed(kv, id, "the model's hidden states are not finite"),
            Some(Some(vector)) => {
                // Bytes can always be encoded.
                let _ = self.outbox.beside(&Message::Pooled(Pooled { key: request.key, vector }));
                self.finish(kv, id, FinishReason::Stop);
            }
        }
        0
    }

    /// Drops what a row sampled where its token was known meanwhile. One that could sample none has computed nothing that
    /// may be built on.
    fn drop_sample(&mut self, kv: &mut KvAllocator, slot: u32, sampled: &[i32]) -> usize {
        self.steps.table.progress[slot as usize].settled -= 1;
        if sampled.iter().any(|token| *token < 0) {
            let id = self.steps.table.request[slot as usize];
            self.finish_failed(kv, id, NOT_FINITE);
        }
        0
    }

    /// Appends what a row sampled to its sequence, accounts for it and sends it. Returns how many drafts were right.
    fn append(
        &mut self,
        kv: &mut KvAllocator,
        row: &RowRecord,
        sampled: &[i32],
        logprobs: RowLogProbs<'_>,
    ) -> usize {
        let at = row.slot as usize;
        let request = self.steps.table.request[at];
        self.steps.table.progress[at].pending -= 1;
        let (right, last) = self.take_tokens(row.slot, sampled);
        let (certain, verdict) = match last {
            Taken::Goes => self.take_certain(row.slot),
            other => (0, other),
        };
        let taken = right + certain;
        let end = match verdict {
            Taken::Ends(reason, stop_token) => Some((reason, stop_token)),
            Taken::Goes | Taken::GivenBack => None,
        };
        self.queue.charge(self.steps.table.tenant[at], taken as u64);
        self.counters.completion_tokens += taken as u64;
        let tokens = &self.steps.table.tokens[at];
        let (before, new) = tokens.split_at(tokens.len() - taken);
        let known = before.len() as u32;
        let drafted = DraftedRow { row, request, known, sampled: sampled.len(), taken: right };
        self.features.commit_row(&drafted, new);
        let failed = matches!(end, Some((FinishReason::Error, _)));
        if let Some(text) = self.features.complaint(request).or_else(|| failed.then(|| NOT_FINITE.into())) {
            self.tell(self.requests.get(request).key, text);
        }
        if taken > 0 || end.is_some() {
            self.send_row(row.slot, taken, end, logprobs);
        }
        match end {
            Some((reason, _)) => self.end(kv, request, reason),
            // Its last token has to be computed once more, and a step in flight may build on the one given back.
            None if last == Taken::GivenBack && taken == 0 => self.preempt(kv, row.slot),
            None if row.drafts > 0 => self.steps.release_draft_blocks(kv, row.slot),
            None => {}
        }
        right.saturating_sub(1)
    }

    /// Appends sampled tokens to a sequence, up to the first that ends its request or is refused: how many were taken,
    /// and what becomes of the request with the last that was looked at.
    fn take_tokens(&mut self, slot: u32, sampled: &[i32]) -> (usize, Taken) {
        let at = slot as usize;
        let id = self.steps.table.request[at];
        let mut taken = 0;
        for &token in sampled {
            let Ok(token) = u32::try_from(token) else {
                return (taken, Taken::Ends(FinishReason::Error, None));
            };
            let request = self.requests.get(id);
            let progress = &mut self.steps.table.progress[at];
            let known = progress.known + 1;
            let generated = known - request.prompt_length;
            let left = request.limit - known;
            let verdict =
                match self.features.on_token(&NewToken { request: id, token, generated, left, nth: taken }) {
                    Taken::Goes => request.verdict(token, known),
                    other => other,
                };
            if verdict == Taken::GivenBack {
                return (taken, verdict);
            }
            if taken > 0 {
                // The draft before it was right, and so are its keys and values.
                progress.committed += 1;
                progress.planned += 1;
            }
            progress.known = known;
            taken += 1;
            self.steps.table.tokens[at].push(token);
            let last_ns = self.requests.stamp_token(id, self.now_ns);
            self.distributions.token(self.requests.get(id), generated, last_ns, self.now_ns);
            if verdict != Taken::Goes {
                return (taken, verdict);
            }
        }
        (taken, Taken::Goes)
    }

    /// Appends the tokens that are certain without being sampled; a step in flight that samples one of them samples for
    /// nothing. How many they are, and what becomes of the request.
    fn take_certain(&mut self, slot: u32) -> (usize, Taken) {
        let at = slot as usize;
        let id = self.steps.table.request[at];
        let mut taken = 0;
        while let Some(token) = self.features.certain(id) {
            match self.take_tokens(slot, &[token as i32]) {
                // Another will be certain in its place.
                (_, Taken::GivenBack) => break,
                (_, verdict) => {
                    taken += 1;
                    self.counters.certain_tokens += 1;
                    let progress = &mut self.steps.table.progress[at];
                    if progress.pending > 0 {
                        progress.pending -= 1;
                        progress.settled += 1;
                    }
                    if verdict != Taken::Goes {
                        return (taken, verdict);
                    }
                }
            }
        }
        (taken, Taken::Goes)
    }

    /// Sends the last `taken` tokens of a sequence to the detokenizer, and its end.
    fn send_row(&mut self, slot: u32, taken: usize, end: Option<End>, logprobs: RowLogProbs<'_>) {
        let tokens = &self.steps.table.tokens[slot as usize];
        let id = self.steps.table.request[slot as usize];
        let row = self.out_row(id);
        let first = tokens.len() - taken == self.requests.get(id).prompt_length as usize;
        let row = OutRow {
            finish: end.map(|end| end.0),
            stop_token: end.and_then(|end| end.1),
            queued_us: if first || end.is_some() { row.queued_us } else { 0 },
            ..row
        };
        if let Some((logprobs, first)) = logprobs {
            self.features.logprobs.append(id, &logprobs, first, taken, self.outbox.logprobs());
        }
        self.outbox.row(row, &tokens[tokens.len() - taken..]);
    }
}

fn check_results(record: &StepRecord, results: &StepBuffers<'_>) -> Result<()> {
    let invalid = |message: String| Err(Error::InvalidArgument(message));
    let number = results.header[header::STEP_ID];
    if number != record.number as i64 {
        return invalid(format!("the oldest step in flight is number {}, not {number}", record.number));
    }
    let sampling = record.rows.iter().filter(|row| row.samples);
    let mut counts = sampling.zip(results.sampled_counts.iter());
    match counts.find(|(row, count)| !(1..=row.drafts as i32 + 1).contains(count)) {
        Some((row, count)) => invalid(format!("a row with {} drafts has no {count} tokens", row.drafts)),
        None => Ok(()),
    }
}
