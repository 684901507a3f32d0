//! Requests with a grammar: they wait until it is compiled, and bring masks into their steps.
//!
//! ```text
//!   submit ──ask──► compiling ──verdict──► waiting            fill_masks: for each of a row's logits
//!                       └──refused──► notice, finished           fill, then advance by the draft after it
//! ```
//!
//! A row's masks depend on every token before it, so they are filled after the commit of the step before, while the
//! device already runs the step itself; the sampler waits for them. O(vocabulary / 32) words a mask at least; rows
//! are shared out among threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::grammar::{Compiler, Grammar, Verdict};
use crate::kv_allocator::KvAllocator;
use crate::messages::{FinishReason, Notice};
use crate::scheduler::features::thread_pool::ThreadPool;
use crate::scheduler::planner::{MaskRecord, Planner};
use crate::scheduler::queue::requests::Requests;
use crate::scheduler::step::sequence_table::{RequestId, SequenceTable};
use crate::telemetry::{Histogram, Stage};

/// Threads that fill masks, if the machine has as many.
const MAX_THREADS: usize = 8;
/// So few rows are filled faster than a thread wakes up.
const ROWS_ALONE: usize = 2;
/// The longest notice, in bytes.
const MAX_NOTICE: usize = 4096;

/// The threads that fill masks beside the caller's.
pub(in crate::scheduler) fn fillers() -> Result<ThreadPool> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    ThreadPool::new(threads - 1, "pyengine-mask")
}

/// The masks of one row.
struct Job<'a> {
    request: RequestId,
    grammar: Box<dyn Grammar>,
    // All that may come, where an answer is being closed.
    only: Option<u32>,
    // At so many of the logits it is too early to end, if anything else may come.
    held: usize,
    end_tokens: &'a [u32],
    drafts: &'a [u32],
    masks: &'a mut [u32],
    words: usize,
    // What it took, and what went wrong.
    spent_ns: u64,
    complaint: Option<String>,
}

impl Job<'_> {
    /// Fills the masks. A grammar that panics takes nobody with it: its masks allow everything, and its request ends.
    fn work(&mut self) {
        let begun = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| self.fill())).is_err() {
            self.masks.fill(u32::MAX);
            self.complaint = Some("the grammar cannot be followed: its backend failed".into());
        }
        self.spent_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }

    /// Fills a mask for each of the logits; the grammar is then where it was.
    fn fill(&mut self) {
        if let Some(only) = self.only {
            self.masks.fill(0);
            self.masks[only as usize / 32] |= 1 << (only % 32);
            return;
        }
        let mut advanced = 0;
        for (at, mask) in self.masks.chunks_mut(self.words).enumerate() {
            // Drafts are such as the grammar takes; what stands behind another is dropped unseen.
            if at > 0 && advanced == at - 1 && self.grammar.advance(self.drafts[at - 1]) {
                advanced = at;
            }
            match advanced == at && !self.grammar.is_terminated() {
                true => self.grammar.fill_mask(mask),
                false => mask.fill(u32::MAX),
            }
            if at < self.held {
                go_on(mask, self.end_tokens);
            }
        }
        self.grammar.roll_back(advanced);
    }
}

/// Forbids the end tokens, unless nothing else may come.
fn go_on(mask: &mut [u32], end_tokens: &[u32]) {
    let allowed = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    let ends: Vec<u32> = end_tokens.iter().copied().filter(|token| allowed(mask, *token)).collect();
    ends.iter().for_each(|token| mask[*token as usize / 32] &= !(1 << (token % 32)));
    if mask.iter().all(|word| *word == 0) {
        ends.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
    }
}

impl Planner {
    /// Takes requests with grammars from now on. `end_tokens` are those that end an answer under a grammar.
    pub fn set_compiler(&mut self, compiler: Box<dyn Compiler>, end_tokens: Vec<u32>) -> Result<()> {
        self.fillers = Some(fillers()?);
        self.compiler = Some(compiler);
        self.end_tokens = end_tokens;
        Ok(())
    }

    /// Fills the masks of the step that was planned last into `masks`, the field of its buffer; returns how many.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn fill_masks(&mut self, masks: &mut [u32]) -> Result<usize> {
        let words = self.layout.mask_words();
        let Some(record) = self.in_flight.back_mut() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let records = std::mem::take(&mut record.masks);
        let drafts = std::mem::take(&mut record.drafts);
        if records.is_empty() {
            return Ok(0);
        }
        if self.in_flight.len() > 1 {
            return Err(Error::InvalidArgument("the step before is not committed yet".into()));
        }
        if masks.len() != self.layout.max_logits() * words {
            return Err(Error::InvalidArgument(format!("the masks of a step have {} words", masks.len())));
        }
        let mut masks = masks;
        let (mut jobs, mut rest, mut filled) = (Vec::with_capacity(records.len()), &drafts[..], 0);
        for record in &records {
            let count = record.drafts as usize + 1;
            let (drafts, others) = rest.split_at(record.drafts as usize);
            let (mine, tail) = std::mem::take(&mut masks).split_at_mut(count * words);
            (rest, masks) = (others, tail);
            filled += count;
            match take_grammar(&self.table, &mut self.requests, record) {
                Some((request, grammar, only, held)) => {
                    let end_tokens = &self.end_tokens;
                    jobs.push(Mutex::new(Job {
                        request,
                        grammar,
                        only,
                        held,
                        end_tokens,
                        drafts,
                        masks: mine,
                        words,
                        spent_ns: 0,
                        complaint: None,
                    }));
                }
                // Its sequence has ended meanwhile: whatever is sampled is dropped.
                None => mine.fill(u32::MAX),
            }
        }
        let fill = |row: usize| lock(&jobs[row]).work();
        match &self.fillers {
            Some(fillers) if jobs.len() > ROWS_ALONE => fillers.run(jobs.len(), &fill),
            _ => (0..jobs.len()).for_each(fill),
        }
        for job in jobs {
            let job = job.into_inner().unwrap_or_else(PoisonError::into_inner);
            let request = self.requests.get_mut(job.request);
            request.grammar = Some(job.grammar);
            request.grammar_ns += job.spent_ns;
            request.complaint = job.complaint;
        }
        self.timeline.end_span(Stage::Grammar);
        Ok(filled)
    }

    /// Figures of the compiler by name, and how long compilations took.
    pub fn grammar_stats(&self) -> (Vec<(&'static str, u64)>, Option<Histogram>) {
        match &self.compiler {
            Some(compiler) => (compiler.figures(), compiler.compile_times()),
            None => (Vec::new(), None),
        }
    }

    /// Asks for the grammar of a request that was just taken in; it waits for its turn once it has it.
    pub(in crate::scheduler) fn ask_for_grammar(
        &mut self,
        kv: &mut KvAllocator,
        id: RequestId,
        description: &[u8],
    ) -> Result<()> {
        let key = self.requests.get(id).key;
        let Some(compiler) = &mut self.compiler else {
            return self.refuse_grammar(kv, id, "this engine takes no grammars".into());
        };
        self.requests.get_mut(id).compiling = true;
        self.compiling += 1;
        match compiler.ask(key, description) {
            Some(verdict) => self.take_verdict(kv, id, verdict),
            None => Ok(()),
        }
    }

    /// Takes the grammars that were compiled meanwhile.
    pub(in crate::scheduler) fn collect_grammars(&mut self, kv: &mut KvAllocator) -> Result<()> {
        let mut verdicts = Vec::new();
        if let Some(compiler) = &mut self.compiler {
            compiler.collect(&mut verdicts);
        }
        for (key, verdict) in verdicts {
            if let Some(id) = self.requests.find(key)
                && self.requests.get(id).compiling
            {
                self.take_verdict(kv, id, verdict)?;
            }
        }
        Ok(())
    }

    /// A request ends before its grammar was there.
    pub(in crate::scheduler) fn stop_compiling(&mut self, id: RequestId) {
        let request = self.requests.get_mut(id);
        request.compiling = false;
        self.compiling -= 1;
        if let Some(compiler) = &mut self.compiler {
            compiler.cancel(request.key);
        }
    }

    fn take_verdict(&mut self, kv: &mut KvAllocator, id: RequestId, verdict: Verdict) -> Result<()> {
        let compiled = match verdict {
            Ok(compiled) => compiled,
            Err(refusal) => return self.refuse_grammar(kv, id, refusal.message),
        };
        let request = self.requests.get_mut(id);
        request.compiling = false;
        self.compiling -= 1;
        if !compiled.warnings().is_empty() {
            let text = shortened(compiled.warnings().join("\n"));
            self.outbox.notice(Notice { key: request.key, text })?;
        }
        // What was generated before a restart.
        let mut grammar = compiled.start();
        let generated = &request.tokens[request.prompt_length as usize..];
        let sound = generated.iter().all(|token| grammar.advance(*token));
        let ended = grammar.is_terminated();
        let known = request.tokens.len() as u32;
        let used_up = known >= request.limit;
        if let Some(closing) = request.closing.as_mut().filter(|_| sound && !ended && !used_up) {
            closing.look(grammar.as_mut(), request.limit - known, self.end_tokens.first().copied());
        }
        request.grammar = Some(grammar);
        self.enqueue(id);
        if !sound {
            self.finish(kv, id, FinishReason::Error);
        } else if ended {
            self.finish(kv, id, FinishReason::Stop);
        } else if used_up {
            self.finish(kv, id, FinishReason::Length);
        }
        Ok(())
    }

    fn refuse_grammar(&mut self, kv: &mut KvAllocator, id: RequestId, message: String) -> Result<()> {
        let key = self.requests.get(id).key;
        self.outbox.notice(Notice { key, text: shortened(message) })?;
        self.finish(kv, id, FinishReason::Refused);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is needed for a row's masks: its request, grammar, the only token that may come if there is one, and at how many
/// of its logits it is too early to end.
#[allow(clippy::type_complexity, reason = "taken apart at once")]
fn take_grammar(
    table: &SequenceTable,
    requests: &mut Requests,
    record: &MaskRecord,
) -> Option<(RequestId, Box<dyn Grammar>, Option<u32>, usize)> {
    if !table.is_current(record.slot, record.generation) {
        return None;
    }
    let id = table.request[record.slot as usize];
    let request = requests.get_mut(id);
    let only = request.closing_token();
    let next = table.progress[record.slot as usize].known + 1 - request.prompt_length;
    Some((id, request.grammar.take()?, only, request.min_tokens.saturating_sub(next) as usize))
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_NOTICE {
        let end = (0..=MAX_NOTICE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
