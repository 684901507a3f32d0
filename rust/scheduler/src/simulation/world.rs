//! A planner between a model of the device and a model of the detokenizer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::super::{DetokenizerSink, Planner, PlannerConfig, StepLayout};
use super::device::Device;
use super::expected::Expected;
use super::extensions::ask;
use super::grammar::Slow;
use super::model::{STOP_TOKEN, rules};
use super::outcome::Outcome;
use super::setup::{Drafts, Setup};
use super::states::States;
use super::streams::Stream;
use crate::features::grammars::Grammars;
use crate::features::prediction::PredictionExtension;
use crate::lifecycle::Lifecycle;
use crate::step::buffers::MAX_LOGPROBS;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, Message, RequestKey, Submit};
use pyengine_speculation::{Source, SpeculationConfig};
use pyengine_telemetry::Timeline;

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) kv: KvAllocator,
    pub(super) planner: Planner,
    pub(super) device: Device,
    pub(super) words: Vec<u64>,
    results: Vec<u64>,
    pub(super) ring: Arc<Mutex<(VecDeque<Vec<u8>>, usize)>>,
    pub(super) inbox: VecDeque<Vec<u8>>,
    pub(super) expected: HashMap<RequestKey, Expected>,
    pub(super) streams: HashMap<RequestKey, Stream>,
    // Ended from outside: the output is any prefix of the whole one.
    pub(super) cut: HashMap<RequestKey, FinishReason>,
    pub(super) now_ns: u64,
    pub(super) next: u64,
    // How many began again because what they had built on went wrong.
    pub(super) retracted: u64,
    // How often a sequence was ended from outside while the device verified drafts of it.
    pub(super) cut_in_verification: u64,
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let Setup { num_blocks, block_size, prefix_cache, .. } = *setup;
        let kv = KvAllocator::with_groups(num_blocks, block_size, prefix_cache, &setup.groups).unwrap();
        let windows = setup.groups.iter().flat_map(|group| vec![group.kind.window(); group.tables]);
        let layout =
            StepLayout::new(setup.max_tokens, setup.max_rows, setup.max_pages, setup.drafts.most(), 64)
                .unwrap()
                .with_tables(windows.clone().count().max(1))
                .unwrap()
                .with_states(kv.has_states())
                .with_hidden_size(2)
                .with_max_penalties(setup.max_penalties);
        let ring = Arc::new(Mutex::new((VecDeque::new(), usize::MAX)));
        let sink_ring = Arc::clone(&ring);
        let sink: DetokenizerSink = Box::new(move |bytes| {
            let mut ring = sink_ring.lock().unwrap();
            if ring.0.len() >= ring.1 {
                return Err(Error::MailboxFull { needed: bytes.len(), free: 0 });
            }
            ring.0.push_back(bytes.to_vec());
            Ok(())
        });
        let config = PlannerConfig {
            max_sequences: setup.max_sequences,
            max_tokens_per_step: setup.max_tokens,
            max_context: setup.max_context,
            max_waiting: setup.max_waiting,
            prefill_chunk: setup.prefill_chunk,
            prefill_beside_decodes: setup.prefill_beside_decodes,
            short_context: setup.short_context,
            snapshot_interval: setup.snapshot_interval,
        };
        let planner = Planner::new(config, layout, &kv, sink, 1 << 16, Timeline::silent());
        let mut planner = planner.unwrap();
        planner.lifecycle.queue.set_horizon(setup.horizon);
        planner.feature::<Grammars>().set_compiler(Box::<Slow>::default(), vec![STOP_TOKEN]).unwrap();
        if setup.drafts != Drafts::Off {
            let wanted = |source| match setup.drafts {
                Drafts::Model(_) => source == Source::DraftModel,
                Drafts::Device(_) => true,
                Drafts::Off | Drafts::Host(_) => source != Source::DraftModel,
            };
            let config = SpeculationConfig {
                sources: Source::ALL.iter().copied().filter(|&source| wanted(source)).collect(),
                max_draft: setup.drafts.most(),
                adaptive: false,
            };
            planner.set_speculation(config);
        }
        let device = Device {
            block_size: setup.block_size,
            cells: vec![None; setup.num_blocks * setup.block_size],
            states: States::new(&kv, setup.block_size),
            layout,
            windows: windows.collect(),
            last_token: vec![u32::MAX; setup.max_sequences],
            results: VecDeque::new(),
            short_context: setup.short_context,
        };
        Self {
            setup: setup.clone(),
            kv,
            planner,
            device,
            words: vec![0; layout.nbytes() / 8],
            results: vec![0; layout.nbytes() / 8],
            ring,
            inbox: VecDeque::new(),
            expected: HashMap::new(),
            streams: HashMap::new(),
            cut: HashMap::new(),
            now_ns: 1,
            next: 0,
            retracted: 0,
            cut_in_verification: 0,
        }
    }

    pub(super) fn post(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).unwrap();
        self.inbox.push_back(bytes);
    }

    pub(super) fn submit(
        &mut self,
        prompt: &[u32],
        resumed: usize,
        change: impl FnOnce(&mut Submit),
    ) -> RequestKey {
        self.next += 1;
        let key = RequestKey { frontend: 0, request: self.next };
        let mut submit = Submit {
            key,
            prompt_length: prompt.len() as u32,
            max_tokens: 8,
            sampling: rules(self.next % 3),
            stop_token_ids: vec![STOP_TOKEN],
            skip_special_tokens: true,
            arrival_ns: self.now_ns,
            ..Submit::default()
        };
        change(&mut submit);
        let resumed = resumed.min(submit.max_tokens as usize);
        let mut expected = Expected::new(submit, prompt, resumed, self.context());
        if matches!(self.setup.drafts, Drafts::Host(_)) {
            let answer = expected.tokens[prompt.len()..].iter().enumerate();
            let guess = answer.map(|(at, token)| if at % 5 == 4 { (token + 1) % 48 } else { *token });
            let tokens = guess.flat_map(u32::to_le_bytes).collect();
            ask(&mut expected.submit, &PredictionExtension { tokens });
        }
        self.post(&Message::Submit(Box::new(expected.submit.clone())));
        self.expected.insert(key, expected);
        key
    }

    /// The requests whose drafts are in a step in flight.
    pub(super) fn verified(&self) -> Vec<RequestKey> {
        let Planner { steps, lifecycle: Lifecycle { requests, .. }, .. } = &self.planner;
        let (in_flight, table) = (steps.in_flight(), steps.table());
        let rows = in_flight.iter().flat_map(|step| &step.rows);
        let verified = rows.filter(|row| row.drafts > 0 && table.is_current(row.slot, row.generation));
        verified.map(|row| requests.get(table.request[row.slot as usize]).key).collect()
    }

    pub(super) fn drain(&mut self) {
        let verified = self.verified();
        let inbox = &mut self.inbox;
        let receive = |message: &mut Vec<u8>| {
            Ok(inbox.pop_front().is_some_and(|bytes| {
                *message = bytes;
                true
            }))
        };
        let others = self.planner.drain(&mut self.kv, receive, self.now_ns).unwrap();
        assert!(others.is_empty());
        let gone = verified.iter().filter(|key| self.planner.lifecycle.requests.find(**key).is_none());
        self.cut_in_verification += gone.count() as u64;
        self.check();
    }

    pub(super) fn check(&self) {
        self.planner.check().unwrap();
        self.kv.check().unwrap();
    }

    pub(super) fn plan(&mut self) -> usize {
        // SAFETY: every byte of a u64 is a u8.
        let bytes = unsafe { self.words.align_to_mut::<u8>() }.1;
        let rows = self.planner.plan(&mut self.kv, bytes, self.now_ns).unwrap();
        let steps = &self.planner.steps;
        let (decodes, beside) = (steps.decodes().len(), self.setup.prefill_beside_decodes);
        if rows > 0 && decodes > 0 && beside > 0 {
            let prompts: usize = steps.prefills().iter().map(|grant| grant.count as usize).sum();
            assert!(
                prompts <= beside.max(3 * self.planner.lifecycle.requests.len()),
                "{prompts} beside {decodes} decodes"
            );
        }
        if rows > 0 {
            let view = self.planner.layout.view(bytes).unwrap();
            assert_eq!(view.header.num_rows as usize, rows);
            let header = &view.header;
            let late = [header.num_masked_logits, header.num_penalized_rows, header.num_processed_rows];
            let constrained = late.iter().any(|number| *number > 0);
            let owners: HashMap<u32, RequestKey> = view.row_sequence[..rows]
                .iter()
                .map(|slot| (*slot as u32, self.planner.steps.table().request[*slot as usize]))
                .map(|(slot, request)| (slot, self.planner.lifecycle.requests.get(request).key))
                .collect();
            while constrained && self.commit() {}
            // SAFETY: as above.
            let bytes = unsafe { self.words.align_to_mut::<u8>() }.1;
            self.planner.fill_late(bytes).unwrap();
            let view = self.planner.layout.view(bytes).unwrap();
            self.device.run(view, |slot| self.expected[&owners[&slot]].clone());
        }
        self.check();
        rows
    }

    pub(super) fn commit(&mut self) -> bool {
        let committed = self.commit_only();
        self.planner.send().unwrap();
        committed
    }

    /// Commits the oldest step, whose tokens wait to be sent.
    pub(super) fn commit_only(&mut self) -> bool {
        let Some(result) = self.device.results.pop_front() else { return false };
        self.commit_results(&result, 0, &[]).unwrap();
        self.check();
        true
    }

    /// Commits the oldest step, with results that say that they are of the step `ahead` steps behind it.
    pub(super) fn commit_results(
        &mut self,
        outcome: &Outcome,
        ahead: u64,
        failed: &[(usize, String)],
    ) -> Result<usize> {
        let layout = self.planner.layout;
        // SAFETY: every byte of a u64 is a u8.
        let bytes = unsafe { self.results.align_to_mut::<u8>() }.1;
        let results = layout.view(bytes).unwrap();
        let oldest = self.planner.steps.in_flight().front().map_or(0, |record| record.number);
        results.header.step_id = (oldest + ahead) as i64;
        results.sampled_tokens[..outcome.tokens.len()].copy_from_slice(&outcome.tokens);
        results.sampled_counts[..outcome.counts.len()].copy_from_slice(&outcome.counts);
        results.pooled[..outcome.pooled.len()].copy_from_slice(&outcome.pooled);
        let given = outcome.logprobs.as_deref().unwrap_or_default();
        results.sampled_logprobs[..given.len()].copy_from_slice(given);
        fill_top(results.top_tokens, results.top_logprobs, given.len());
        let scores = &outcome.prompt_logprobs;
        results.prompt_logprobs[..scores.len()].copy_from_slice(scores);
        fill_top(results.prompt_top_tokens, results.prompt_top_logprobs, scores.len());
        let now = self.now_ns as i64;
        results.device_times.copy_from_slice(&[now, 0, 0, now + 5]);
        self.planner.commit(&mut self.kv, bytes, failed, self.now_ns)
    }

    /// The device fails: what the steps in flight wrote is garbage, and their requests end.
    pub(super) fn fail(&mut self) {
        for outcome in std::mem::take(&mut self.device.results) {
            let written = outcome.rows.into_iter().flat_map(|row| row.written);
            written.for_each(|cell| self.device.lose(cell));
            self.fail_step();
        }
    }

    /// The oldest step fails; those behind it ran on what it left.
    pub(super) fn fail_oldest(&mut self) {
        if !self.device.results.is_empty() {
            self.device.spoil(None);
            self.device.results.pop_front();
            self.fail_step();
        }
    }

    fn fail_step(&mut self) {
        let keys: Vec<_> =
            (0..self.planner.steps.in_flight()[0].rows.len()).filter_map(|row| self.owner(row)).collect();
        self.cut.extend(keys.into_iter().map(|key| (key, FinishReason::Error)));
        let before = self.stat("preemptions");
        self.planner.fail_step(&mut self.kv, "the device failed").unwrap();
        self.retracted += self.stat("preemptions") - before;
        self.check();
    }

    /// Whose row of the oldest step that is, if the request still has a use for it.
    fn owner(&self, row: usize) -> Option<RequestKey> {
        let Planner { steps, lifecycle: Lifecycle { requests, .. }, .. } = &self.planner;
        let (in_flight, table) = (steps.in_flight(), steps.table());
        let row = &in_flight[0].rows[row];
        let current = table.is_current(row.slot, row.generation);
        current.then(|| requests.get(table.request[row.slot as usize]).key)
    }

    /// A row of the oldest step finds no token to sample, and the step is committed; returns the request of the row.
    pub(super) fn break_row(&mut self, choose: impl Fn(usize) -> usize) -> Option<RequestKey> {
        let outcome = self.device.results.front()?;
        let sampling: Vec<_> =
            (0..outcome.rows.len()).filter(|row| !outcome.rows[*row].logits.is_empty()).collect();
        let row = *sampling.get(choose(sampling.len().max(1)))?;
        self.device.spoil(Some(row));
        let outcome = &mut self.device.results[0];
        let logits = outcome.rows[row].logits.clone();
        outcome.tokens[logits].fill(-1);
        let at = sampling.iter().position(|other| *other == row).unwrap();
        outcome.counts[at] = 1;
        let owner = self.owner(row);
        self.cut.extend(owner.map(|key| (key, FinishReason::Error)));
        let before = self.stat("preemptions");
        self.commit();
        self.retracted += self.stat("preemptions") - before;
        owner
    }

    pub(super) fn running(&self) -> bool {
        self.planner.has_work() || !self.inbox.is_empty()
    }

    /// Lets everything come to its end. Work must get done: 20,000 steps are far more than are needed.
    pub(super) fn finish(&mut self) {
        let mut steps_left = 20_000;
        self.ring.lock().unwrap().1 = usize::MAX;
        while self.running() {
            self.drain();
            let rows = self.plan();
            if self.device.results.len() > self.setup.depth || rows == 0 {
                self.commit();
            }
            self.read();
            steps_left -= 1;
            assert!(steps_left > 0, "livelock: {:?}", self.planner.stats());
        }
        self.verify();
    }

    /// Tokens that a sequence can have at most.
    pub(super) fn context(&self) -> usize {
        self.setup.max_context.min(self.capacity() + 1)
    }

    pub(super) fn capacity(&self) -> usize {
        self.kv.capacity().min(self.setup.max_pages * self.setup.block_size)
    }

    /// Count and sum.
    pub(super) fn histogram(&self, name: &str) -> (u64, u64) {
        let found = self.planner.histograms().into_iter().find(|(key, _)| *key == name).unwrap().1;
        (found.count(), found.sum())
    }

    pub(super) fn stat(&self, name: &str) -> u64 {
        self.planner.stats().into_iter().find(|(key, _)| *key == name).unwrap().1
    }
}

/// Writes the two most likely tokens of each logits row, and their log-probabilities: the numbers from 0 on.
fn fill_top(tokens: &mut [i32], logprobs: &mut [f32], logits: usize) {
    for number in 0..2 * logits {
        let place = number / 2 * MAX_LOGPROBS + number % 2;
        (tokens[place], logprobs[place]) = (number as i32, number as f32);
    }
}
