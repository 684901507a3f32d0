//! `commit`: take the tokens of the oldest step in flight.
//!
//! ```text
//!   for each row:  void (its sequence has ended or was preempted)   its tokens are dropped
//!                  a chunk of a prompt                              nothing: its blocks are known since it was planned
//!                  sampled tokens: one, and one more for each       append, test for the end, tell the detokenizer;
//!                  draft before it that was right                   blocks of wrong drafts go back
//! ```
//!
//! O(rows + tokens), besides the blocks of what ends; one message to the detokenizer.

use crate::error::{Error, Result};
use crate::kv_allocator::KvAllocator;
use crate::messages::{FinishReason, Notice};
use crate::scheduler::features::logprobs::{self, LogProbs};
use crate::scheduler::outbox::OutRow;
use crate::scheduler::planner::{Planner, RowRecord, StepRecord};
use crate::scheduler::queue::requests::Taken;
use crate::telemetry::Stage;

/// Why a request ends with its newest token, and the stop token if it was one.
type End = (FinishReason, Option<u32>);

impl Planner {
    /// Takes the tokens of the oldest step in flight at `now_ns`; returns how many requests ended.
    ///
    /// `sampled` has one token for each of the step's logits, `counts` for each sampling row how many of its tokens
    /// count: those up to and with the first that differs from its draft. A negative token says that the sampler found
    /// none (its logits were not finite): that request ends with an error. Closed (an error) is the detokenizer's
    /// mailbox; the state is whole all the same.
    pub fn commit(
        &mut self,
        kv: &mut KvAllocator,
        sampled: &[i32],
        counts: &[i32],
        now_ns: u64,
    ) -> Result<usize> {
        self.commit_with(kv, sampled, counts, None, now_ns)
    }

    /// [`Self::commit`] of a step that may have rows that want log-probabilities.
    pub fn commit_with(
        &mut self,
        kv: &mut KvAllocator,
        sampled: &[i32],
        counts: &[i32],
        logprobs: Option<LogProbs<'_>>,
        now_ns: u64,
    ) -> Result<usize> {
        let Some(record) = self.in_flight.pop_front() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let checked =
            check_sampled(&record, sampled, counts).and_then(|()| logprobs::check(&record, logprobs));
        if let Err(error) = checked {
            self.in_flight.push_front(record);
            return Err(error);
        }
        self.now_ns = now_ns;
        let before = self.requests.len();
        let mut accepted = 0;
        let (mut sampled, mut counts) = (sampled, counts.iter());
        let mut logit = 0;
        for row in &record.rows {
            let tokens = match row.samples {
                true => {
                    let (tokens, rest) = sampled.split_at(row.drafts as usize + 1);
                    sampled = rest;
                    &tokens[..counts.next().map_or(1, |count| *count as usize)]
                }
                false => &[],
            };
            if self.table.is_current(row.slot, row.generation) {
                accepted += self.commit_row(kv, row, tokens, logprobs.map(|logprobs| (logprobs, logit)));
            }
            // A row that found no token to sample has computed nothing that others may build on.
            if row.publishes && tokens.first().is_some_and(|token| *token < 0) {
                self.retract(kv, &record);
            }
            logit += if row.samples { row.drafts as usize + 1 } else { 0 };
        }
        let ended = before - self.requests.len();
        self.observe_step(&record, accepted, ended);
        self.recycle(record);
        self.flush(Stage::Commit)?;
        Ok(ended)
    }

    /// Returns how many drafts were right.
    fn commit_row(
        &mut self,
        kv: &mut KvAllocator,
        row: &RowRecord,
        sampled: &[i32],
        logprobs: Option<(LogProbs<'_>, usize)>,
    ) -> usize {
        let at = row.slot as usize;
        let progress = &mut self.table.progress[at];
        progress.committed += row.count - row.drafts;
        progress.planned -= row.drafts;
        progress.drafted = 0;
        if row.samples { self.append(kv, row, sampled, logprobs) } else { 0 }
    }

    /// Appends what a row sampled to its sequence and keeps the books of it, with the step's log-probabilities and where
    /// the row's are among them. Returns how many drafts were right.
    fn append(
        &mut self,
        kv: &mut KvAllocator,
        row: &RowRecord,
        sampled: &[i32],
        logprobs: Option<(LogProbs<'_>, usize)>,
    ) -> usize {
        let at = row.slot as usize;
        let id = self.table.request[at];
        self.table.progress[at].pending -= 1;
        let (taken, last) = self.take_tokens(row.slot, sampled);
        let end = match last {
            Taken::Ends(reason, stop_token) => Some((reason, stop_token)),
            Taken::Goes | Taken::GivenBack => None,
        };
        self.tenants.charge(self.table.tenant[at], taken as u64);
        self.counters.completion_tokens += taken as u64;
        self.judge_drafts(row, taken, sampled.len());
        if let Some(text) = self.requests.get_mut(id).complaint.take() {
            let key = self.requests.get(id).key;
            // What cannot be encoded is not told; the request ends all the same.
            let _ = self.outbox.notice(Notice { key, text });
        }
        if taken > 0 || end.is_some() {
            self.tell(row.slot, taken, end, logprobs);
        }
        if let Some(drafting) = &mut self.drafting {
            let tokens = &self.table.tokens[at];
            drafting.speculator.append(row.slot, &tokens[tokens.len() - taken..]);
        }
        match end {
            Some((reason, _)) => self.end(kv, id, reason),
            // Its last token has to be computed once more, and a step in flight may build on the one given back.
            None if last == Taken::GivenBack && taken == 0 => self.preempt(kv, row.slot),
            None if row.drafts > 0 => self.give_back_blocks(kv, row.slot),
            None => {}
        }
        taken.saturating_sub(1)
    }

    /// Takes sampled tokens into a sequence, up to the first that ends its request or is none of it: how many were taken,
    /// and what becomes of the request with the last that was looked at.
    fn take_tokens(&mut self, slot: u32, sampled: &[i32]) -> (usize, Taken) {
        let at = slot as usize;
        let request = self.requests.get_mut(self.table.request[at]);
        let progress = &mut self.table.progress[at];
        let mut taken = 0;
        for &token in sampled {
            let Ok(token) = u32::try_from(token) else {
                return (taken, Taken::Ends(FinishReason::Error, None));
            };
            // What was sampled before the end had begun is worth nothing.
            if request.closing_token().is_some_and(|only| taken > 0 && only != token) {
                break;
            }
            let known = progress.known + 1;
            let verdict = request.take(token, known, progress.limit, &self.end_tokens);
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
            if let Some(penalties) = &mut request.penalties {
                penalties.push(token);
            }
            self.distributions.token(request, known - request.prompt_length, self.now_ns);
            if verdict != Taken::Goes {
                return (taken, verdict);
            }
        }
        (taken, Taken::Goes)
    }

    /// Tells the detokenizer of the last `taken` tokens of a sequence, and of its end.
    fn tell(&mut self, slot: u32, taken: usize, end: Option<End>, logprobs: Option<(LogProbs<'_>, usize)>) {
        let tokens = &self.table.tokens[slot as usize];
        let request = self.requests.get(self.table.request[slot as usize]);
        let first = tokens.len() - taken == request.prompt_length as usize;
        let row = OutRow {
            finish: end.map(|end| end.0),
            stop_token: end.and_then(|end| end.1),
            queued_us: if first || end.is_some() { request.queued_us } else { 0 },
            ..request.row()
        };
        if let (Some(count), Some((logprobs, first))) = (request.logprobs, logprobs) {
            logprobs.write(first, taken, count.into(), self.outbox.logprobs());
        }
        self.outbox.row(row, &tokens[tokens.len() - taken..]);
    }

    /// Releases the blocks that only wrong drafts needed.
    fn give_back_blocks(&mut self, kv: &mut KvAllocator, slot: u32) {
        let at = slot as usize;
        let needed = (self.table.progress[at].known as usize).div_ceil(self.block_size);
        let blocks = &mut self.table.blocks[at];
        if blocks.len() > needed {
            kv.release(&blocks[needed..]);
            blocks.truncate(needed);
        }
    }
}

fn check_sampled(record: &StepRecord, sampled: &[i32], counts: &[i32]) -> Result<()> {
    let invalid = |message: String| Err(Error::InvalidArgument(message));
    if sampled.len() != record.num_logits {
        return invalid(format!("the step samples {} tokens, not {}", record.num_logits, sampled.len()));
    }
    if counts.len() != record.num_sampled {
        return invalid(format!("the step has {} sampling rows, not {}", record.num_sampled, counts.len()));
    }
    let sampling = record.rows.iter().filter(|row| row.samples);
    match sampling.zip(counts).find(|(row, count)| !(1..=row.drafts as i32 + 1).contains(count)) {
        Some((row, count)) => invalid(format!("a row with {} drafts has no {count} tokens", row.drafts)),
        None => Ok(()),
    }
}
