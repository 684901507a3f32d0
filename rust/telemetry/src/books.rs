//! The books: what each span was, judged by what the device was doing, and added up by stage and track.
//!
//! ```text
//!  device       ├────── step N ──────┤            ├────── step N+1 ──────
//!  a span                         ├──────────────────┤
//!                                  ^^^ ^^^^^^^^^^^ ^^^
//!                           overlapped   exposed   overlapped
//! ```
//!
//! A span is judged up to the *horizon*, before which it is known when the device was busy: the end of its last known
//! interval or the launch of the oldest step that is still on it, whichever is later; now, if there is none. What lies
//! behind the horizon waits. So at any horizon, for the scheduler's track, which has no gaps:
//! `wall = busy + exposed (idle counted in) + unaccounted`, and the last is only what is not recorded yet.
//!
//! Plain data: the books read no clock and no ring. O(spans) a sweep.

use super::histogram::{Histogram, LATENCY_BOUNDS_NS, TOKEN_BOUNDS_NS, scaled};
use super::intervals::Intervals;
use super::stage::{Span, Stage, Track};

const STAGES: usize = Stage::ALL.len();
const TRACKS: usize = Track::ALL.len();
/// Intervals of the device that are kept: some minutes of steps.
const KEPT: usize = 1 << 15;
/// Spans that may wait for the horizon; then the oldest are judged by what is known.
const MAX_PENDING: usize = 1 << 17;

/// Upper bounds of the step-time histogram, in nanoseconds; what is above them all counts behind the last.
pub const STEP_BOUNDS_NS: [u64; 28] = scaled(
    1_000,
    [
        250, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 8_000, 10_000, 12_000, 16_000, 20_000, 25_000,
        32_000, 40_000, 50_000, 64_000, 80_000, 100_000, 128_000, 160_000, 200_000, 256_000, 400_000,
        800_000, 2_000_000, 5_000_000,
    ],
);

/// The stages whose spans are counted by their length, too.
const COUNTED: [(Stage, &[u64]); 4] = [
    (Stage::FirstToken, &LATENCY_BOUNDS_NS),
    (Stage::NextToken, &TOKEN_BOUNDS_NS),
    (Stage::Deliver, &TOKEN_BOUNDS_NS),
    (Stage::LoopLag, &TOKEN_BOUNDS_NS),
];

/// The time of a stage in a track.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTotal {
    /// Spans that have ended.
    pub count: u64,
    /// Nanoseconds during which the device had nothing to do.
    pub exposed_ns: u64,
    /// Nanoseconds during which it worked.
    pub overlapped_ns: u64,
}

/// Everything since the accountant began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// Nanoseconds from the beginning to the horizon.
    pub wall_ns: u64,
    /// How much of that the device was busy.
    pub busy_ns: u64,
    /// By track and stage.
    pub stages: [[StageTotal; STAGES]; TRACKS],
    /// Steps of the device.
    pub steps: u64,
    /// Their times, each from the end of the one before it, less what the scheduler was idle in between.
    pub steps_ns: u64,
    /// How many took up to each of [`STEP_BOUNDS_NS`], and longer.
    pub step_histogram: [u64; STEP_BOUNDS_NS.len() + 1],
    /// The lengths of the spans of some stages.
    pub lengths: [(Stage, Histogram); COUNTED.len()],
    /// Spans read.
    pub spans: u64,
    /// Spans that were overwritten or never finished.
    pub lost: u64,
}

/// Sums of spans by stage and track.
pub(super) struct Books {
    origin: u64,
    horizon: u64,
    busy: Intervals,
    idle: Intervals,
    // Of the latest step, without what it sampled after a wait.
    step_end: u64,
    pending: Vec<Span>,
    pub(super) totals: Totals,
}

impl Books {
    pub(super) fn new(origin: u64) -> Self {
        let totals = Totals {
            wall_ns: 0,
            busy_ns: 0,
            stages: [[StageTotal::default(); STAGES]; TRACKS],
            steps: 0,
            steps_ns: 0,
            step_histogram: [0; STEP_BOUNDS_NS.len() + 1],
            lengths: COUNTED.map(|(stage, bounds)| (stage, Histogram::new(bounds))),
            spans: 0,
            lost: 0,
        };
        Self {
            origin,
            horizon: origin,
            busy: Intervals::new(KEPT),
            idle: Intervals::new(KEPT),
            step_end: 0,
            pending: Vec::new(),
            totals,
        }
    }

    /// Takes in a span.
    pub(super) fn take(&mut self, mut span: Span) {
        self.totals.spans += 1;
        if span.end <= self.origin {
            return;
        }
        span.start = span.start.max(self.origin);
        match span.stage {
            Stage::Device => self.step(&span),
            Stage::Sample if span.track == Track::Device => self.busy.push(span.start, span.end),
            Stage::Idle => self.idle.push(span.start, span.end),
            _ => {}
        }
        if let Some((_, lengths)) = self.totals.lengths.iter_mut().find(|(stage, _)| *stage == span.stage) {
            lengths.observe(span.end.saturating_sub(span.start));
        }
        self.pending.push(span);
    }

    fn step(&mut self, span: &Span) {
        let before = std::mem::replace(&mut self.step_end, span.end);
        let gap = if before == 0 { 0 } else { span.start.saturating_sub(before) };
        let waited = gap - self.idle.covered(span.start - gap, span.start);
        let time = span.end - span.start.max(before) + waited;
        self.totals.steps += 1;
        self.totals.steps_ns += time;
        self.totals.step_histogram[STEP_BOUNDS_NS.partition_point(|bound| *bound < time)] += 1;
        self.busy.push(span.start, span.end);
    }

    /// Judges everything up to the horizon: `now`, or less if a step is in flight since `since` (0 for none).
    pub(super) fn judge(&mut self, now: u64, since: u64) {
        let known = if since == 0 { now } else { since.max(self.busy.end()).min(now) };
        let horizon = known.max(self.horizon);
        self.totals.busy_ns += self.busy.covered(self.horizon, horizon);
        self.totals.wall_ns += horizon - self.horizon;
        self.horizon = horizon;
        let surplus = self.pending.len().saturating_sub(MAX_PENDING);
        let mut pending = std::mem::take(&mut self.pending);
        let mut at = 0;
        pending.retain_mut(|span| {
            at += 1;
            self.judge_span(span, at <= surplus)
        });
        self.pending = pending;
    }

    /// Judges a span up to the horizon; true if some of it is left.
    fn judge_span(&mut self, span: &mut Span, now: bool) -> bool {
        let end = if now { span.end } else { span.end.min(self.horizon) };
        let total = &mut self.totals.stages[span.track as usize][span.stage as usize];
        if end > span.start {
            let overlapped = self.busy.covered(span.start, end);
            total.overlapped_ns += overlapped;
            total.exposed_ns += end - span.start - overlapped;
            span.start = end;
        }
        let left = span.end > end;
        total.count += u64::from(!left);
        left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(track: Track, stage: Stage, start: u64, end: u64) -> Span {
        Span { stage, track, start, end, step: 0 }
    }

    fn device(start: u64, end: u64) -> Span {
        span(Track::Device, Stage::Device, start, end)
    }

    fn total(books: &Books, track: Track, stage: Stage) -> (u64, u64, u64) {
        let total = books.totals.stages[track as usize][stage as usize];
        (total.count, total.exposed_ns, total.overlapped_ns)
    }

    #[test]
    fn a_span_is_split_at_the_edges_of_the_device() {
        let mut books = Books::new(100);
        let spans = [
            device(110, 150),
            device(170, 200),
            span(Track::Scheduler, Stage::Launch, 100, 120),
            span(Track::Scheduler, Stage::Commit, 145, 175),
            span(Track::Frontend, Stage::Message, 50, 112),
            span(Track::Frontend, Stage::Message, 20, 99),
        ];
        spans.into_iter().for_each(|span| books.take(span));
        books.judge(200, 0);
        assert_eq!(total(&books, Track::Scheduler, Stage::Launch), (1, 10, 10));
        assert_eq!(total(&books, Track::Scheduler, Stage::Commit), (1, 20, 10));
        assert_eq!(total(&books, Track::Frontend, Stage::Message), (1, 10, 2));
        assert_eq!((books.totals.wall_ns, books.totals.busy_ns), (100, 70));
    }

    #[test]
    fn nothing_is_judged_while_it_is_not_known_what_the_device_does() {
        let mut books = Books::new(100);
        books.take(span(Track::Scheduler, Stage::Launch, 100, 120));
        books.take(span(Track::Scheduler, Stage::CopyBack, 120, 180));
        books.judge(190, 110);
        assert_eq!(books.totals.wall_ns, 10);
        assert_eq!(total(&books, Track::Scheduler, Stage::Launch), (0, 10, 0));
        books.take(device(115, 170));
        books.judge(195, 185);
        assert_eq!(total(&books, Track::Scheduler, Stage::Launch), (1, 15, 5));
        assert_eq!(total(&books, Track::Scheduler, Stage::CopyBack), (1, 10, 50));
        assert_eq!((books.totals.wall_ns, books.totals.busy_ns), (85, 55));
        // A device that is known to be busy beyond now does not push the horizon there.
        books.take(device(200, 400));
        books.judge(210, 205);
        assert_eq!((books.totals.wall_ns, books.totals.busy_ns), (110, 65));
    }

    #[test]
    fn a_step_that_waits_for_its_masks_leaves_them_exposed() {
        let mut books = Books::new(100);
        let spans = [
            device(110, 150),
            span(Track::Device, Stage::Sample, 170, 180),
            span(Track::Scheduler, Stage::Launch, 110, 150),
            span(Track::Scheduler, Stage::Grammar, 150, 170),
            span(Track::Scheduler, Stage::Sample, 170, 180),
            device(185, 225),
            span(Track::Device, Stage::Sample, 245, 255),
        ];
        spans.into_iter().for_each(|span| books.take(span));
        books.judge(255, 0);
        assert_eq!(total(&books, Track::Scheduler, Stage::Launch), (1, 0, 40));
        assert_eq!(total(&books, Track::Scheduler, Stage::Grammar), (1, 20, 0));
        assert_eq!(total(&books, Track::Scheduler, Stage::Sample), (1, 0, 10));
        assert_eq!((books.totals.busy_ns, books.totals.steps), (100, 2));
        // From the end of one forward pass to that of the next: masks and sampling are in it.
        assert_eq!(books.totals.steps_ns, 40 + 75);
    }

    #[test]
    fn a_steps_time_is_the_gap_before_it_too_unless_there_was_nothing_to_do() {
        const MS: u64 = 1_000_000;
        let mut books = Books::new(MS);
        books.take(device(2 * MS, 10 * MS));
        books.take(device(11 * MS, 19 * MS));
        books.take(span(Track::Scheduler, Stage::Idle, 20 * MS, 95 * MS));
        books.take(device(100 * MS, 101 * MS));
        assert_eq!((books.totals.steps, books.totals.steps_ns), (3, (8 + 9 + 7) * MS));
        let at = |time: u64| STEP_BOUNDS_NS.partition_point(|bound| *bound < time * MS);
        assert_eq!(books.totals.step_histogram[at(8)], 2);
        assert_eq!(books.totals.step_histogram[at(9)], 1);
    }

    proptest! {
        /// However the sweeps fall: every span is exposed and overlapped to its length, a track without gaps adds up to
        /// the wall time, and all sweeps together say what one alone says.
        #[test]
        fn exposed_and_overlapped_add_up(
            lengths in prop::collection::vec((0usize..4, 1u64..50), 1..60),
            steps in prop::collection::vec((0u64..30, 1u64..80), 0..30),
            others in prop::collection::vec((0u64..1500, 0u64..200), 0..20),
            every in 1usize..8,
        ) {
            const ORIGIN: u64 = 1_000;
            let stages = [Stage::Drain, Stage::Launch, Stage::CopyBack, Stage::Commit];
            let (mut once, mut often) = (Books::new(ORIGIN), Books::new(ORIGIN));
            let mut end = ORIGIN;
            let mut spans = Vec::new();
            for (stage, length) in lengths {
                spans.push(span(Track::Scheduler, stages[stage], end, end + length));
                end += length;
            }
            let mut at = ORIGIN;
            for (gap, length) in steps {
                spans.push(device(at + gap, at + gap + length));
                at += gap + length;
            }
            spans.extend(others.iter().map(|(start, length)| {
                span(Track::Frontend, Stage::SseEncode, ORIGIN + start, ORIGIN + start + length)
            }));
            let last = spans.iter().map(|span| span.end).max().unwrap();
            // As they would be recorded: each at its end. A step is on the device until then.
            spans.sort_by_key(|span| span.end);
            for (number, span) in spans.iter().enumerate() {
                once.take(*span);
                often.take(*span);
                let later = spans[number + 1..].iter().filter(|span| span.stage == Stage::Device);
                let since = later.map(|span| span.start).min().unwrap_or(0);
                if number % every == 0 {
                    often.judge(span.end, since);
                }
            }
            once.judge(last, 0);
            often.judge(last, 0);
            prop_assert_eq!(&once.totals, &often.totals);
            prop_assert!(once.pending.is_empty());

            let sum = |track: Track| {
                let stages = once.totals.stages[track as usize].iter();
                stages.fold((0, 0), |sum, stage| (sum.0 + stage.exposed_ns, sum.1 + stage.overlapped_ns))
            };
            let lengths = |track: Track| -> u64 {
                spans.iter().filter(|span| span.track == track).map(|span| span.end - span.start).sum()
            };
            for track in [Track::Scheduler, Track::Frontend, Track::Device] {
                prop_assert_eq!(sum(track).0 + sum(track).1, lengths(track));
            }
            prop_assert_eq!(sum(Track::Device), (0, once.totals.busy_ns));
            // The scheduler's spans are without a gap up to `end`.
            let busy_then = once.busy.covered(ORIGIN, end);
            prop_assert_eq!(busy_then + sum(Track::Scheduler).0, end - ORIGIN);
        }
    }
}
