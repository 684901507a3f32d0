//! Drafts of what may come next, and how long they should be.
//!
//! ```text
//!                 tokens that come                       step's rows and drafts        measured steps
//!                       │                                         │                          │
//!  slot ─► Sequence: n-gram, suffix, prediction ─► propose ─► plan_lengths ◄── Control: model of time, on or off
//!               └─ judged by the tokens that come ─► Acceptance ──┘
//! ```
//!
//! A draft changes no token: it only says where the device may look ahead. One [`Speculator`] serves one planner
//! on its thread. A token costs a microsecond or so; a draft as much. Nothing here allocates once its buffers have
//! grown, but for the indices of longer and longer texts.

mod acceptance;
mod automaton;
mod chunks;
#[cfg(test)]
mod clients;
mod control;
mod cost;
mod draft;
mod edges;
mod history;
mod lengths;
mod level;
mod model;
mod ngram;
mod outcome;
mod prediction;
mod purse;
mod rows;
mod sequence;
#[cfg(test)]
mod simulation;
mod suffix;
mod trial;

use std::sync::Arc;

pub use draft::{SOURCES, Segment, Segments, Source};
pub use lengths::Length;
pub use outcome::StepOutcome;
pub use rows::Row;

use acceptance::Acceptance;
use control::Control;
use history::History;
use lengths::Offers;
use rows::offer;
use sequence::{Common, Sequence};

/// Positions of a draft that [`Stats`] tells apart; the last stands for all beyond.
pub const POSITIONS: usize = 16;

/// Tokens of a prompt that are indexed when it is opened; the rest follows, with each token and in
/// [`Speculator::tend`].
const INDEXED_AT_ONCE: usize = 2048;

/// Tokens of outputs that wait which are taken into the history when a sequence is opened.
const REMEMBERED_AT_ONCE: usize = 1024;

/// Tokens of an answer before any was seen.
const ANSWER: f32 = 100.0;

/// Tokens that are indexed with each token that comes, as long as some are put off.
const INDEXED_PER_TOKEN: usize = 16;

/// Tokens that are indexed before a draft is asked for, as long as some are put off.
const INDEXED_PER_DRAFT: usize = 64;

/// While no drafts are sent one sequence in so many is watched, what would have been drafted for it: that tells when
/// they would pay. The others are indexed once they may be drafted for. The first few are all watched.
const WATCHED: usize = 4;
const FEW: usize = 2;

/// What may be proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// What followed the same few tokens earlier in the request.
    pub ngram: bool,
    /// What followed the longest known suffix, in the request or in its tenant's recent outputs.
    pub suffix: bool,
    /// There is a draft model on the device.
    pub draft_model: bool,
    /// What a grammar forces.
    pub forced: bool,
    /// The output that a client predicts.
    pub prediction: bool,
    /// Most draft tokens of a row.
    pub max_draft: usize,
    /// Most tokens of outputs of all tenants that are remembered; each takes 30 to 60 bytes.
    pub history_tokens: usize,
    /// Lengths follow from measurements; otherwise they are always the greatest, for tests.
    pub adaptive: bool,
}

/// Counts since the beginning, and what holds now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Draft tokens that were verified, by source.
    pub proposed: [u64; SOURCES],
    /// Those that were accepted, by source.
    pub accepted: [u64; SOURCES],
    /// Draft tokens by source and position in the row's draft: verified after accepted ones, and accepted.
    pub by_position: [[(u64, u64); POSITIONS]; SOURCES],
    /// Whether steps carry drafts.
    pub active: bool,
    /// Draft tokens of a row, over the last steps that were planned with drafts.
    pub mean_length: f32,
    /// Tokens of remembered outputs.
    pub history_tokens: usize,
    /// Bytes that they take.
    pub history_bytes: usize,
}

/// Proposes drafts for all sequences of a planner and decides their lengths.
pub struct Speculator {
    config: SpeculationConfig,
    sequences: Vec<Sequence>,
    history: History,
    acceptance: Acceptance,
    control: Control,
    stats: Stats,
    offers: Offers,
    draft: Vec<u32>,
    scratch: Vec<u32>,
    steps: u64,
    /// Sequences that were opened, and those that are open.
    opened: usize,
    open: usize,
    /// Tokens of an answer, of the last few dozen.
    answer: f32,
    /// The slot whose prompt is indexed next by [`tend`](Self::tend).
    tended: usize,
}

impl Speculator {
    /// For sequences in slots below `max_sequences`.
    pub fn new(config: SpeculationConfig, max_sequences: usize) -> Self {
        Self {
            history: History::new(if config.suffix { config.history_tokens } else { 0 }),
            control: Control::new(config.forced),
            config,
            sequences: std::iter::repeat_with(Sequence::default).take(max_sequences).collect(),
            acceptance: Acceptance::default(),
            stats: Stats::default(),
            offers: Offers::default(),
            draft: Vec::new(),
            scratch: Vec::new(),
            steps: 0,
            opened: 0,
            open: 0,
            answer: ANSWER,
            tended: 0,
        }
    }

    /// A sequence begins in a slot, or goes on after preemption: all its tokens, of which `prompt_length` are the
    /// prompt. What was in the slot is forgotten.
    ///
    /// # Panics
    /// If the slot is not below `max_sequences`, here and below.
    pub fn open(
        &mut self,
        slot: u32,
        tenant: u64,
        tokens: &[u32],
        prompt_length: usize,
        prediction: Option<Arc<[u32]>>,
    ) {
        self.history.touch(tenant);
        self.history.ingest(REMEMBERED_AT_ONCE);
        let active = self.active();
        let sequence = &mut self.sequences[slot as usize];
        self.open += usize::from(!sequence.open);
        self.opened += 1;
        sequence.open(&self.config, &self.history, tenant, tokens, prompt_length, prediction);
        sequence.watched = self.open <= FEW || self.opened.is_multiple_of(WATCHED);
        if active || sequence.watched {
            sequence.index(&self.config, INDEXED_AT_ONCE);
        }
    }

    /// Committed tokens of a sequence, in order. Tokens for a slot in which none is open are ignored.
    pub fn append(&mut self, slot: u32, tokens: &[u32]) {
        let active = self.active();
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return;
        }
        for &token in tokens {
            sequence.append(&self.history, &self.config, token, &mut self.acceptance);
        }
        if active || sequence.watched {
            sequence.index(&self.config, INDEXED_PER_TOKEN * tokens.len());
        }
        if !active && sequence.watched && sequence.wants_shadow() {
            // So that it is seen when drafts would pay, without sending any.
            self.draft.clear();
            let common =
                Common { config: &self.config, history: &self.history, acceptance: &self.acceptance };
            sequence.propose(common, &[], self.config.max_draft, &mut self.draft, &mut self.scratch);
        }
        self.history.ingest(2 * tokens.len());
    }

    /// A sequence ends or is preempted. `remember`: its output joins its tenant's history.
    pub fn close(&mut self, slot: u32, remember: bool) {
        let sequence = &mut self.sequences[slot as usize];
        if sequence.open && remember {
            self.answer += 0.05 * (sequence.output().len() as f32 - self.answer);
            if self.config.suffix {
                self.history.remember(sequence.tenant, sequence.output());
            }
        }
        self.open -= usize::from(sequence.open);
        sequence.clear();
    }

    /// Drops the recent outputs of a tenant; what is open goes on, and is remembered when it is closed.
    pub fn forget(&mut self, tenant: u64) {
        self.history.forget(tenant);
    }

    /// Does work that was put off, indexing prompts and outputs: at most `budget` tokens. To be called once a
    /// step, while the device runs.
    pub fn tend(&mut self, budget: usize) {
        let mut left = budget;
        let sequences = if self.active() { self.sequences.len() } else { 0 };
        for _ in 0..sequences {
            let sequence = &mut self.sequences[self.tended];
            left -= sequence.index(&self.config, left);
            if sequence.behind() > 0 {
                break;
            }
            self.tended = (self.tended + 1) % self.sequences.len();
        }
        self.history.ingest(left);
    }

    /// Appends a draft for a sequence, at most `limit` tokens: `forced` ones from a grammar first, then those of the
    /// best source by expected gain. Says who proposed what.
    pub fn propose(&mut self, slot: u32, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Segments {
        let sequence = &mut self.sequences[slot as usize];
        if !sequence.open {
            return Segments::default();
        }
        let forced = if self.config.forced { forced } else { &[] };
        let limit = limit.min(self.config.max_draft);
        sequence.index(&self.config, INDEXED_PER_DRAFT);
        let common = Common { config: &self.config, history: &self.history, acceptance: &self.acceptance };
        sequence.propose(common, forced, limit, draft, &mut self.scratch)
    }

    /// What verification said of a row's draft: the first `accepted` tokens were right. `segments` are those that
    /// were sent (see [`Segments::truncate`] and [`Segments::push_device`]).
    pub fn judged(&mut self, slot: u32, segments: &Segments, accepted: usize) {
        for (source, proposed, accepted) in segments.split(accepted) {
            self.stats.proposed[source as usize] += proposed as u64;
            self.stats.accepted[source as usize] += accepted as u64;
        }
        let reached = segments.positions().take(accepted.saturating_add(1)).enumerate();
        for (at, (segment, position)) in reached {
            let count = &mut self.stats.by_position[segment.source as usize][at.min(POSITIONS - 1)];
            *count = (count.0 + 1, count.1 + u64::from(at < accepted));
            let sequence = &mut self.sequences[slot as usize];
            // The host's drafts are judged by the tokens that come, whether they were sent or not.
            if segment.source == Source::DraftModel {
                self.acceptance.judge(&mut sequence.personal, segment, position, at < accepted);
            }
        }
    }

    /// Whether steps carry drafts.
    pub fn active(&self) -> bool {
        self.drafts() && (!self.config.adaptive || self.control.active())
    }

    /// Whether the next step should carry drafts; `measured` says that its time will be known. If not, the planner
    /// need not wait for the tokens of the last step.
    pub fn wants_drafts(&self, measured: bool) -> bool {
        self.drafts() && (!self.config.adaptive || self.control.wants_drafts(measured))
    }

    /// Whether there can be any.
    fn drafts(&self) -> bool {
        let config = &self.config;
        let any = config.ngram || config.suffix || config.draft_model || config.forced || config.prediction;
        any && config.max_draft > 0
    }

    /// What a step was and took.
    pub fn observe(&mut self, step: &StepOutcome) {
        self.steps += 1;
        if !self.config.adaptive {
            return;
        }
        self.control.observe(step);
        if self.steps.is_multiple_of(64) {
            self.acceptance.fade(Source::DraftModel);
        }
        if self.control.wants_promise() {
            self.offers.clear();
            let mut watched = None;
            for sequence in self.sequences.iter().filter(|sequence| sequence.open) {
                // One that is not watched is taken for the last that was.
                watched = if sequence.watched { Some(sequence) } else { watched };
                let sequence = watched.unwrap_or(sequence);
                let device = if self.config.draft_model { self.config.max_draft } else { 0 };
                let (personal, proposed) = (&sequence.personal, sequence.proposed());
                offer(&mut self.offers, &self.acceptance, personal, proposed, device, self.config.max_draft);
            }
            self.control.promise(&self.offers);
        }
    }

    /// Counts since the beginning, and what holds now. O(tenants).
    pub fn stats(&self) -> Stats {
        Stats {
            active: self.active(),
            history_tokens: self.history.tokens(),
            history_bytes: self.history.bytes(),
            ..self.stats.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> SpeculationConfig {
        SpeculationConfig {
            ngram: true,
            suffix: true,
            draft_model: false,
            forced: true,
            prediction: true,
            max_draft: 8,
            history_tokens: 10_000,
            adaptive: false,
        }
    }

    fn propose(speculator: &mut Speculator, slot: u32, forced: &[u32]) -> (Vec<u32>, Segments) {
        let mut draft = vec![];
        let segments = speculator.propose(slot, forced, 8, &mut draft);
        assert_eq!(segments.total(), draft.len());
        (draft, segments)
    }

    fn sources(segments: &Segments) -> Vec<Source> {
        segments.iter().map(|segment| segment.source).collect()
    }

    #[test]
    fn what_is_forced_comes_first_and_the_others_go_on() {
        let mut speculator = Speculator::new(config(), 2);
        speculator.open(1, 0, &[1, 2, 3, 4, 5, 6, 7, 1], 8, None);
        let (draft, segments) = propose(&mut speculator, 1, &[2, 3]);
        assert_eq!((&draft[..2], &draft[2..6], segments.forced()), (&[2, 3][..], &[4, 5, 6, 7][..], 2));
        assert_eq!(sources(&segments)[0], Source::Forced);
        let off = SpeculationConfig { ngram: false, suffix: false, forced: false, ..config() };
        let mut none = Speculator::new(off, 2);
        none.open(1, 0, &[1, 2, 1], 3, None);
        assert_eq!(propose(&mut none, 1, &[2, 3]).0, [0u32; 0], "switched off");
    }

    #[test]
    fn the_better_source_wins_as_it_is_measured() {
        let mut speculator = Speculator::new(SpeculationConfig { suffix: false, ..config() }, 1);
        // The client predicts nonsense; the text repeats itself.
        let prompt: Vec<u32> = (0..10).cycle().take(40).collect();
        let nonsense: Arc<[u32]> = (0..400u32).map(|at| 1000 + at).collect();
        speculator.open(0, 0, &prompt, prompt.len(), Some(nonsense));
        let mut last = vec![];
        for at in 40..80u32 {
            last = sources(&propose(&mut speculator, 0, &[]).1);
            speculator.append(0, &[at % 10]);
        }
        assert_eq!(last, [Source::Ngram]);
    }

    #[test]
    fn an_output_helps_its_tenants_next_request_only() {
        let mut speculator = Speculator::new(config(), 2);
        let answer: Vec<u32> = (100..200).collect();
        for (remember, expected) in [(false, &[][..]), (true, &answer[12..20])] {
            speculator.open(0, 7, &[1, 2, 3], 3, None);
            speculator.append(0, &answer);
            speculator.close(0, remember);
            for (tenant, expected) in [(8, &[][..]), (7, expected)] {
                speculator.open(1, tenant, &[4, 5], 2, None);
                speculator.append(1, &answer[..12]);
                assert_eq!(propose(&mut speculator, 1, &[]).0, expected, "tenant {tenant}, {remember}");
                speculator.close(1, false);
            }
        }
        assert_eq!(speculator.stats().history_tokens, 100);
        assert!(speculator.stats().history_bytes > 1000);
    }

    #[test]
    fn it_goes_on_after_preemption() {
        let mut speculator =
            Speculator::new(SpeculationConfig { ngram: false, suffix: false, ..config() }, 2);
        let predicted: Arc<[u32]> = (0..20).collect();
        speculator.open(0, 0, &[90, 91], 2, Some(predicted.clone()));
        speculator.append(0, &[0, 1, 2]);
        let before = propose(&mut speculator, 0, &[]);
        speculator.close(0, false);
        speculator.open(1, 0, &[90, 91, 0, 1, 2], 2, Some(predicted));
        assert_eq!(propose(&mut speculator, 1, &[]), before);
        assert_eq!(before.0, [3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_long_prompt_is_indexed_in_pieces() {
        let mut speculator = Speculator::new(config(), 3);
        let prompt: Vec<u32> = (0..10_000).chain(9_000..9_010).collect();
        speculator.open(2, 0, &prompt, prompt.len(), None);
        assert!(propose(&mut speculator, 2, &[]).0.is_empty());
        for _ in 0..9 {
            speculator.tend(1000);
        }
        assert_eq!(propose(&mut speculator, 2, &[]).0, (9_010..9_018).collect::<Vec<_>>());
    }

    #[test]
    fn some_are_watched_while_none_are_sent_and_the_others_indexed_when_asked() {
        let adaptive = SpeculationConfig { suffix: false, adaptive: true, ..config() };
        let mut speculator = Speculator::new(adaptive, 16);
        let text: Vec<u32> = (0..50).chain(0..10).collect();
        (0..16).for_each(|slot| speculator.open(slot, 0, &text, text.len(), None));
        assert!(!speculator.active());
        let watched = (0..16).filter(|&slot| speculator.sequences[slot].watched).count();
        let indexed = (0..16).filter(|&slot| speculator.sequences[slot].behind() == 0).count();
        assert_eq!((watched, indexed), (FEW + 16 / WATCHED, FEW + 16 / WATCHED));
        for slot in 0..16 {
            assert_eq!(propose(&mut speculator, slot, &[]).0, (10..18).collect::<Vec<_>>(), "slot {slot}");
        }
        (0..16).for_each(|slot| speculator.close(slot, false));
        assert_eq!(speculator.open, 0);
    }

    #[test]
    fn what_was_verified_is_counted_by_source_and_position() {
        let mut speculator = Speculator::new(SpeculationConfig { draft_model: true, ..config() }, 1);
        speculator.open(0, 0, &[1, 2, 3, 1, 2], 5, None);
        let mut segments = Segments::default();
        segments.push(Source::Forced, 0, 2);
        segments.push_device(3);
        speculator.judged(0, &segments, 3);
        let stats = speculator.stats();
        let of = |source: Source| (stats.proposed[source as usize], stats.accepted[source as usize]);
        assert_eq!((of(Source::Forced), of(Source::DraftModel), of(Source::Ngram)), ((2, 2), (3, 1), (0, 0)));
        let model = stats.by_position[Source::DraftModel as usize];
        assert_eq!(model[..6], [(0, 0), (0, 0), (1, 1), (1, 0), (0, 0), (0, 0)]);
    }

    #[test]
    fn everything_is_sent_if_nothing_is_measured() {
        let mut speculator = Speculator::new(SpeculationConfig { draft_model: true, ..config() }, 2);
        assert!(speculator.active());
        speculator.open(0, 0, &[1, 2, 3, 1, 2], 5, None);
        speculator.open(1, 0, &[5], 1, None);
        let rows = [0, 1].map(|slot| {
            let segments = propose(&mut speculator, slot, &[]).1;
            Row { slot, segments, device: 4, lacks: 0, left: 100 }
        });
        let mut lengths = vec![];
        speculator.plan_lengths(&rows, 0, &mut lengths);
        assert_eq!(lengths, [Length { host: 8, device: 0 }, Length { host: 0, device: 4 }]);
        let nothing = SpeculationConfig { max_draft: 0, ..config() };
        assert!(!Speculator::new(nothing, 1).active());
    }

    /// A device that takes `base + token · tokens`, and sequences that follow their client's prediction but for
    /// every `wrong`th token. Tokens a second over those without drafts.
    fn served(token: u64, wrong: usize, steps: usize) -> f64 {
        let mut speculator =
            Speculator::new(SpeculationConfig { adaptive: true, forced: false, ..config() }, 4);
        let base = 10_000_000;
        let (mut tokens, mut time) = (0, 0);
        let mut ages = [usize::MAX; 4];
        let truth = |slot: usize, at: usize| (at * 4 + slot) as u32;
        let mut lengths = vec![];
        for _ in 0..steps {
            let speculative = speculator.active();
            let (mut rows, mut drafts) = (vec![], vec![]);
            for (slot, age) in ages.iter_mut().enumerate() {
                if *age > 300 {
                    let predicted =
                        (0..400).map(|at| truth(slot, at) + u32::from(at % wrong == wrong - 1) * 9999);
                    speculator.close(slot as u32, true);
                    speculator.open(slot as u32, slot as u64, &[77], 1, Some(predicted.collect()));
                    *age = 0;
                }
                let mut draft = vec![];
                let segments = if speculative {
                    speculator.propose(slot as u32, &[], 8, &mut draft)
                } else {
                    Segments::default()
                };
                rows.push(Row { slot: slot as u32, segments, device: 0, lacks: 0, left: 100 });
                drafts.push(draft);
            }
            speculator.plan_lengths(&rows, 0, &mut lengths);
            let (mut drafted, mut accepted) = (0, 0);
            for slot in 0..4 {
                let sent = if speculative { usize::from(lengths[slot].host) } else { 0 };
                let right =
                    (0..sent).take_while(|&at| drafts[slot][at] == truth(slot, ages[slot] + at)).count();
                let mut segments = rows[slot].segments;
                segments.truncate(sent);
                speculator.judged(slot as u32, &segments, right);
                let new: Vec<u32> = (0..=right).map(|at| truth(slot, ages[slot] + at)).collect();
                speculator.append(slot as u32, &new);
                ages[slot] += new.len();
                (drafted, accepted) = (drafted + sent, accepted + right);
            }
            let duration_ns = base + token * (4 + drafted as u64) + if speculative { 500_000 } else { 0 };
            (tokens, time) = (tokens + 4 + accepted as u64, time + duration_ns);
            let step = StepOutcome {
                rows: 4,
                drafted,
                accepted,
                device_iterations: 0,
                caught_up: 0,
                speculative,
                duration_ns,
            };
            speculator.observe(&step);
        }
        (tokens as f64 / time as f64) / (4.0 / (base + 4 * token) as f64)
    }

    #[test]
    fn a_prediction_speeds_up_what_follows_it_and_slows_nothing_down() {
        let good = served(100_000, 20, 400);
        assert!(good > 3.0, "{good}");
        for (token, wrong) in [(100_000, 1), (5_000_000, 1), (5_000_000, 3)] {
            let got = served(token, wrong, 400);
            assert!(got > 0.97, "{got}: {token} {wrong}");
        }
    }

    #[derive(Debug, Clone)]
    enum Call {
        Open(u32, u64, Vec<u32>, usize, Option<Vec<u32>>),
        Append(u32, Vec<u32>),
        Close(u32, bool),
        Propose(u32, Vec<u32>, usize),
        Judge(u32, usize),
        Plan(usize, usize),
        Observe(usize, usize, usize, bool, u64),
        Tend(usize),
        Forget(u64),
    }

    fn call() -> impl Strategy<Value = Call> {
        let tokens = |most| prop::collection::vec(0u32..5, 0..most);
        prop_oneof![
            (0u32..4, 0u64..3, tokens(40), 0usize..40, prop::option::of(tokens(30))).prop_map(
                |(slot, tenant, text, prompt, prediction)| Call::Open(slot, tenant, text, prompt, prediction)
            ),
            (0u32..4, tokens(6)).prop_map(|(slot, text)| Call::Append(slot, text)),
            (0u32..4, any::<bool>()).prop_map(|(slot, remember)| Call::Close(slot, remember)),
            (0u32..4, tokens(6), 0usize..12)
                .prop_map(|(slot, forced, limit)| Call::Propose(slot, forced, limit)),
            (0u32..4, 0usize..12).prop_map(|(slot, accepted)| Call::Judge(slot, accepted)),
            (0usize..6, 0usize..2).prop_map(|(device, prefill)| Call::Plan(device, prefill)),
            (0usize..80, 0usize..80, 0usize..4, any::<bool>(), prop_oneof![Just(0), 1u64..1 << 40]).prop_map(
                |(rows, drafted, iterations, speculative, time)| Call::Observe(
                    rows,
                    drafted,
                    iterations,
                    speculative,
                    time
                )
            ),
            (0usize..50).prop_map(Call::Tend),
            (0u64..3).prop_map(Call::Forget),
        ]
    }

    proptest! {
        /// Any calls in any order: nothing panics, limits hold, lengths are within what was proposed.
        #[test]
        fn any_calls(calls in prop::collection::vec(call(), 0..120), adaptive in any::<bool>()) {
            let history_tokens = 50;
            let config = SpeculationConfig { adaptive, draft_model: true, history_tokens, max_draft: 6, ..config() };
            let mut speculator = Speculator::new(config, 4);
            let mut segments = [Segments::default(); 4];
            for call in calls {
                match call {
                    Call::Open(slot, tenant, text, prompt, prediction) => {
                        speculator.open(slot, tenant, &text, prompt, prediction.map(Into::into));
                    }
                    Call::Append(slot, text) => speculator.append(slot, &text),
                    Call::Close(slot, remember) => speculator.close(slot, remember),
                    Call::Propose(slot, forced, limit) => {
                        let mut draft = vec![99];
                        segments[slot as usize] = speculator.propose(slot, &forced, limit, &mut draft);
                        let total = segments[slot as usize].total();
                        prop_assert!(draft.len() == total + 1 && total <= limit.min(6) && draft[0] == 99);
                    }
                    Call::Judge(slot, accepted) => speculator.judged(slot, &segments[slot as usize], accepted),
                    Call::Plan(device, prefill) => {
                        let rows: Vec<_> = (0..4).map(|slot| Row { slot, segments: segments[slot as usize], device, lacks: 70 * device, left: 30 }).collect();
                        let mut lengths = vec![];
                        speculator.plan_lengths(&rows, prefill, &mut lengths);
                        prop_assert_eq!(lengths.len(), if lengths.is_empty() { 0 } else { 4 });
                        for (row, length) in rows.iter().zip(&lengths) {
                            let (host, device) = (usize::from(length.host), usize::from(length.device));
                            prop_assert!(host <= row.segments.total() && device <= row.device);
                            prop_assert!(host + device <= 6);
                            prop_assert!(device == 0 || host == row.segments.forced());
                        }
                    }
                    Call::Observe(rows, drafted, device_iterations, speculative, duration_ns) => {
                        let accepted = drafted / 2;
                        speculator.observe(&StepOutcome { rows, drafted, accepted, device_iterations, caught_up: 0, speculative, duration_ns });
                    }
                    Call::Tend(budget) => speculator.tend(budget),
                    Call::Forget(tenant) => speculator.forget(tenant),
                }
                prop_assert!(speculator.stats().history_tokens <= history_tokens);
            }
        }
    }
}
