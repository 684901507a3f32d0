//! The planner's state.
//!
//! ```text
//!   submit ──► waiting ──admit──► running ──commit──► finished
//!                 ▲                  │
//!                 └─────preempt──────┘      abort, deadline, failure: finished, from anywhere
//! ```
//!
//! Requests come in and are admitted in [`queue`](super::queue), run in [`step`](super::step) and leave there:
//! finished, or preempted and back in the queue. Here is what both share:
//! O(sequences) of memory, besides requests and steps in flight.

use std::collections::{BTreeSet, VecDeque};

use super::distributions::Distributions;
use super::outbox::{DetokenizerSink, Outbox};
use crate::error::{Error, Result};
use crate::grammar::Compiler;
use crate::kv_allocator::{BlockId, KvAllocator};
use crate::messages::FinishReason;
use crate::scheduler::features::drafting::Drafting;
use crate::scheduler::features::thread_pool::ThreadPool;
use crate::scheduler::queue::policy::{self, Tenants, WaitingQueue};
use crate::scheduler::queue::requests::Requests;
use crate::scheduler::step::buffers::StepLayout;
use crate::scheduler::step::sequence_table::RequestId;
use crate::scheduler::step::sequence_table::SequenceTable;
use crate::speculate::Segments;
use crate::telemetry::{Histogram, Stage, Timeline};

/// The planner's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannerConfig {
    /// Size of the sequence table: most sequences that run at once.
    pub max_sequences: usize,
    /// Most tokens in one step.
    pub max_tokens_per_step: usize,
    /// Longest prompt and answer together, in tokens.
    pub max_context: usize,
    /// Most requests that wait; one more is refused.
    pub max_waiting: usize,
    /// Most tokens of one prefill in one step; 0 is no cap.
    pub prefill_chunk: usize,
}

impl PlannerConfig {
    /// `InvalidArgument` for a limit that is none, or that steps of this layout cannot hold.
    fn check(&self, layout: &StepLayout) -> Result<()> {
        let PlannerConfig { max_sequences, max_tokens_per_step, max_context, max_waiting, .. } = *self;
        for (name, value) in [
            ("max_sequences", max_sequences),
            ("max_tokens_per_step", max_tokens_per_step),
            ("max_context", max_context),
            ("max_waiting", max_waiting),
        ] {
            if value == 0 || value >= i32::MAX as usize {
                return Err(Error::InvalidArgument(format!("{name} must be at least 1 and below 2**31 - 1")));
            }
        }
        if max_tokens_per_step > layout.max_tokens() {
            return Err(Error::InvalidArgument(format!(
                "max_tokens_per_step is {max_tokens_per_step}, but the step layout holds {} tokens",
                layout.max_tokens()
            )));
        }
        Ok(())
    }
}

/// A row of a step in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRecord {
    pub slot: u32,
    pub generation: u32,
    pub count: u32,
    // The last of them are drafts, of whom `segments` says.
    pub drafts: u32,
    pub segments: Segments,
    pub samples: bool,
    // It fills up blocks that are in the prefix tree already.
    pub publishes: bool,
}

/// A step in flight.
#[derive(Default)]
pub(super) struct StepRecord {
    // Counted from 1.
    pub number: u64,
    pub rows: Vec<RowRecord>,
    // Blocks of prompts that it fills up.
    pub published: Vec<BlockId>,
    pub num_sampled: usize,
    pub num_logits: usize,
    // Rows with a grammar, in the order of their masks.
    pub masks: Vec<MaskRecord>,
    // Their drafts, one row's after the other's.
    pub drafts: Vec<u32>,
    // Rows with penalties and the like, in the order of their logits.
    pub penalties: Vec<PenaltyRecord>,
    pub prefills: usize,
    // Planned while drafts were wanted.
    pub speculative: bool,
    // Tokens that the draft model drafted one after the other.
    pub device_drafts: usize,
    // One more than the most log-probabilities that a row wants.
    pub logprobs: usize,
    // Tokens that it computed because it had not been asked for them before.
    pub caught_up: usize,
    // When it was planned.
    pub planned_ns: u64,
}

/// A row whose masks are to be filled: one for each of its logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaskRecord {
    pub slot: u32,
    pub generation: u32,
    pub drafts: u32,
}

/// A row whose penalties are to be filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct PenaltyRecord {
    pub slot: u32,
    pub generation: u32,
    /// The first of its logits.
    pub first: u32,
    pub drafts: u32,
}

/// A sequence that runs; sorted by `order`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runner {
    pub order: (i32, u64),
    pub slot: u32,
}

/// A row of the step that is being planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub slot: u32,
    pub count: u32,
    // The last of those are drafts: `drafts[first_draft..][..drafts]` of the planner, or the device's to fill in.
    pub drafts: u32,
    pub first_draft: u32,
    pub on_device: bool,
    pub segments: Segments,
}

impl Grant {
    pub fn new(slot: u32, count: u32) -> Self {
        Self { slot, count, drafts: 0, first_draft: 0, on_device: false, segments: Segments::default() }
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub preemptions: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub steps: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    // Indexed as in `finish_index`.
    pub finished: [u64; 7],
}

/// The scheduler's state and its two calls, `plan` and `commit`.
pub struct Planner {
    pub(super) config: PlannerConfig,
    pub(super) layout: StepLayout,
    pub(super) block_size: usize,
    // Tokens whose KV one sequence can have at most: all blocks, or all pages of a step.
    pub(super) capacity: u32,
    // Sequences that run at once: each must find a row and a token in every step.
    pub(super) concurrency: usize,
    pub(super) table: SequenceTable,
    pub(super) running: Vec<Runner>,
    pub(super) requests: Requests,
    // Where grammars come from, and the tokens that end an answer under one.
    pub(super) compiler: Option<Box<dyn Compiler>>,
    pub(super) fillers: Option<ThreadPool>,
    pub(super) end_tokens: Vec<u32>,
    // Requests that wait for their grammar.
    pub(super) compiling: usize,
    // Running sequences with penalties, and who has the first turn among them.
    pub(super) penalized: usize,
    pub(super) penalty_turn: (i32, u64),
    pub(super) waiting: WaitingQueue,
    pub(super) tenants: Tenants,
    pub(super) deadlines: BTreeSet<(u64, RequestId)>,
    pub(super) in_flight: VecDeque<StepRecord>,
    pub(super) spare: Vec<StepRecord>,
    pub(super) decodes: Vec<Grant>,
    pub(super) prefills: Vec<Grant>,
    // Draft tokens of the step that is being planned.
    pub(super) drafts: Vec<u32>,
    // Blocks that the prefills of the step that is being planned fill up.
    pub(super) published: Vec<BlockId>,
    // Scratch of `catch_up`.
    pub(super) found: Vec<BlockId>,
    // Tokens of its sequences that the draft model has not computed yet.
    pub(super) caught_up: usize,
    pub(super) drafting: Option<Box<Drafting>>,
    // How far admission looks ahead; a field so that tests can make it short-sighted.
    pub(super) horizon: u32,
    // The head of the queue and the blocks and sequences there were when it did not fit.
    pub(super) stuck: Option<(RequestId, usize, usize)>,
    pub(super) outbox: Outbox,
    // The message that is being read.
    pub(super) inbox: Vec<u8>,
    pub(super) serial: u64,
    pub(super) counters: Counters,
    pub(super) distributions: Distributions,
    // The clock of the call that is under way, or was last.
    pub(super) now_ns: u64,
    // The scheduler's spans.
    pub(super) timeline: Timeline,
}

impl Planner {
    /// A planner with nothing to do.
    ///
    /// `sink` sends to the detokenizer messages of at most `max_message` bytes. Sequences that run at once are
    /// bounded by the least of `max_sequences`, the layout's rows and `max_tokens_per_step`, so that every decode
    /// has its token in every step. `timeline` gets the spans of every call, and the time between two as `drain`.
    pub fn new(
        config: PlannerConfig,
        layout: StepLayout,
        kv: &KvAllocator,
        sink: DetokenizerSink,
        max_message: usize,
        timeline: Timeline,
    ) -> Result<Self> {
        config.check(&layout)?;
        let PlannerConfig { max_sequences, max_tokens_per_step, .. } = config;
        let (num_blocks, block_size) = (kv.num_blocks(), kv.block_size());
        if num_blocks * block_size >= i32::MAX as usize {
            return Err(Error::InvalidArgument("the KV cache has 2**31 slots or more".into()));
        }
        Ok(Self {
            config,
            layout,
            block_size,
            capacity: (num_blocks.min(layout.max_pages()) * block_size) as u32,
            concurrency: max_sequences.min(layout.max_rows()).min(max_tokens_per_step),
            table: SequenceTable::new(max_sequences),
            running: Vec::with_capacity(max_sequences),
            requests: Requests::default(),
            compiler: None,
            fillers: None,
            end_tokens: Vec::new(),
            compiling: 0,
            penalized: 0,
            penalty_turn: (i32::MIN, 0),
            waiting: WaitingQueue::default(),
            tenants: Tenants::default(),
            deadlines: BTreeSet::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            decodes: Vec::with_capacity(max_sequences),
            prefills: Vec::with_capacity(max_sequences),
            drafts: Vec::new(),
            published: Vec::new(),
            found: Vec::new(),
            caught_up: 0,
            drafting: None,
            horizon: policy::GROWTH_TOKENS,
            stuck: None,
            outbox: Outbox::new(sink, max_message)?,
            inbox: Vec::new(),
            serial: 0,
            counters: Counters::default(),
            distributions: Distributions::default(),
            now_ns: 0,
            timeline,
        })
    }

    /// Whether `plan` could find something to run, a step is in flight, or a message waits for the detokenizer.
    pub fn has_work(&self) -> bool {
        self.requests.len() > 0 || !self.in_flight.is_empty() || self.outbox.held() > 0
    }

    /// Figures by name: what is there now, and counts since the beginning (prefix figures in tokens).
    pub fn stats(&self) -> [(&'static str, u64); 19] {
        let counters = &self.counters;
        let [stop, length, abort, timeout, overloaded, error, refused] = counters.finished;
        [
            ("running", self.running.len() as u64),
            ("waiting", self.waiting.len() as u64),
            ("compiling", self.compiling as u64),
            ("in_flight", self.in_flight.len() as u64),
            ("outbox", self.outbox.held() as u64),
            ("preemptions", counters.preemptions),
            ("prompt_tokens", counters.prompt_tokens),
            ("cached_tokens", counters.cached_tokens),
            ("completion_tokens", counters.completion_tokens),
            ("steps", counters.steps),
            ("prefix_queries", counters.prefix_queries),
            ("prefix_hits", counters.prefix_hits),
            ("finished_stop", stop),
            ("finished_length", length),
            ("finished_abort", abort),
            ("finished_timeout", timeout),
            ("finished_overloaded", overloaded),
            ("finished_error", error),
            ("finished_refused", refused),
        ]
    }

    /// How long requests waited and how long they were, since the beginning; those of times end with `_ns`, lengths are in tokens.
    pub fn histograms(&self) -> [(&'static str, &Histogram); 6] {
        self.distributions.all()
    }

    /// Ends a span and sends what is to be sent.
    pub(super) fn flush(&mut self, span: Stage) -> Result<()> {
        self.timeline.end_span(span);
        if self.outbox.is_empty() {
            return Ok(());
        }
        let flushed = self.outbox.flush();
        self.timeline.end_span(Stage::Message);
        flushed
    }

    /// A step has left `in_flight`: its time on the device is recorded.
    pub(super) fn recycle(&mut self, mut record: StepRecord) {
        self.timeline.set_in_flight_since(self.in_flight.front().map_or(0, |oldest| oldest.planned_ns));
        record.rows.clear();
        record.published.clear();
        record.masks.clear();
        record.drafts.clear();
        record.penalties.clear();
        self.spare.push(record);
    }

    /// Checks that all parts agree, in O(everything); names what does not.
    pub fn check(&self) -> Result<()> {
        let holds = |condition: bool, what: &str| match condition {
            true => Ok(()),
            false => Err(Error::Invariant(format!("planner: not so: {what}"))),
        };
        holds(self.running.len() == self.table.owned(), "running sequences are those in the table")?;
        let known = self.running.len() + self.waiting.len() + self.compiling;
        holds(self.requests.len() == known, "requests compile, wait or run")?;
        holds(self.running.is_sorted_by_key(|runner| runner.order), "running sequences are in order")?;
        for runner in &self.running {
            let at = runner.slot as usize;
            let progress = &self.table.progress[at];
            let blocks = self.table.blocks[at].len();
            let request = self.requests.get(self.table.request[at]);
            holds(request.slot == Some(runner.slot), "request and sequence name each other")?;
            holds(progress.known as usize == self.table.tokens[at].len(), "known tokens are the tokens")?;
            holds(progress.committed <= progress.planned, "what is committed was planned")?;
            holds(
                progress.planned <= progress.total() - u32::from(progress.drafted > 0) + progress.drafted
                    && progress.total() <= progress.limit,
                "no overshoot",
            )?;
            holds(progress.committed < progress.known, "the last known token has no committed KV")?;
            holds(progress.planned as usize <= blocks * self.block_size, "blocks cover what is planned")?;
        }
        let penalized = self
            .running
            .iter()
            .filter(|runner| self.requests.get(self.table.request[runner.slot as usize]).penalties.is_some());
        holds(penalized.count() == self.penalized, "sequences with penalties are counted")?;
        let rows =
            |slot| self.in_flight.iter().flat_map(|step| &step.rows).filter(move |row| row.slot == slot);
        for runner in &self.running {
            let generation = self.table.generation(runner.slot);
            let live = rows(runner.slot).filter(|row| row.generation == generation);
            let (count, sampled) =
                live.fold((0, 0), |sum, row| (sum.0 + row.count, sum.1 + u32::from(row.samples)));
            let progress = &self.table.progress[runner.slot as usize];
            holds(progress.planned - progress.committed == count, "steps in flight compute what is planned")?;
            holds(progress.pending == sampled, "steps in flight sample what is pending")?;
        }
        Ok(())
    }
}

pub(super) fn finish_index(reason: FinishReason) -> usize {
    match reason {
        FinishReason::Stop => 0,
        FinishReason::Length => 1,
        FinishReason::Abort => 2,
        FinishReason::Timeout => 3,
        FinishReason::Overloaded => 4,
        FinishReason::Error => 5,
        FinishReason::Refused => 6,
    }
}
