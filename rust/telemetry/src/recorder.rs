//! The recorder's handle, and the timelines that write to it.
//!
//! A timeline chains its spans: a span ends now and began where the one before it ended, so that a span costs one reading
//! of the clock and a thread's spans leave no gap. Where recording is switched off, or there is no recorder at all, a span
//! costs a load and a branch.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use super::clock::now_ns;
use super::ring::{Cursor, Ring};
use super::stage::{Span, Stage, Track};
use pyengine_base::error::Result;

/// Spans in one batch when the cost of a span is measured, and how many batches.
const COST_SPANS: u32 = 256;
const COST_BATCHES: usize = 16;

/// A flight recorder: the latest spans of all threads and processes that share it.
#[derive(Clone)]
pub struct Recorder {
    ring: Arc<Ring>,
}

impl Recorder {
    /// A recorder that remembers the latest `capacity` spans (rounded up to a power of two), 32 bytes each.
    pub fn new(capacity: usize) -> Result<Self> {
        Ok(Self { ring: Arc::new(Ring::new(capacity)?) })
    }

    /// The recorder of another process, by its [`descriptor`](Self::descriptor), which is duplicated.
    pub fn attach(memory: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self { ring: Arc::new(Ring::attach(memory)?) })
    }

    /// The descriptor that another process attaches by. Open as long as the handle.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.memory()
    }

    /// Whether spans are recorded, in all processes.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.ring.header().off.load(Relaxed) == 0
    }

    /// Switches recording on or off, in all processes.
    pub fn switch(&self, on: bool) {
        self.ring.header().off.store(u32::from(!on), Relaxed);
    }

    /// A timeline in `track`.
    pub fn timeline(&self, track: Track) -> Timeline {
        Timeline { chain: Arc::new(Chain::new(Some(self.clone()), track)) }
    }

    /// Spans that were offered so far.
    pub fn recorded(&self) -> u64 {
        self.ring.next()
    }

    /// Gives the spans from number `from` on to `take`; returns the number to go on from. What was overwritten, or is
    /// still being written, is left out.
    pub fn read(&self, from: u64, mut take: impl FnMut(Span)) -> u64 {
        let mut cursor = Cursor::new(from);
        cursor.read(&self.ring, &mut take);
        cursor.read(&self.ring, &mut take);
        cursor.at()
    }

    pub(super) fn read_with(&self, cursor: &mut Cursor, take: impl FnMut(Span)) {
        cursor.read(&self.ring, take);
    }

    /// Since when a step is in flight whose time on the device is not recorded yet; 0 for none.
    pub(super) fn in_flight_since(&self) -> u64 {
        self.ring.header().in_flight_since.load(Acquire)
    }

    /// Nanoseconds that a span takes on this machine: the least of several batches, into a ring of their own.
    pub fn cost_ns() -> Result<f64> {
        let timeline = Self::new(COST_SPANS as usize)?.timeline(Track::Request);
        timeline.begin();
        let batch = |_| {
            let start = Instant::now();
            (0..COST_SPANS).for_each(|_| timeline.end_span(Stage::Idle));
            start.elapsed()
        };
        let least = (0..COST_BATCHES).map(batch).min().unwrap_or(Duration::ZERO);
        Ok(least.as_nanos() as f64 / f64::from(COST_SPANS))
    }
}

struct Chain {
    recorder: Option<Recorder>,
    track: Track,
    /// Where the next span begins; 0 while there is no beginning.
    last: AtomicU64,
    step: AtomicU64,
}

impl Chain {
    fn new(recorder: Option<Recorder>, track: Track) -> Self {
        Self { recorder, track, last: 0.into(), step: 0.into() }
    }
}

/// A chain of spans in a track. Clones are the same chain; one thread at a time spans it.
#[derive(Clone)]
pub struct Timeline {
    chain: Arc<Chain>,
}

impl Timeline {
    /// A timeline that records nothing.
    pub fn silent() -> Self {
        Self { chain: Arc::new(Chain::new(None, Track::Request)) }
    }

    #[inline]
    fn recorder(&self) -> Option<&Recorder> {
        self.chain.recorder.as_ref().filter(|recorder| recorder.is_on())
    }

    /// The next span begins now; the time before it is in no span. Returns now, or 0 where nothing is recorded.
    #[inline]
    pub fn begin(&self) -> u64 {
        let now = self.recorder().map_or(0, |_| now_ns());
        self.chain.last.store(now, Relaxed);
        now
    }

    /// A span ends now, and was `stage`.
    #[inline]
    pub fn end_span(&self, stage: Stage) {
        if self.recorder().is_none() {
            // When recording is switched on, the chain begins anew.
            self.chain.last.store(0, Relaxed);
            return;
        }
        let Chain { track, last, step, .. } = &*self.chain;
        let now = now_ns();
        let start = last.load(Relaxed);
        last.store(now, Relaxed);
        if start != 0 {
            self.record(Span { stage, track: *track, start, end: now, step: step.load(Relaxed) });
        }
    }

    /// The nanoseconds so far, by stage, that all threads and processes of the recorder have spent for requests together.
    pub fn spent(&self) -> [u64; Stage::ALL.len()] {
        let of =
            |recorder: &Recorder| recorder.ring.header().spent.each_ref().map(|spent| spent.load(Relaxed));
        self.chain.recorder.as_ref().map_or([0; Stage::ALL.len()], of)
    }

    /// Records a span that began at `start` and ends now, beside the chain; returns now. A `start` of 0 (recording was
    /// off then) records nothing.
    #[inline]
    pub fn span(&self, stage: Stage, start: u64) -> u64 {
        let Some(recorder) = self.recorder() else { return 0 };
        let now = now_ns();
        if start != 0 {
            let (track, step) = (self.chain.track, self.chain.step.load(Relaxed));
            recorder.ring.write(Span { stage, track, start, end: now, step });
        }
        now
    }

    /// Records a span, also one of another track.
    #[inline]
    pub fn record(&self, span: Span) {
        let Some(recorder) = self.recorder() else { return };
        if !matches!(span.track, Track::Request | Track::Device | Track::Loop) && !span.stage.prepares() {
            recorder.ring.header().spent[span.stage as usize]
                .fetch_add(span.end.saturating_sub(span.start), Relaxed);
        }
        recorder.ring.write(span);
    }

    /// The spans that follow belong to `step`.
    #[inline]
    pub fn set_step(&self, step: u64) {
        self.chain.step.store(step, Relaxed);
    }

    /// The step of the spans now.
    #[inline]
    pub fn step(&self) -> u64 {
        self.chain.step.load(Relaxed)
    }

    /// Says since when a step is in flight whose time on the device is not recorded yet; 0 for none. What happens from
    /// then on is judged when it is.
    pub fn set_in_flight_since(&self, since: u64) {
        if let Some(recorder) = &self.chain.recorder {
            recorder.ring.header().in_flight_since.store(since, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(recorder: &Recorder) -> Vec<Span> {
        let mut spans = Vec::new();
        recorder.read(0, |span| spans.push(span));
        spans
    }

    #[test]
    fn spans_leave_no_gap() {
        let recorder = Recorder::new(64).unwrap();
        let timeline = recorder.timeline(Track::Scheduler);
        timeline.end_span(Stage::Drain); // There is no beginning yet.
        timeline.set_step(7);
        timeline.end_span(Stage::Admit);
        timeline.clone().end_span(Stage::Commit);
        let spans = spans(&recorder);
        assert_eq!(spans.iter().map(|span| span.stage).collect::<Vec<_>>(), [Stage::Admit, Stage::Commit]);
        assert_eq!(spans[0].end, spans[1].start);
        assert!(spans.iter().all(|span| span.step == 7 && span.track == Track::Scheduler));
    }

    #[test]
    fn off_is_off_and_the_chain_begins_anew() {
        let recorder = Recorder::new(64).unwrap();
        let (timeline, silent) = (recorder.timeline(Track::Frontend), Timeline::silent());
        let before = timeline.begin();
        recorder.switch(false);
        timeline.end_span(Stage::Message);
        assert_eq!((timeline.span(Stage::Message, before), timeline.begin()), (0, 0));
        recorder.switch(true);
        timeline.end_span(Stage::Message);
        timeline.span(Stage::Message, 0);
        silent.end_span(Stage::Message);
        assert_eq!((spans(&recorder).len(), silent.begin()), (0, 0));
        let now = timeline.span(Stage::SseEncode, before);
        assert_eq!((spans(&recorder)[0].start, spans(&recorder)[0].end), (before, now));
    }

    #[test]
    fn the_cost_is_some_nanoseconds() {
        assert!(Recorder::cost_ns().unwrap() > 0.0);
    }
}
