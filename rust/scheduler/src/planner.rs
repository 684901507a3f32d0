//! The planner: it owns the scheduler's parts and calls them in order.
//!
//! ```text
//!   submit ──► waiting ──admit──► running ──commit──► finished
//!                 ▲                  │
//!                 └─────preempt──────┘      abort, deadline, failure: finished, from anywhere
//! ```
//!
//! Requests and their ways are in [`lifecycle`](super::lifecycle), rows and what comes of them in
//! [`step`](super::step); what only some requests have is in [`features`](super::features). Each part keeps its fields to
//! itself. O(sequences) of memory, besides requests and steps in flight.

use std::any::Any;

use super::config::PlannerConfig;
use super::features::row_feature::LateStep;
use super::lifecycle::Lifecycle;
use super::outbox::{DetokenizerSink, Outbox};
use super::step::layout::StepLayout;
use super::step::rows::{DeviceTimes, StepRecord};
use super::step::{Steps, holds};
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::FinishReason;
use pyengine_speculation::SpeculationConfig;
use pyengine_telemetry::{Histogram, Stage, Timeline};

/// The scheduler's state and its two calls, `plan` and `commit`.
pub struct Planner {
    pub(super) layout: StepLayout,
    pub(super) lifecycle: Lifecycle,
    pub(super) steps: Steps,
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
        let block_size = kv.block_size();
        if (kv.num_pages() * block_size).max(kv.capacity()) >= i32::MAX as usize {
            return Err(Error::InvalidArgument("the KV cache has 2**31 slots or more".into()));
        }
        let tables: usize = kv.groups().iter().map(|group| group.tables).sum();
        if tables.max(1) != layout.tables() {
            return Err(Error::InvalidArgument(format!(
                "the KV cache has {tables} page tables, but the step layout {}",
                layout.tables()
            )));
        }
        if kv.has_states() != layout.states() {
            let which = if layout.states() { "the step layout" } else { "the KV cache" };
            return Err(Error::InvalidArgument(format!("only {which} has states")));
        }
        let interval = config.snapshot_interval;
        if !interval.is_multiple_of(block_size) {
            return Err(Error::InvalidArgument(format!(
                "snapshot_interval is {interval}, which is no multiple of the block size {block_size}"
            )));
        }
        let outbox = Outbox::new(sink, max_message)?;
        Ok(Self {
            layout,
            lifecycle: Lifecycle::new(&config, &layout, kv, outbox, timeline),
            steps: Steps::new(config, &layout, kv),
        })
    }

    /// The feature of this type, such as [`Grammars`](super::Grammars).
    ///
    /// # Panics
    /// If there is none.
    pub fn feature<F: Any>(&mut self) -> &mut F {
        self.lifecycle.features.get()
    }

    /// Lets rows have drafts, as `config` says, up to the layout's bound of logits.
    pub fn set_speculation(&mut self, config: SpeculationConfig) {
        self.steps.set_speculation(config);
    }

    /// Handles the messages that `receive` reads (it fills the buffer, or returns false if there is none). Returns
    /// the raw messages that are not for the planner: other tags, malformed ones, and a key that is already there.
    ///
    /// Messages are read also while the detokenizer's ring is full: it may be waiting to send to this mailbox.
    pub fn drain(
        &mut self,
        kv: &mut KvAllocator,
        receive: impl FnMut(&mut Vec<u8>) -> Result<bool>,
        now_ns: u64,
    ) -> Result<Vec<Vec<u8>>> {
        self.lifecycle.now_ns = now_ns;
        self.lifecycle.drain(kv, &mut self.steps, receive)
    }

    /// Plans a step and writes it into `bytes`; returns the number of rows. 0 when there is nothing to run now, or
    /// the detokenizer's ring is full: then no step is in flight for it. What the detokenizer is to be told waits for
    /// [`send`](Self::send).
    pub fn plan(&mut self, kv: &mut KvAllocator, bytes: &mut [u8], now_ns: u64) -> Result<usize> {
        let mut buffers = self.layout.view(bytes)?;
        let lifecycle = &mut self.lifecycle;
        lifecycle.now_ns = now_ns;
        lifecycle.expire(kv, &mut self.steps);
        if lifecycle.outbox.held() > 0 {
            lifecycle.flush(Stage::Admit)?;
        }
        let in_flight = !self.steps.in_flight().is_empty();
        let speculative = self.steps.proposer().wanted();
        if lifecycle.outbox.held() > 0 {
            self.steps.proposer().pause();
            return Ok(0);
        }
        // Drafts follow the last known token, which the step in flight is about to choose.
        if speculative && in_flight {
            return Ok(0);
        }
        let mut room = self.steps.grant(kv, lifecycle, &self.layout);
        while room.starved && !in_flight && self.steps.is_empty() && self.steps.preempt_last(kv, lifecycle) {
            room = self.steps.grant(kv, lifecycle, &self.layout);
        }
        if self.steps.is_empty() {
            return Ok(0);
        }
        if speculative {
            self.steps.grant_drafts(kv, lifecycle, &mut room);
            lifecycle.timeline.end_span(Stage::Draft);
        }
        let mut record = self.steps.record(now_ns);
        lifecycle.timeline.set_step(record.number);
        self.steps.fill_states(kv, &mut buffers, &mut record);
        if !record.snapshots.is_empty() {
            lifecycle.queue.retry(); // its head may find more of its prompt now
        }
        self.steps.fill(kv, &self.layout, &mut buffers, &mut record, &mut lifecycle.features);
        let rows = record.rows.len();
        if !in_flight {
            lifecycle.timeline.set_in_flight_since(now_ns);
        }
        self.steps.launch(record);
        lifecycle.timeline.end_span(Stage::BufferFill);
        Ok(rows)
    }

    /// Writes what depends on the tokens of the step before into `bytes`, the buffers of the step that was planned last.
    ///
    /// To be called when every step before it is committed, and before the device samples, where the header of the step
    /// says that something comes late.
    pub fn fill_late(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut out = self.layout.view(bytes)?;
        let in_flight = self.steps.in_flight();
        let Some(record) = in_flight.back() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let step = LateStep {
            table: self.steps.table(),
            layout: &self.layout,
            logits: record.num_logits,
            committed: in_flight.len() == 1,
        };
        let Lifecycle { features, timeline, .. } = &mut self.lifecycle;
        features.fill_late(&step, &mut out, |stage| timeline.end_span(stage))
    }

    /// Sends the detokenizer what `plan` and `commit` have to tell it. If its mailbox is closed, that is the error; the
    /// state is whole all the same.
    ///
    /// To be called once a step: behind the commit, and behind a plan that waited for the tokens of that commit, so that
    /// the device does not wait for messages.
    pub fn send(&mut self) -> Result<()> {
        self.lifecycle.send()
    }

    /// Takes the results of the oldest step in flight, which are in `bytes`, its buffers; returns how many requests ended.
    /// Their tokens wait for [`send`](Self::send).
    ///
    /// `failed` are the logits of rows that could not be sampled from, ascending, and why: their requests end with an error.
    pub fn commit(
        &mut self,
        kv: &mut KvAllocator,
        bytes: &mut [u8],
        failed: &[(usize, String)],
        now_ns: u64,
    ) -> Result<usize> {
        let layout = self.layout;
        let results = layout.view(bytes)?;
        let record = self.steps.land_checked(&results)?;
        let lifecycle = &mut self.lifecycle;
        lifecycle.now_ns = now_ns;
        let before = lifecycle.requests.len();
        let accepted = self.steps.commit_rows(kv, lifecycle, &record, &results, failed);
        let ended = before - lifecycle.requests.len();
        let times = DeviceTimes::read(results.device_times);
        self.steps.proposer().observe(&record, accepted, ended, times.as_ref());
        lifecycle.recording.step(&results, times);
        self.recycle(record);
        self.lifecycle.timeline.end_span(Stage::Commit);
        Ok(ended)
    }

    /// Ends every request of the oldest step in flight with `error`; returns how many. Those of other steps that may have
    /// built on it begin again.
    ///
    /// Their clients are told `why`.
    pub fn fail_step(&mut self, kv: &mut KvAllocator, why: &str) -> Result<usize> {
        let record = self.steps.land()?;
        let ended = self.steps.fail(kv, &mut self.lifecycle, &record, why);
        self.recycle(record);
        self.lifecycle.flush(Stage::Commit)?;
        Ok(ended)
    }

    /// Ends everything with `error` and forgets the steps in flight, which must not be committed any more; returns
    /// how many requests ended.
    pub fn abort_all(&mut self, kv: &mut KvAllocator) -> Result<usize> {
        while let Ok(record) = self.steps.land() {
            record.forget(kv);
            self.recycle(record);
        }
        let ids = self.lifecycle.requests.ids();
        ids.iter().for_each(|id| self.lifecycle.finish(kv, &mut self.steps, *id, FinishReason::Error));
        self.lifecycle.flush(Stage::Commit)?;
        Ok(ids.len())
    }

    /// A step has left those in flight: the timeline learns from when on the device has worked on the next one.
    fn recycle(&mut self, record: StepRecord) {
        let oldest_ns = self.steps.recycle(record);
        self.lifecycle.timeline.set_in_flight_since(oldest_ns);
    }

    /// Whether `plan` could find something to run, a step is in flight, or a message waits for the detokenizer.
    pub fn has_work(&self) -> bool {
        let Lifecycle { requests, outbox, .. } = &self.lifecycle;
        requests.len() > 0 || !self.steps.in_flight().is_empty() || outbox.held() > 0
    }

    /// Numbers by name: what is there now, and the counts since the beginning, with those of drafts and features.
    pub fn stats(&self) -> Vec<(String, u64)> {
        let Lifecycle { queue, outbox, counters, features, .. } = &self.lifecycle;
        let now = [
            ("running", self.steps.running().len() as u64),
            ("waiting", queue.len() as u64),
            ("compiling", queue.preparing() as u64),
            ("in_flight", self.steps.in_flight().len() as u64),
            ("outbox", outbox.held() as u64),
            ("steps", self.steps.planned()),
        ];
        let all = now.into_iter().chain(counters.named()).chain(self.steps.state_stats());
        let mut stats: Vec<_> = all.map(|(name, count)| (name.to_owned(), count)).collect();
        stats.extend(self.steps.draft_stats());
        features.stats(&mut stats);
        stats
    }

    /// How long requests waited and how long they were, since the beginning, and the distributions of features; those of
    /// times end with `_ns`, lengths are in tokens.
    pub fn histograms(&self) -> Vec<(&'static str, Histogram)> {
        let Lifecycle { distributions, features, .. } = &self.lifecycle;
        let mut all: Vec<_> =
            distributions.all().into_iter().map(|(name, times)| (name, times.clone())).collect();
        features.histograms(&mut all);
        all
    }

    /// What ended since the last call, for a recording, which the first call begins; in msgpack.
    pub fn take_recorded(&mut self, now_ns: u64) -> Result<Vec<u8>> {
        let recorded = self.lifecycle.recording.take(now_ns);
        rmp_serde::to_vec(&recorded).map_err(|error| Error::InvalidArgument(error.to_string()))
    }

    /// Checks that all parts agree, in O(everything); names what does not.
    pub fn check(&self) -> Result<()> {
        let Lifecycle { requests, queue, .. } = &self.lifecycle;
        self.steps.check()?;
        let known = self.steps.running().len() + queue.len() + queue.preparing();
        holds(requests.len() == known, "requests are prepared, wait or run")?;
        for runner in self.steps.running() {
            let request = requests.get(self.steps.table().request[runner.slot as usize]);
            holds(request.slot == Some(runner.slot), "request and sequence name each other")?;
        }
        Ok(())
    }
}
