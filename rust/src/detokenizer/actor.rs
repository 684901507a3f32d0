//! The Detokenizer actor: one thread of its own, which knows nothing of Python and never takes the GIL.
//!
//! ```text
//!  inbox ── OpenStream, TokensOut ──► Requests ──► one Deltas a frontend a step
//!    ▲ spin, then sleep                  └───────► StopMatched, Abort to the scheduler
//! ```
//!
//! It never blocks on a ring: what finds no room waits in an outbox and is tried again with the next message, or after
//! [`RETRY`]. It ends when its inbox is closed and read, and gives readers that are behind [`FAREWELL`] to catch up.
//! If it fails, it says why and closes every mailbox it holds, so that nobody waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::requests::Requests;
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result, panic_message};
use crate::mailbox::Mailbox;
use crate::telemetry::{Lane, Span, Stage, Timeline};

/// How long the thread spins for the next message before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// When what found no room is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// How long readers that are behind have after the inbox was closed.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often the processes of the frontends are looked after, while they have requests.
const CHECKUP: Duration = Duration::from_millis(250);

/// The handle. Dropping it does not end the thread; closing the inbox does.
pub struct Detokenizer {
    worker: Mutex<Option<Worker>>,
    shared: Arc<Shared>,
}

/// What the thread tells its handle.
#[derive(Default)]
struct Shared {
    open_streams: AtomicUsize,
    ignored: AtomicU64,
    /// Why it died.
    failure: Mutex<Option<String>>,
    ended: Mutex<bool>,
    on_end: Condvar,
}

impl Detokenizer {
    /// An actor that reads `inbox`; frontend `i` of a request's key is `frontends[i]`. `timeline` gets its spans.
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        inbox: Mailbox,
        scheduler: Mailbox,
        frontends: Vec<Mailbox>,
        timeline: Timeline,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let requests = Requests::new(vocabulary, scheduler, frontends);
        let worker = Worker { inbox, requests, shared: shared.clone(), checked: Instant::now(), timeline };
        Self { worker: Mutex::new(Some(worker)), shared }
    }

    /// Starts the thread. `InvalidArgument` the second time.
    pub fn start(&self) -> Result<()> {
        let worker = lock(&self.worker).take();
        let worker =
            worker.ok_or_else(|| Error::InvalidArgument("the detokenizer was started before".into()))?;
        let thread = thread::Builder::new().name("pyengine-detok".into());
        let spawned = thread.spawn(move || worker.live());
        spawned.map(drop).map_err(|error| {
            conclude(&self.shared, &[], || Err(Error::System(error.to_string())));
            Error::System(error.to_string())
        })
    }

    /// Waits for the thread to end; true if it has. `InvalidArgument` if it was never started.
    pub fn join(&self, timeout: Option<Duration>) -> Result<bool> {
        if lock(&self.worker).is_some() {
            return Err(Error::InvalidArgument("the detokenizer was not started".into()));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut ended = lock(&self.shared.ended);
        while !*ended {
            let Some(deadline) = deadline else {
                ended = self.shared.on_end.wait(ended).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            ended = self.shared.on_end.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    /// Requests that it has state for.
    pub fn open_streams(&self) -> usize {
        self.shared.open_streams.load(Relaxed)
    }

    /// How many openings and rows were for a frontend or a request that it does not know (any more).
    pub fn ignored(&self) -> u64 {
        self.shared.ignored.load(Relaxed)
    }

    /// Why the thread died, if it did.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }
}

struct Worker {
    inbox: Mailbox,
    requests: Requests,
    shared: Arc<Shared>,
    /// When the frontends were last looked after.
    checked: Instant,
    timeline: Timeline,
}

impl Worker {
    /// The life of the thread.
    fn live(mut self) {
        let mut mailboxes = vec![self.inbox.clone(), self.requests.scheduler.mailbox().clone()];
        mailboxes.extend(self.requests.frontends.iter().map(|frontend| frontend.mailbox().clone()));
        let shared = self.shared.clone();
        conclude(&shared, &mailboxes, || self.run());
    }

    fn run(&mut self) -> Result<()> {
        loop {
            match self.receive() {
                Ok(true) => {}
                Ok(false) => {
                    self.flush()?;
                    self.inbox.wait(self.patience(), SPIN)?;
                }
                Err(Error::MailboxClosed) => return self.farewell(),
                Err(error) => return Err(error),
            }
            self.look_after_frontends()?;
        }
    }

    /// Takes one message and answers it; false if there was none.
    fn receive(&mut self) -> Result<bool> {
        let (requests, timeline) = (&mut self.requests, &self.timeline);
        let mut start = 0;
        let received = self.inbox.receive_with(|message| {
            timeline.set_step(timeline.step() + 1);
            start = timeline.begin();
            requests.handle(message)
        });
        let Some(handled) = received? else { return Ok(false) };
        self.account(start);
        // A MailboxClosed of ours would be taken for the inbox's; none is expected here.
        handled.map_err(|error| Error::System(error.to_string()))?;
        self.flush()?;
        self.timeline.lap(Stage::Message);
        Ok(true)
    }

    /// Records what the message took that came at `start`: decoding and looking for stop strings take turns at every
    /// token, and are shown one after the other.
    fn account(&self, start: u64) {
        let now = self.timeline.begin();
        if start == 0 || now == 0 {
            return;
        }
        let (lane, step) = (Lane::Detokenizer, self.timeline.step());
        let middle = now - self.requests.stop_share.of(now - start);
        self.timeline.record(Span { stage: Stage::Detokenize, lane, start, end: middle, step });
        self.timeline.record(Span { stage: Stage::StopMatch, lane, start: middle, end: now, step });
    }

    fn flush(&mut self) -> Result<()> {
        let requests = &mut self.requests;
        self.shared.ignored.store(requests.ignored, Relaxed);
        // Known before the last delta is read, so that a reader of it sees its request gone.
        self.shared.open_streams.store(requests.len(), Relaxed);
        for frontend in 0..requests.frontends.len() {
            match requests.frontends[frontend].flush() {
                Ok(()) => {}
                Err(Error::MailboxClosed) => requests.drop_frontend(frontend as u32)?,
                Err(error) => return Err(error),
            }
        }
        self.shared.open_streams.store(requests.len(), Relaxed);
        requests.scheduler.flush()
    }

    fn look_after_frontends(&mut self) -> Result<()> {
        if self.requests.len() == 0 || self.checked.elapsed() < CHECKUP {
            return Ok(());
        }
        self.checked = Instant::now();
        for index in 0..self.requests.frontends.len() {
            let frontend = &mut self.requests.frontends[index];
            if frontend.is_open() && !frontend.mailbox().reader_alive() {
                // The mailbox stays open: a successor of the process may go on with it.
                frontend.abandon();
                self.requests.drop_frontend(index as u32)?;
            }
        }
        self.shared.open_streams.store(self.requests.len(), Relaxed);
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        let requests = &self.requests;
        requests.scheduler.is_waiting() || requests.frontends.iter().any(|frontend| frontend.is_waiting())
    }

    fn patience(&self) -> Option<Duration> {
        match (self.is_waiting(), self.requests.len()) {
            (true, _) => Some(RETRY),
            (false, 0) => None,
            (false, _) => Some(CHECKUP),
        }
    }

    /// Delivers what still waits, as long as somebody may read it.
    fn farewell(&mut self) -> Result<()> {
        let deadline = Instant::now() + FAREWELL;
        self.flush()?;
        while self.is_waiting() && Instant::now() < deadline {
            thread::sleep(RETRY);
            self.flush()?;
        }
        Ok(())
    }
}

/// Runs `life` to its end; if that was none of its own, tells why and closes the mailboxes.
fn conclude(shared: &Shared, mailboxes: &[Mailbox], life: impl FnOnce() -> Result<()>) {
    let failure = match catch_unwind(AssertUnwindSafe(life)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(format!("panic: {}", panic_message(&*panic))),
    };
    if failure.is_some() {
        *lock(&shared.failure) = failure;
        mailboxes.iter().for_each(Mailbox::close);
    }
    shared.open_streams.store(0, Relaxed);
    *lock(&shared.ended) = true;
    shared.on_end.notify_all();
}

/// A panic elsewhere leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Delta, FinishReason, Message, OpenStream, RequestKey, SequenceTokens};

    struct House {
        inbox: Mailbox,
        scheduler: Mailbox,
        frontends: Vec<Mailbox>,
        detokenizer: Detokenizer,
    }

    impl House {
        /// Tokens 0..26 are the letters, 26 is a space, 27 special.
        fn new(capacity: usize) -> Self {
            let letters: Vec<_> =
                ('a'..='z').enumerate().map(|(id, char)| format!(r#""{char}": {id}"#)).collect();
            let json = format!(
                r#"{{"added_tokens": [{{"id": 27, "content": "<|end|>", "special": true}}],
                    "decoder": {{"type": "ByteLevel"}}, "model": {{"vocab": {{{}, "Ġ": 26}}}}}}"#,
                letters.join(", ")
            );
            let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap());
            let mailbox = || Mailbox::new(capacity).unwrap();
            let (inbox, scheduler, frontends) =
                (Mailbox::new(1 << 16).unwrap(), mailbox(), vec![mailbox(), mailbox()]);
            let detokenizer = Detokenizer::new(
                vocabulary,
                inbox.clone(),
                scheduler.clone(),
                frontends.clone(),
                Timeline::silent(),
            );
            detokenizer.start().unwrap();
            Self { inbox, scheduler, frontends, detokenizer }
        }

        fn tell(&self, message: &Message) {
            let mut bytes = Vec::new();
            message.encode_into(&mut bytes).unwrap();
            while let Err(error) = self.inbox.send(&bytes) {
                assert!(matches!(error, Error::MailboxFull { .. }), "{error}");
                thread::yield_now();
            }
        }

        fn open(&self, frontend: u32, request: u64, stop: &[&str], generated: &[u32]) {
            self.tell(&Message::OpenStream(OpenStream {
                key: RequestKey { frontend, request },
                prompt_length: 5,
                generated: generated.iter().flat_map(|token| token.to_le_bytes()).collect(),
                stop: stop.iter().map(ToString::to_string).collect(),
                include_stop: false,
                skip_special_tokens: true,
                logprobs: request == 77,
            }));
        }

        fn end(&self) {
            self.inbox.close();
            assert!(self.detokenizer.join(Some(Duration::from_secs(20))).unwrap());
        }
    }

    fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(|byte| if byte == b' ' { 26 } else { u32::from(byte - b'a') }).collect()
    }

    fn row(frontend: u32, request: u64, text: &str, finish: Option<FinishReason>) -> SequenceTokens {
        let key = RequestKey { frontend, request };
        SequenceTokens { tokens: tokens(text), finish, key, ..super::super::wire::empty_row() }
    }

    fn read(mailbox: &Mailbox) -> Message {
        assert!(mailbox.wait(Some(Duration::from_secs(20)), Duration::ZERO).unwrap(), "a message comes");
        let mut bytes = Vec::new();
        assert!(mailbox.receive(&mut bytes).unwrap());
        Message::decode(&bytes).unwrap()
    }

    fn deltas(mailbox: &Mailbox) -> Vec<Delta> {
        match read(mailbox) {
            Message::Deltas(deltas) => deltas,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_step_is_one_message_a_frontend() {
        let house = House::new(1 << 16);
        for (frontend, request) in [(0, 1), (0, 2), (1, 1)] {
            house.open(frontend, request, &[], &[]);
        }
        house.tell(&Message::TokensOut(vec![
            SequenceTokens { cached_tokens: 4, ..row(0, 1, "ab", None) },
            row(1, 1, "c", None),
            row(0, 2, "d", Some(FinishReason::Length)),
            row(0, 9, "x", None),
        ]));
        let first = deltas(&house.frontends[0]);
        assert_eq!(house.detokenizer.open_streams(), 2);
        assert_eq!(
            first.iter().map(|delta| (delta.request, delta.text.as_str())).collect::<Vec<_>>(),
            [(1, "ab"), (2, "d")]
        );
        assert_eq!((first[0].prompt_tokens, first[0].cached_tokens, first[0].completion_tokens), (5, 4, 2));
        assert_eq!((first[0].finish, first[1].finish), (None, Some(FinishReason::Length)));
        assert_eq!(deltas(&house.frontends[1])[0].text, "c");
        house.end();
        assert_eq!((house.detokenizer.ignored(), house.detokenizer.open_streams()), (1, 0));
        assert_eq!(
            (house.frontends[0].used(), house.scheduler.used(), house.detokenizer.failure()),
            (0, 0, None)
        );
        assert!(!house.frontends[0].is_closed());
    }

    #[test]
    fn a_stop_string_ends_the_request_and_later_tokens_are_nothing() {
        let house = House::new(1 << 16);
        house.open(0, 1, &["stop"], &[]);
        for text in ["ok st", "opping", "x"] {
            house.tell(&Message::TokensOut(vec![row(0, 1, text, None)]));
        }
        house.end();
        let first = &deltas(&house.frontends[0])[0];
        assert_eq!((first.text.as_str(), first.tokens.len(), first.finish), ("ok ", 5, None));
        let last = &deltas(&house.frontends[0])[0];
        assert_eq!((last.text.as_str(), &last.tokens, last.completion_tokens), ("", &tokens("op"), 7));
        assert_eq!((last.finish, last.stop_string.as_deref()), (Some(FinishReason::Stop), Some("stop")));
        assert_eq!(read(&house.scheduler), Message::StopMatched(RequestKey { frontend: 0, request: 1 }));
        assert_eq!((house.frontends[0].used(), house.scheduler.used()), (0, 0));
    }

    #[test]
    fn a_stop_token_counts_but_is_no_text_and_withheld_text_comes_out() {
        let house = House::new(1 << 16);
        house.open(0, 1, &["bx"], &[]);
        let finished = row(0, 1, "abe", Some(FinishReason::Stop));
        house.tell(&Message::TokensOut(vec![SequenceTokens { stop_token: Some(4), ..finished }]));
        let last = &deltas(&house.frontends[0])[0];
        assert_eq!((last.text.as_str(), last.stop_token, last.completion_tokens), ("ab", Some(4), 3));
        assert_eq!(
            (last.finish, last.stop_string.as_deref(), last.tokens.len()),
            (Some(FinishReason::Stop), None, 3)
        );
        house.end();
    }

    #[test]
    fn a_request_goes_on_after_a_restart() {
        let house = House::new(1 << 16);
        house.open(0, 1, &["stop"], &tokens("ok st"));
        house.tell(&Message::TokensOut(vec![row(0, 1, "ay", None)]));
        let delta = &deltas(&house.frontends[0])[0];
        assert_eq!((delta.text.as_str(), delta.tokens.len(), delta.completion_tokens), ("stay", 2, 7));
        // One whose last delta was lost.
        house.open(0, 2, &["stop"], &tokens("ok stop"));
        let last = &deltas(&house.frontends[0])[0];
        assert_eq!(
            (last.text.as_str(), last.finish, last.completion_tokens),
            ("", Some(FinishReason::Stop), 7)
        );
        assert_eq!(read(&house.scheduler), Message::StopMatched(RequestKey { frontend: 0, request: 2 }));
        house.end();
    }

    #[test]
    fn a_slow_reader_neither_loses_nor_hinders() {
        let house = House::new(4096);
        house.open(0, 1, &[], &[]);
        house.open(1, 1, &[], &[]);
        let mut quick = String::new();
        for step in 0..600 {
            let finish = (step == 599).then_some(FinishReason::Length);
            house.tell(&Message::TokensOut(vec![row(0, 1, "slow ", finish), row(1, 1, "quick ", finish)]));
            quick.push_str(&deltas(&house.frontends[1])[0].text);
        }
        assert_eq!(quick, "quick ".repeat(600));
        let (mut slow, mut count, mut finish) = (String::new(), 0, None);
        while finish.is_none() {
            for delta in deltas(&house.frontends[0]) {
                slow.push_str(&delta.text);
                count += delta.tokens.len();
                finish = delta.finish;
                assert_eq!(delta.completion_tokens as usize, count);
            }
        }
        assert_eq!((slow, count), ("slow ".repeat(600), 3000));
        house.end();
    }

    #[test]
    fn the_requests_of_a_closed_frontend_are_aborted() {
        let house = House::new(1 << 16);
        for (frontend, request) in [(0, 1), (0, 2), (1, 1)] {
            house.open(frontend, request, &[], &[]);
        }
        house.frontends[0].close();
        house.tell(&Message::TokensOut(vec![row(0, 1, "a", None), row(1, 1, "b", None)]));
        house.open(0, 3, &[], &[]);
        let mut aborted = Vec::new();
        while aborted.len() < 3 {
            match read(&house.scheduler) {
                Message::Abort(key) if key.frontend == 0 => aborted.push(key.request),
                other => panic!("{other:?}"),
            }
        }
        aborted.sort_unstable();
        assert_eq!(aborted, [1, 2, 3]);
        assert_eq!(deltas(&house.frontends[1])[0].text, "b");
        assert_eq!(house.detokenizer.open_streams(), 1);
        house.end();
    }

    #[test]
    fn what_it_cannot_do_is_answered() {
        let house = House::new(1 << 16);
        house.open(0, 1, &[""], &[]);
        assert_eq!(deltas(&house.frontends[0])[0].finish, Some(FinishReason::Error));
        assert_eq!(read(&house.scheduler), Message::Abort(RequestKey { frontend: 0, request: 1 }));
        house.open(7, 1, &[], &[]);
        house.end();
        assert_eq!((house.detokenizer.ignored(), house.detokenizer.failure()), (1, None));
    }

    #[test]
    fn a_failure_is_told_and_closes_the_mailboxes() {
        let house = House::new(1 << 16);
        house.inbox.send(b"\x92\xa5abort\xc0").unwrap();
        assert!(house.detokenizer.join(Some(Duration::from_secs(20))).unwrap());
        assert!(house.detokenizer.failure().unwrap().contains("abort"));
        assert!(house.inbox.is_closed() && house.scheduler.is_closed() && house.frontends[1].is_closed());
        assert!(matches!(house.detokenizer.start(), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn a_panic_is_a_failure() {
        let (shared, mailbox) = (Shared::default(), Mailbox::new(4096).unwrap());
        conclude(&shared, std::slice::from_ref(&mailbox), || panic!("on purpose"));
        assert_eq!(lock(&shared.failure).as_deref(), Some("panic: on purpose"));
        assert!(mailbox.is_closed() && *lock(&shared.ended));
    }
}
