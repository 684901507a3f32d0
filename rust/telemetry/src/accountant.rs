//! The accountant: reads a recorder's spans into the [`books`](super::books).
//!
//! The engine's process runs one as a thread that sweeps ten times a second, so that nothing is overwritten before it is
//! read.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::books::{Books, Totals};
use super::clock::now_ns;
use super::recorder::Recorder;
use super::ring::Cursor;
use pyengine_base::error::{Error, Result};

/// How often the thread sweeps.
const PERIOD: Duration = Duration::from_millis(100);

struct State {
    books: Books,
    cursor: Cursor,
    stopped: bool,
}

struct Shared {
    recorder: Recorder,
    state: Mutex<State>,
    on_stop: Condvar,
}

/// Sweeps a recorder's spans into totals: on demand, and ten times a second once started. Dropping it stops it.
pub struct Accountant {
    shared: Arc<Shared>,
}

impl Accountant {
    /// Begins now; what was recorded before does not count.
    pub fn new(recorder: Recorder) -> Self {
        let cursor = Cursor::new(recorder.recorded());
        let state = State { books: Books::new(now_ns()), cursor, stopped: false };
        Self { shared: Arc::new(Shared { recorder, state: Mutex::new(state), on_stop: Condvar::new() }) }
    }

    /// Starts the thread.
    pub fn start(&self) -> Result<()> {
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name("pyengine-account".into());
        let life = move || {
            let mut state = lock(&shared.state);
            while !state.stopped {
                shared.sweep(&mut state);
                state = shared.on_stop.wait_timeout(state, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        thread.spawn(life).map(drop).map_err(|error| Error::System(error.to_string()))
    }

    /// Ends the thread, now or within a sweep.
    pub fn stop(&self) {
        lock(&self.shared.state).stopped = true;
        self.shared.on_stop.notify_all();
    }

    /// Everything up to now.
    pub fn totals(&self) -> Totals {
        let mut state = lock(&self.shared.state);
        self.shared.sweep(&mut state);
        Totals { lost: state.cursor.lost, ..state.books.totals.clone() }
    }
}

impl Drop for Accountant {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn sweep(&self, state: &mut State) {
        let State { books, cursor, .. } = state;
        // In this order: a step that ends meanwhile has its interval read below, one that begins meanwhile begins
        // after `now`.
        let now = now_ns();
        let since = self.recorder.in_flight_since();
        self.recorder.read_with(cursor, |span| books.take(span));
        books.judge(now, since);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Stage, Track};

    #[test]
    fn the_thread_sweeps_until_it_is_stopped() {
        let recorder = Recorder::new(1 << 12).unwrap();
        let accountant = Accountant::new(recorder.clone());
        accountant.start().unwrap();
        let timeline = recorder.timeline(Track::Detokenizer);
        timeline.begin();
        timeline.end_span(Stage::Detokenize);
        while lock(&accountant.shared.state).books.totals.spans == 0 {
            thread::yield_now();
        }
        accountant.stop();
        timeline.end_span(Stage::Detokenize);
        let totals = accountant.totals();
        assert_eq!(totals.stages[Track::Detokenizer as usize][Stage::Detokenize as usize].count, 2);
        assert_eq!((totals.spans, totals.lost), (2, 0));
    }
}
