//! `commit`: take the tokens of the oldest step in flight.
//!
//! ```text
//!   for each row:  void (its sequence has ended or was preempted)   its tokens are dropped
//!                  a chunk of a prompt                              nothing: its blocks are known since it was planned
//!                  with results of features                         they are taken; without them the request ends
//!                  the end of a prompt that no token follows        the request ends with what its features answer
//!                  a token that was known meanwhile                 it is dropped
//!                  sampled tokens: one, and one more for each       append, test for the end, send to the detokenizer;
//!                  draft before it that was right                   blocks of wrong drafts go back
//! ```
//!
//! O(rows + tokens), besides the blocks of what ends; one message to the detokenizer.

use super::Steps;
use super::buffers::StepBuffers;
use super::proposer::DraftedRow;
use super::rows::{Output, RowRecord, StepRecord};
use crate::features::row_feature::{NOT_FINITE, NewToken, Who};
use crate::lifecycle::Lifecycle;
use crate::queue::requests::Taken;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, TokensRef};

/// Why a request ends with its newest token, and the stop token if it was one.
type End = (FinishReason, Option<u32>);

/// What features have of a row in the results of its step.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    own: &'a [Output],
    results: &'a StepBuffers<'a>,
}

impl Steps {
    /// The oldest step in flight, if these are its results; else it stays in flight.
    pub fn land_checked(&mut self, results: &StepBuffers<'_>) -> Result<StepRecord> {
        let record = self.land()?;
        match check_results(&record, results) {
            Ok(()) => Ok(record),
            Err(error) => {
                self.put_back(record);
                Err(error)
            }
        }
    }

    /// Takes the tokens of a step's rows; returns how many drafts were right. `failed` are the logits of rows that could
    /// not be sampled from, ascending, and why.
    pub fn commit_rows(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        record: &StepRecord,
        results: &StepBuffers<'_>,
        failed: &[(usize, String)],
    ) -> usize {
        let mut sampled = &results.sampled_tokens[..record.num_logits];
        let (mut counts, mut logit, mut accepted) = (results.sampled_counts.iter(), 0, 0);
        let mut outputs = &record.outputs[..];
        for (at, row) in record.rows.iter().enumerate() {
            let tokens = match row.samples {
                true => {
                    let (tokens, rest) = sampled.split_at(row.drafts as usize + 1);
                    sampled = rest;
                    &tokens[..counts.next().map_or(1, |count| *count as usize)]
                }
                false => &[],
            };
            let (own, others) =
                outputs.split_at(outputs.iter().take_while(|output| output.row == at).count());
            outputs = others;
            let own = Outputs { own, results };
            let fault = own.own.iter().find_map(|output| lifecycle.features.fault(output, results));
            if self.table.is_current(row.slot, row.generation) {
                let broken = failed.binary_search_by_key(&logit, |(logit, _)| *logit);
                let why = match broken {
                    Ok(at) if row.samples => Some(&*failed[at].1),
                    _ => None,
                };
                match fault.or(why) {
                    Some(why) => {
                        lifecycle.finish_failed(kv, self, self.table.request[row.slot as usize], why);
                    }
                    None => accepted += self.commit_row(kv, lifecycle, row, tokens, own),
                }
            }
            // A row that found no token to sample has computed nothing that others may build on.
            if row.publishes && (fault.is_some() || tokens.first().is_some_and(|token| *token < 0)) {
                self.retract(kv, lifecycle, record);
            }
            logit += if row.samples { row.drafts as usize + 1 } else { 0 };
        }
        accepted
    }

    /// Ends the requests of a step that failed; returns how many. Those of other steps that may have built on it begin
    /// again.
    pub fn fail(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        record: &StepRecord,
        why: &str,
    ) -> usize {
        let mut ended = 0;
        for row in &record.rows {
            if self.table.is_current(row.slot, row.generation) {
                lifecycle.finish_failed(kv, self, self.table.request[row.slot as usize], why);
                ended += 1;
            }
        }
        self.retract(kv, lifecycle, record);
        ended
    }

    /// Returns how many drafts were right.
    fn commit_row(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        row: &RowRecord,
        sampled: &[i32],
        outputs: Outputs<'_>,
    ) -> usize {
        let at = row.slot as usize;
        if !outputs.own.is_empty() {
            let id = self.table.request[at];
            let who = Who { id, key: lifecycle.requests.get(id).key };
            for output in outputs.own {
                lifecycle.features.take(who, output, outputs.results, &mut lifecycle.outbox);
            }
            lifecycle.requests.reuse(id, lifecycle.features.reusable(id));
        }
        let progress = &mut self.table.progress[at];
        progress.committed += row.count - row.drafts;
        progress.planned -= row.drafts;
        progress.drafted -= row.drafts;
        let right = match row {
            RowRecord { samples: true, .. } if progress.settled > 0 => {
                self.drop_sample(kv, lifecycle, row.slot, sampled)
            }
            RowRecord { samples: true, .. } => self.append(kv, lifecycle, row, sampled, outputs),
            RowRecord { completes: true, .. } => self.conclude(kv, lifecycle, row.slot),
            _ => 0,
        };
        if row.drafts > 0 {
            self.accept(row.slot, right);
        }
        right
    }

    /// Ends a request that no tokens follow, with the answer of its features; it has no drafts.
    fn conclude(&mut self, kv: &mut KvAllocator, lifecycle: &mut Lifecycle, slot: u32) -> usize {
        let id = self.table.request[slot as usize];
        self.table.progress[slot as usize].pending -= 1;
        let Lifecycle { features, requests, outbox, .. } = lifecycle;
        match features.conclude(id, requests.get(id), outbox) {
            None => lifecycle.finish(kv, self, id, FinishReason::Length),
            Some(Ok(())) => lifecycle.finish(kv, self, id, FinishReason::Stop),
            Some(Err(why)) => lifecycle.finish_failed(kv, self, id, why),
        }
        0
    }

    /// Drops what a row sampled where its token was known meanwhile. One that could sample none has computed nothing that
    /// may be built on.
    fn drop_sample(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        slot: u32,
        sampled: &[i32],
    ) -> usize {
        self.table.progress[slot as usize].settled -= 1;
        if sampled.iter().any(|token| *token < 0) {
            let id = self.table.request[slot as usize];
            lifecycle.finish_failed(kv, self, id, NOT_FINITE);
        }
        0
    }

    /// Appends what a row sampled to its sequence, accounts for it and sends it. Returns how many drafts were right.
    fn append(
        &mut self,
        kv: &mut KvAllocator,
        lifecycle: &mut Lifecycle,
        row: &RowRecord,
        sampled: &[i32],
        outputs: Outputs<'_>,
    ) -> usize {
        let at = row.slot as usize;
        let request = self.table.request[at];
        self.table.progress[at].pending -= 1;
        let (right, last) = self.take_tokens(lifecycle, row.slot, sampled);
        let (certain, verdict) = match last {
            Taken::Goes => self.take_certain(lifecycle, row.slot),
            other => (0, other),
        };
        let taken = right + certain;
        let end = match verdict {
            Taken::Ends(reason, stop_token) => Some((reason, stop_token)),
            Taken::Goes | Taken::GivenBack => None,
        };
        lifecycle.queue.charge(self.table.tenant[at], taken as u64);
        lifecycle.counters.completion_tokens += taken as u64;
        let tokens = &self.table.tokens[at];
        let (before, new) = tokens.split_at(tokens.len() - taken);
        let known = before.len() as u32;
        let drafted = DraftedRow { row, known, sampled: sampled.len(), taken: right };
        let (accepted, rejected) = self.proposer.commit_row(&drafted, new);
        lifecycle.requests.count_drafts(request, accepted, rejected);
        let failed = matches!(end, Some((FinishReason::Error, _)));
        lifecycle.explain(request, failed.then_some(NOT_FINITE));
        if taken > 0 || end.is_some() {
            self.send_row(lifecycle, row.slot, taken, end, outputs);
        }
        match end {
            Some((reason, _)) => lifecycle.end(kv, self, request, reason),
            // Its last token has to be computed once more, and a step in flight may build on the one given back.
            None if last == Taken::GivenBack && taken == 0 => lifecycle.preempt(kv, self, row.slot),
            None if row.drafts > 0 => self.release_draft_blocks(kv, row.slot),
            None => {}
        }
        right.saturating_sub(1)
    }

    /// Appends sampled tokens to a sequence, up to the first that ends its request or is refused: how many were taken,
    /// and what becomes of the request with the last that was looked at.
    fn take_tokens(&mut self, lifecycle: &mut Lifecycle, slot: u32, sampled: &[i32]) -> (usize, Taken) {
        let at = slot as usize;
        let id = self.table.request[at];
        let mut taken = 0;
        for &token in sampled {
            let Ok(token) = u32::try_from(token) else {
                let reason = match lifecycle.features.leaves_none(id) {
                    true => FinishReason::Refused,
                    false => FinishReason::Error,
                };
                return (taken, Taken::Ends(reason, None));
            };
            let request = lifecycle.requests.get(id);
            let progress = &mut self.table.progress[at];
            let known = progress.known + 1;
            let generated = known - request.prompt_length;
            let left = request.limit - known;
            let new = NewToken { request: id, token, generated, left, nth: taken };
            let verdict = match lifecycle.features.on_token(&new) {
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
            self.table.tokens[at].push(token);
            lifecycle.stamp_token(id, generated);
            if verdict != Taken::Goes {
                return (taken, verdict);
            }
        }
        (taken, Taken::Goes)
    }

    /// Appends the tokens that are certain without being sampled; a step in flight that samples one of them samples for
    /// nothing. How many they are, and what becomes of the request.
    fn take_certain(&mut self, lifecycle: &mut Lifecycle, slot: u32) -> (usize, Taken) {
        let at = slot as usize;
        let id = self.table.request[at];
        let mut taken = 0;
        while let Some(token) = lifecycle.features.certain(id) {
            match self.take_tokens(lifecycle, slot, &[token as i32]) {
                // Another will be certain in its place.
                (_, Taken::GivenBack) => break,
                (_, verdict) => {
                    taken += 1;
                    lifecycle.counters.certain_tokens += 1;
                    let progress = &mut self.table.progress[at];
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
    fn send_row(
        &self,
        lifecycle: &mut Lifecycle,
        slot: u32,
        taken: usize,
        end: Option<End>,
        outputs: Outputs<'_>,
    ) {
        let tokens = &self.table.tokens[slot as usize];
        let id = self.table.request[slot as usize];
        let row = TokensRef {
            finish: end.map(|end| end.0),
            stop_token: end.and_then(|end| end.1),
            committed_ns: lifecycle.now_ns,
            ..lifecycle.requests.tell(id, &tokens[tokens.len() - taken..])
        };
        for output in outputs.own {
            lifecycle.features.append(id, output, outputs.results, taken, &mut lifecycle.outbox);
        }
        lifecycle.outbox.row(row);
    }
}

fn check_results(record: &StepRecord, results: &StepBuffers<'_>) -> Result<()> {
    let invalid = |message: String| Err(Error::InvalidArgument(message));
    let number = results.header.step_id;
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
