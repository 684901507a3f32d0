//! Messages to the detokenizer, sent in order and without loss, though its ring may be full.
//!
//! Rows are encoded as they come, and leave as one `TokensOut` at the end of a call of the planner. While the ring is full, messages are held and tried again at the next call. O(bytes) a call; no
//! allocation while the ring has room.

use std::collections::VecDeque;

use pyengine_base::error::{Error, Result};
use pyengine_messages::{Batch, Extension, Extra, Message, OpenStream, RequestExtra, RequestKey, TokensRef};

/// Sends one message, or says that the ring is full.
pub type DetokenizerSink = Box<dyn FnMut(&[u8]) -> Result<()> + Send>;

/// A ring takes a few rows in one message at least.
const LEAST_LIMIT: usize = 576;

/// Collects and sends messages to the detokenizer.
pub struct Outbox {
    sink: DetokenizerSink,
    limit: usize,
    /// The next `TokensOut`.
    rows: Batch,
    /// Log-probabilities of the row that comes next.
    logprobs: Vec<u8>,
    scratch: Vec<u8>,
    /// Messages that the ring had no room for, or that had no room for more rows.
    held: VecDeque<Vec<u8>>,
}

impl Outbox {
    /// Sends through `sink`, which takes messages of at most `limit` bytes.
    pub fn new(sink: DetokenizerSink, limit: usize) -> Result<Self> {
        if limit < LEAST_LIMIT {
            return Err(Error::InvalidArgument(format!(
                "the detokenizer's mailbox takes messages of {limit} bytes; at least {LEAST_LIMIT} are needed"
            )));
        }
        Ok(Self {
            sink,
            limit,
            rows: Batch::new("tokens_out"),
            logprobs: Vec::new(),
            scratch: Vec::new(),
            held: VecDeque::new(),
        })
    }

    /// Messages that wait, because the ring had no room for them.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.held.is_empty()
    }

    /// Adds a row to the next `TokensOut`, with the log-probabilities that were appended. A message that it would make too
    /// large waits for [`flush`](Self::flush) without it.
    pub fn row(&mut self, row: TokensRef<'_>) {
        // Memory can always be written to, so that no error can come of it.
        let full = self.rows.push_within(&TokensRef { logprobs: &self.logprobs, ..row }, self.limit);
        debug_assert!(full.is_ok());
        self.held.extend(full.ok().flatten());
        self.logprobs.clear();
    }

    /// Where the log-probabilities of the next row are appended.
    pub fn logprobs(&mut self) -> &mut Vec<u8> {
        &mut self.logprobs
    }

    /// Sends what a feature gives back with a request's answer, before the rows of this call.
    pub fn extra<T: Extension>(&mut self, key: RequestKey, body: &T) {
        // A body can always be encoded to memory.
        let sent =
            Extra::of(body).and_then(|extra| self.beside(&Message::Extra(RequestExtra { key, extra })));
        debug_assert_eq!(sent, Ok(()));
    }

    /// Sends a message about a request besides its tokens, before the rows of this call.
    pub fn beside(&mut self, message: &Message) -> Result<()> {
        self.scratch.clear();
        message.encode_into(&mut self.scratch)?;
        // As in `open`.
        let _ = self.send_scratch();
        Ok(())
    }

    /// Announces a request. False if the announcement is too large for the ring: a bare one went instead, so that
    /// the request can be ended with an error.
    pub fn open(&mut self, stream: OpenStream) -> Result<bool> {
        let whole = stream.generated.len() <= self.limit && {
            self.encode_open(&stream)?;
            self.scratch.len() <= self.limit
        };
        if !whole {
            self.encode_open(&OpenStream { generated: Vec::new(), stop: Vec::new(), ..stream })?;
        }
        // A closed mailbox is reported by `flush`, when the state is whole.
        let _ = self.send_scratch();
        Ok(whole)
    }

    fn encode_open(&mut self, stream: &OpenStream) -> Result<()> {
        self.scratch.clear();
        rmp_serde::encode::write(&mut self.scratch, &("open_stream", stream))
            .map_err(|error| Error::MalformedMessage(error.to_string()))
    }

    /// Sends what was held and the rows of this call. Full is no error; closed is, and then nothing is lost either.
    pub fn flush(&mut self) -> Result<()> {
        let retried = self.retry();
        if self.rows.is_empty() {
            return retried;
        }
        let sent = send(&mut self.sink, &mut self.held, self.rows.message());
        self.rows.clear();
        retried.and(sent)
    }

    fn retry(&mut self) -> Result<()> {
        while let Some(message) = self.held.front() {
            match (self.sink)(message) {
                Ok(()) => drop(self.held.pop_front()),
                Err(Error::MailboxFull { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_scratch(&mut self) -> Result<()> {
        send(&mut self.sink, &mut self.held, &self.scratch)
    }
}

/// Sends a message behind those that are `held`, or holds it, too.
fn send(sink: &mut DetokenizerSink, held: &mut VecDeque<Vec<u8>>, message: &[u8]) -> Result<()> {
    let sent = if held.is_empty() { sink(message) } else { Err(Error::MailboxFull { needed: 0, free: 0 }) };
    let Err(error) = sent else { return Ok(()) };
    held.push_back(message.to_vec());
    if matches!(error, Error::MailboxFull { .. }) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use pyengine_messages::{Counts, FinishReason, Message, SequenceTokens};

    type Ring = Arc<Mutex<(Vec<Vec<u8>>, usize)>>;

    fn outbox(limit: usize, room: usize) -> (Outbox, Ring) {
        let ring: Ring = Arc::new(Mutex::new((Vec::new(), room)));
        let inner = ring.clone();
        let sink: DetokenizerSink = Box::new(move |bytes| {
            let mut ring = inner.lock().unwrap();
            assert!(bytes.len() <= limit);
            if ring.0.len() >= ring.1 {
                return Err(Error::MailboxFull { needed: bytes.len(), free: 0 });
            }
            ring.0.push(bytes.to_vec());
            Ok(())
        });
        (Outbox::new(sink, limit).unwrap(), ring)
    }

    fn row(request: u64, finish: Option<FinishReason>, tokens: &[u32]) -> TokensRef<'_> {
        let key = RequestKey { frontend: u32::MAX, request };
        let [cached_tokens, queued_us, accepted_drafts, rejected_drafts] = [u32::MAX; 4];
        let counts = Some(Counts { cached_tokens, queued_us, accepted_drafts, rejected_drafts });
        let stop_token = Some(u32::MAX);
        TokensRef { key, tokens, finish, stop_token, counts, committed_ns: u64::MAX, logprobs: &[] }
    }

    #[test]
    fn a_row_takes_the_log_probabilities_that_came_before_it() {
        let (mut out, ring) = outbox(1 << 16, 10);
        for request in 0..3 {
            if request == 1 {
                out.logprobs().extend([1, 2, 3]);
            }
            out.row(row(request, None, &[7]));
        }
        out.flush().unwrap();
        let Message::TokensOut(rows) = Message::decode(&ring.lock().unwrap().0[0]).unwrap() else { panic!() };
        let logprobs = |row: &SequenceTokens| row.logprobs.clone();
        assert_eq!(rows.iter().map(logprobs).collect::<Vec<_>>(), [vec![], vec![1, 2, 3], vec![]]);
    }

    #[test]
    fn a_full_ring_keeps_order_and_loses_nothing() {
        let (mut out, ring) = outbox(1 << 16, 0);
        for request in 0..5 {
            out.row(row(request, None, &[1]));
            out.flush().unwrap();
        }
        assert_eq!(out.held(), 5);
        ring.lock().unwrap().1 = 3;
        out.flush().unwrap();
        ring.lock().unwrap().1 = 100;
        out.row(row(5, None, &[1]));
        out.flush().unwrap();
        let seen: Vec<_> =
            ring.lock().unwrap().0.iter().map(|bytes| Message::decode(bytes).unwrap()).collect();
        let requests = seen.iter().map(|message| match message {
            Message::TokensOut(rows) => rows[0].key.request,
            other => panic!("{other:?}"),
        });
        assert_eq!(requests.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_short_message_does_not_overtake_a_long_one() {
        let ring: Ring = Arc::new(Mutex::new((Vec::new(), 64)));
        let inner = ring.clone();
        let sink: DetokenizerSink = Box::new(move |bytes| {
            let mut ring = inner.lock().unwrap();
            if bytes.len() > ring.1 {
                return Err(Error::MailboxFull { needed: bytes.len(), free: ring.1 });
            }
            ring.0.push(bytes.to_vec());
            Ok(())
        });
        let mut out = Outbox::new(sink, 1 << 16).unwrap();
        (0..5).for_each(|request| out.row(row(request, None, &[1])));
        out.flush().unwrap();
        out.row(TokensRef { stop_token: None, ..row(5, None, &[]) });
        out.flush().unwrap();
        assert_eq!((out.held(), ring.lock().unwrap().0.len()), (2, 0));
        ring.lock().unwrap().1 = 1 << 16;
        out.flush().unwrap();
        let lengths: Vec<_> = ring.lock().unwrap().0.iter().map(Vec::len).collect();
        assert!(lengths.len() == 2 && lengths[0] > lengths[1]);
    }

    #[test]
    fn messages_that_are_too_large_are_split_or_cut() {
        let (mut out, ring) = outbox(LEAST_LIMIT, 100);
        (0..50).for_each(|request| out.row(row(request, Some(FinishReason::Overloaded), &[u32::MAX; 16])));
        out.flush().unwrap();
        let messages = std::mem::take(&mut ring.lock().unwrap().0);
        let rows = messages.iter().flat_map(|bytes| match Message::decode(bytes).unwrap() {
            Message::TokensOut(rows) => rows,
            other => panic!("{other:?}"),
        });
        assert!(rows.map(|row| (row.key.request, row.tokens.len())).eq((0..50).map(|at| (at, 16))));
        assert!(messages.len() > 10);
        let key = RequestKey { frontend: 0, request: 1 };
        let stop = vec!["x".repeat(1000)];
        for generated in [vec![0; 4], vec![0; 4000]] {
            let stop = stop.clone();
            let stream = OpenStream {
                key,
                prompt_length: 1,
                generated,
                stop,
                include_stop: false,
                skip_special_tokens: true,
                places: false,
            };
            assert!(!out.open(stream).unwrap());
        }
    }
}
