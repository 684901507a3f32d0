//! The planner: it owns the scheduler's parts and calls them in order.
//!
//! ```text
//!   submit ──► waiting ──admit──► running ──commit──► finished
//!                 ▲                  │
//!                 └─────preempt──────┘      abort, deadline, failure: finished, from anywhere
//! ```
//!
//! Requests come in and are admitted in [`queue`](super::queue), run in [`step`](super::step) and leave there: finished,
//! or preempted and back in the queue. What only some of them have is in [`features`](super::features). Each part keeps
//! its fields to itself. O(sequences) of memory, besides requests and steps in flight.

use super::config::PlannerConfig;
use super::counters::Counters;
use super::distributions::Distributions;
use super::features::Features;
use super::features::processors::ProcessedRow;
use super::outbox::{DetokenizerSink, OutRow, Outbox};
use super::queue::requests::Requests;
use super::queue::{Queue, policy};
use super::step::buffers::StepLayout;
use super::step::plan::Room;
use super::step::sequence_table::RequestId;
use super::step::{DeviceTimes, Steps, holds};
use pyengine_base::error::{Error, Result};
use pyengine_grammar::Compiler;
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, RequestKey};
use pyengine_speculation::{Source, SpeculationConfig};
use pyengine_telemetry::{Histogram, Stage, Timeline};

/// The scheduler's state and its two calls, `plan` and `commit`.
pub struct Planner {
    pub(super) config: PlannerConfig,
    pub(super) layout: StepLayout,
    // Tokens whose KV one sequence can have at most: all blocks, or all pages of a step.
    pub(super) capacity: u32,
    // Sequences that run at once: each must find a row and a token in every step.
    pub(super) concurrency: usize,
    // Layers have windows.
    has_windows: bool,
    pub(super) requests: Requests,
    pub(super) queue: Queue,
    pub(super) steps: Steps,
    pub(super) features: Features,
    pub(super) outbox: Outbox,
    // The message that is being read.
    pub(super) message: Vec<u8>,
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
        let block_size = kv.block_size();
        if kv.num_pages() * block_size >= i32::MAX as usize {
            return Err(Error::InvalidArgument("the KV cache has 2**31 slots or more".into()));
        }
        let tables: usize = kv.groups().iter().map(|group| group.tables).sum();
        if tables != layout.tables() {
            return Err(Error::InvalidArgument(format!(
                "the KV cache has {tables} page tables, but the step layout {}",
                layout.tables()
            )));
        }
        if kv.has_states() {
            return Err(Error::InvalidArgument(
                "steps do not say in which slots layers have their states".into(),
            ));
        }
        Ok(Self {
            config,
            layout,
            capacity: kv.capacity().min(layout.max_pages() * block_size) as u32,
            has_windows: kv.groups().iter().any(|group| group.kind.window().is_some()),
            concurrency: max_sequences.min(layout.max_rows()).min(max_tokens_per_step),
            requests: Requests::default(),
            queue: Queue::default(),
            steps: Steps::new(max_sequences, block_size, config.short_context),
            features: Features::new(&config, &layout),
            outbox: Outbox::new(sink, max_message)?,
            message: Vec::new(),
            counters: Counters::default(),
            distributions: Distributions::default(),
            now_ns: 0,
            timeline,
        })
    }

    /// Takes requests with grammars from now on. `end_tokens` are those that end an answer under a grammar.
    pub fn set_compiler(&mut self, compiler: Box<dyn Compiler>, end_tokens: Vec<u32>) -> Result<()> {
        self.features.grammars.set_compiler(compiler, end_tokens)
    }

    /// Lets rows have drafts, as `config` says, up to the layout's bound of logits. `moves` says that the device moves
    /// rows that follow drafts in flight by what becomes of these: where the draft model is the only proposer, which
    /// needs no token on the host, steps with drafts are then planned while the one before runs. Not so where layers
    /// have windows: which pages a window has left follows from the number of tokens.
    pub fn set_speculation(&mut self, config: SpeculationConfig, moves: bool) {
        self.steps.set_moves(moves && !self.has_windows && config.sources.is_only(Source::DraftModel));
        self.features.drafts.enable(config, self.config.max_sequences);
    }

    /// Plans a step and writes it into `bytes`; returns the number of rows. 0 when there is nothing to run now, or
    /// the detokenizer's ring is full: then no step is in flight for it. What the detokenizer is to be told waits for
    /// [`send`](Self::send).
    pub fn plan(&mut self, kv: &mut KvAllocator, bytes: &mut [u8], now_ns: u64) -> Result<usize> {
        let mut buffers = self.layout.view(bytes)?;
        self.now_ns = now_ns;
        self.expire(kv);
        if self.outbox.held() > 0 {
            self.flush(Stage::Admit)?;
        }
        let in_flight = !self.steps.in_flight().is_empty();
        let speculative = self.features.drafts.wanted();
        if self.outbox.held() > 0 {
            self.features.drafts.pause();
            return Ok(0);
        }
        // Drafts of the host follow the last known token, which the step in flight is about to choose.
        if speculative && in_flight && !self.steps.moves() {
            return Ok(0);
        }
        let mut room = self.grant(kv);
        while room.starved && !in_flight && self.steps.is_empty() && self.preempt_last(kv) {
            room = self.grant(kv);
        }
        if self.steps.is_empty() {
            return Ok(0);
        }
        if speculative {
            self.grant_drafts(kv, &mut room);
            self.timeline.end_span(Stage::Draft);
        }
        let mut record = self.steps.record(now_ns);
        self.timeline.set_step(record.number);
        self.steps.fill(kv, &self.layout, &mut buffers, &mut record, &mut self.features);
        let rows = record.rows.len();
        if !in_flight {
            self.timeline.set_in_flight_since(now_ns);
        }
        self.steps.launch(record);
        self.timeline.end_span(Stage::BufferFill);
        Ok(rows)
    }

    /// Grants the rows of a step, drafts apart; returns the room that is left.
    fn grant(&mut self, kv: &mut KvAllocator) -> Room {
        let (tokens, pages) = (self.config.max_tokens_per_step, self.layout.max_pages());
        let logits = self.layout.max_logits();
        let mut room =
            Room { tokens, prefill: tokens, pages, logits, prompts: false, closed: false, starved: false };
        self.steps.clear();
        self.grant_decodes(kv, &mut room);
        if !self.steps.decodes().is_empty() {
            let requests = (self.steps.running().len() + self.queue.len()).min(self.concurrency);
            let cap = policy::prefill_beside_decodes(requests, self.config.prefill_beside_decodes);
            room.prefill = room.tokens.min(cap);
        }
        self.timeline.end_span(Stage::Allocate);
        self.grant_prefills(kv, &mut room);
        self.admit(kv, &mut room);
        self.timeline.end_span(Stage::Admit);
        room
    }

    /// Fills the grammar masks of the step that was planned last into `bytes`, its buffers; returns how many different ones
    /// it has.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn fill_masks(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut out = self.layout.view(bytes)?;
        let (committed, _) = self.planned_last()?;
        let filled =
            self.features.grammars.fill_masks(self.steps.table(), &self.layout, &mut out, committed)?;
        if filled > 0 {
            self.timeline.end_span(Stage::Grammar);
        }
        Ok(filled)
    }

    /// Fills the penalties of the step that was planned last into `bytes`, its buffers; returns how many.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn fill_penalties(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let out = self.layout.view(bytes)?;
        let (committed, logits) = self.planned_last()?;
        let filled = self.features.penalties.fill(self.steps.table(), out, logits, committed);
        self.timeline.end_span(Stage::BufferFill);
        filled
    }

    /// The rows of the step that was planned last whose logits are to be changed before it samples, and the requests
    /// with such rows that have left since the last call.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn processed_rows(&mut self) -> Result<(Vec<ProcessedRow>, Vec<RequestKey>)> {
        match self.planned_last()? {
            (true, _) => Ok(self.features.processors.processed(self.steps.table())),
            (false, _) => Err(Error::InvalidArgument("a step before is in flight".into())),
        }
    }

    /// Whether the steps before the one that was planned last are committed, and how many logits it has.
    fn planned_last(&self) -> Result<(bool, usize)> {
        let in_flight = self.steps.in_flight();
        let Some(record) = in_flight.back() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        Ok((in_flight.len() == 1, record.num_logits))
    }

    /// Sends the detokenizer what `plan` and `commit` have to tell it. If its mailbox is closed, that is the error; the
    /// state is whole all the same.
    ///
    /// To be called once a step: behind the commit, and behind a plan that waited for the tokens of that commit, so that
    /// the device does not wait for messages.
    pub fn send(&mut self) -> Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let sent = self.outbox.flush();
        self.timeline.end_span(Stage::Message);
        sent
    }

    /// Takes the results of the oldest step in flight, which are in `bytes`, its buffers; returns how many requests ended.
    /// Their tokens wait for [`send`](Self::send).
    ///
    /// `failed` are the logits of rows whose logits processors failed, ascending, and why: their requests end with an error.
    pub fn commit(
        &mut self,
        kv: &mut KvAllocator,
        bytes: &mut [u8],
        failed: &[(usize, String)],
        now_ns: u64,
    ) -> Result<usize> {
        let layout = self.layout;
        let results = layout.view(bytes)?;
        let record = self.land_checked(&results)?;
        self.now_ns = now_ns;
        let before = self.requests.len();
        let accepted = self.commit_rows(kv, &record, &results, failed);
        let ended = before - self.requests.len();
        let times = DeviceTimes::read(results.device_times);
        self.features.drafts.observe(&record, accepted, ended, times.as_ref());
        self.recycle(record);
        self.timeline.end_span(Stage::Commit);
        Ok(ended)
    }

    /// Ends every request of the oldest step in flight with `error`; returns how many. Those of other steps that may have
    /// built on it begin again.
    ///
    /// Their clients are told `why`.
    pub fn fail_step(&mut self, kv: &mut KvAllocator, why: &str) -> Result<usize> {
        let record = self.steps.land()?;
        let ended = self.fail(kv, record, why);
        self.flush(Stage::Commit)?;
        Ok(ended)
    }

    /// Ends everything with `error` and forgets the steps in flight, which must not be committed any more; returns
    /// how many requests ended.
    pub fn abort_all(&mut self, kv: &mut KvAllocator) -> Result<usize> {
        while let Ok(record) = self.steps.land() {
            kv.forget(&record.published);
            self.recycle(record);
        }
        let ids = self.requests.ids();
        ids.iter().for_each(|id| self.finish(kv, *id, FinishReason::Error));
        self.flush(Stage::Commit)?;
        Ok(ids.len())
    }

    /// Whether `plan` could find something to run, a step is in flight, or a message waits for the detokenizer.
    pub fn has_work(&self) -> bool {
        self.requests.len() > 0 || !self.steps.in_flight().is_empty() || self.outbox.held() > 0
    }

    /// Numbers by name: what is there now, and the counts since the beginning.
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let mut stats = vec![
            ("running", self.steps.running().len() as u64),
            ("waiting", self.queue.len() as u64),
            ("compiling", self.features.grammars.compiling() as u64),
            ("in_flight", self.steps.in_flight().len() as u64),
            ("outbox", self.outbox.held() as u64),
            ("steps", self.steps.planned()),
        ];
        stats.extend(self.counters.named());
        stats
    }

    /// How long requests waited and how long they were, since the beginning; those of times end with `_ns`, lengths are in tokens.
    pub fn histograms(&self) -> [(&'static str, &Histogram); 6] {
        self.distributions.all()
    }

    /// Counts of the grammar compiler by name, and how long compilations took.
    pub fn grammar_stats(&self) -> (Vec<(&'static str, u64)>, Option<Histogram>) {
        self.features.grammars.stats()
    }

    /// Counts of drafts by name and source, and what the proposers keep; empty where drafts are off.
    pub fn speculation_stats(&self) -> Vec<(String, u64)> {
        self.features.drafts.stats()
    }

    /// Ends a span and sends what is to be sent.
    pub(super) fn flush(&mut self, span: Stage) -> Result<()> {
        self.timeline.end_span(span);
        self.send()
    }

    /// The facts of a request that the detokenizer gets besides its tokens.
    pub(super) fn out_row(&self, id: RequestId) -> OutRow {
        let (accepted_drafts, rejected_drafts) = self.features.drafts.counts(id);
        OutRow { accepted_drafts, rejected_drafts, ..self.requests.get(id).row() }
    }

    /// Checks that all parts agree, in O(everything); names what does not.
    pub fn check(&self) -> Result<()> {
        self.steps.check()?;
        let known = self.steps.running().len() + self.queue.len() + self.features.grammars.compiling();
        holds(self.requests.len() == known, "requests compile, wait or run")?;
        for runner in self.steps.running() {
            let request = self.requests.get(self.steps.table().request[runner.slot as usize]);
            holds(request.slot == Some(runner.slot), "request and sequence name each other")?;
        }
        Ok(())
    }
}
