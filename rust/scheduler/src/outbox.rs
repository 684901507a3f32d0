//! Messages to the detokenizer, sent in order and without loss, though its ring may be full.
//!
//! Rows are encoded as they come, without building the owned message, and leave as one `TokensOut` at the end of a
//! call of the planner. While the ring is full, messages are held and tried again at the next call. O(bytes) a call; no
//! allocation while the ring has room.

use std::collections::VecDeque;

use rmp::encode::{ByteBuf, write_array_len, write_bin, write_nil, write_str, write_uint};

use pyengine_base::error::{Error, Result};
use pyengine_messages::{FinishReason, Message, OpenStream, RequestKey};

/// Sends one message, or says that the ring is full.
pub type DetokenizerSink = Box<dyn FnMut(&[u8]) -> Result<()> + Send>;

/// More than a row without its tokens, or the frame around the rows, can take in msgpack.
const ROW_BYTES: usize = 72;
/// A token takes at most this.
const TOKEN_BYTES: usize = 5;

/// A request's changes in one call of the planner; sent with its tokens as a `SequenceTokens`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutRow {
    /// The request.
    pub key: RequestKey,
    /// Set in the request's last row.
    pub finish: Option<FinishReason>,
    /// The token that ended it.
    pub stop_token: Option<u32>,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u32,
    /// Microseconds that it waited, with its first token and its last.
    pub queued_us: u32,
    /// Draft tokens taken up to here.
    pub accepted_drafts: u32,
    /// Draft tokens dropped up to here.
    pub rejected_drafts: u32,
}

impl OutRow {
    /// Appends what a [`SequenceTokens`](pyengine_messages::SequenceTokens) of this row would be. Memory can always be
    /// written to, so that no error can come of it.
    fn encode(&self, tokens: &[u32], logprobs: &[u8], out: &mut ByteBuf) {
        let Ok(_) = write_array_len(out, 9);
        let Ok(_) = write_array_len(out, 2);
        let Ok(_) = write_uint(out, self.key.frontend.into());
        let Ok(_) = write_uint(out, self.key.request);
        let Ok(_) = write_array_len(out, tokens.len() as u32);
        for &token in tokens {
            let Ok(_) = write_uint(out, token.into());
        }
        match self.finish {
            None => {
                let Ok(()) = write_nil(out);
            }
            Some(reason) => {
                rmp_serde::encode::write(out.as_mut_vec(), &reason).expect("a name can be written to memory");
            }
        }
        match self.stop_token {
            None => {
                let Ok(()) = write_nil(out);
            }
            Some(token) => {
                let Ok(_) = write_uint(out, token.into());
            }
        }
        for number in [self.cached_tokens, self.queued_us, self.accepted_drafts, self.rejected_drafts] {
            let Ok(_) = write_uint(out, number.into());
        }
        let Ok(()) = write_bin(out, logprobs);
    }
}

/// Collects and sends messages to the detokenizer.
pub struct Outbox {
    sink: DetokenizerSink,
    limit: usize,
    /// Rows of the next `TokensOut`, encoded, and how many.
    rows: ByteBuf,
    count: u32,
    /// Log-probabilities of the row that comes next.
    logprobs: Vec<u8>,
    scratch: Vec<u8>,
    /// Messages that the ring had no room for, or that had no room for more rows.
    held: VecDeque<Vec<u8>>,
}

impl Outbox {
    /// Sends through `sink`, which takes messages of at most `limit` bytes.
    pub fn new(sink: DetokenizerSink, limit: usize) -> Result<Self> {
        if limit < 8 * ROW_BYTES {
            return Err(Error::InvalidArgument(format!(
                "the detokenizer's mailbox takes messages of {limit} bytes; at least {} are needed",
                8 * ROW_BYTES
            )));
        }
        Ok(Self {
            sink,
            limit,
            rows: ByteBuf::new(),
            count: 0,
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
        self.count == 0 && self.held.is_empty()
    }

    /// Adds a row with its new tokens to the next `TokensOut`. A message that it would make too large waits for
    /// [`flush`](Self::flush) without it.
    pub fn row(&mut self, row: OutRow, tokens: &[u32]) {
        let most = ROW_BYTES + TOKEN_BYTES * tokens.len() + self.logprobs.len();
        if self.count > 0 && ROW_BYTES + self.rows.as_slice().len() + most > self.limit {
            self.frame_rows();
            self.held.push_back(self.scratch.clone());
        }
        row.encode(tokens, &self.logprobs, &mut self.rows);
        self.count += 1;
        self.logprobs.clear();
    }

    /// Where the log-probabilities of the next row are appended.
    pub fn logprobs(&mut self) -> &mut Vec<u8> {
        &mut self.logprobs
    }

    /// Sends a notice or a vector of a request besides its tokens, before the rows of this call.
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
        if self.count == 0 {
            return retried;
        }
        self.frame_rows();
        let sent = self.send_scratch();
        retried.and(sent)
    }

    /// Makes one message of the rows, in `scratch`.
    fn frame_rows(&mut self) {
        self.scratch.clear();
        let mut message = ByteBuf::from_vec(std::mem::take(&mut self.scratch));
        let Ok(_) = write_array_len(&mut message, 2);
        let Ok(()) = write_str(&mut message, "tokens_out");
        let Ok(_) = write_array_len(&mut message, self.count);
        self.scratch = message.into_vec();
        self.scratch.append(self.rows.as_mut_vec());
        self.count = 0;
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
        let sent = if self.held.is_empty() {
            (self.sink)(&self.scratch)
        } else {
            Err(Error::MailboxFull { needed: 0, free: 0 })
        };
        let Err(error) = sent else { return Ok(()) };
        self.held.push_back(self.scratch.clone());
        if matches!(error, Error::MailboxFull { .. }) { Ok(()) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use pyengine_messages::{Message, SequenceTokens};

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

    fn row(request: u64, finish: Option<FinishReason>) -> OutRow {
        let key = RequestKey { frontend: u32::MAX, request };
        let [cached_tokens, queued_us, accepted_drafts, rejected_drafts] = [u32::MAX; 4];
        let stop_token = Some(u32::MAX);
        OutRow { key, finish, stop_token, cached_tokens, queued_us, accepted_drafts, rejected_drafts }
    }

    #[test]
    fn rows_are_what_the_owned_message_would_be_and_fit_their_bound() {
        let (mut out, ring) = outbox(1 << 16, 10);
        let tokens = [vec![u32::MAX; 3], vec![], vec![7]];
        let rows = [row(u64::MAX, Some(FinishReason::Overloaded)), row(1, None), row(2, None)];
        rows.iter().zip(&tokens).for_each(|(row, tokens)| {
            if row.key.request == 1 {
                out.logprobs().extend([1, 2, 3]);
            }
            out.row(*row, tokens);
        });
        out.flush().unwrap();
        let wanted = rows.iter().zip(tokens).map(|(row, tokens)| SequenceTokens {
            key: row.key,
            tokens,
            finish: row.finish,
            stop_token: row.stop_token,
            cached_tokens: row.cached_tokens,
            queued_us: row.queued_us,
            accepted_drafts: row.accepted_drafts,
            rejected_drafts: row.rejected_drafts,
            logprobs: if row.key.request == 1 { vec![1, 2, 3] } else { Vec::new() },
        });
        let mut bytes = Vec::new();
        Message::TokensOut(wanted.collect()).encode_into(&mut bytes).unwrap();
        assert_eq!(ring.lock().unwrap().0, [bytes.clone()]);
        assert!(bytes.len() < 3 * ROW_BYTES + 4 * TOKEN_BYTES + 16);
    }

    #[test]
    fn a_full_ring_keeps_order_and_loses_nothing() {
        let (mut out, ring) = outbox(1 << 16, 0);
        for request in 0..5 {
            out.row(row(request, None), &[1]);
            out.flush().unwrap();
        }
        assert_eq!(out.held(), 5);
        ring.lock().unwrap().1 = 3;
        out.flush().unwrap();
        ring.lock().unwrap().1 = 100;
        out.row(row(5, None), &[1]);
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
        (0..5).for_each(|request| out.row(row(request, None), &[1]));
        out.flush().unwrap();
        out.row(OutRow { stop_token: None, ..row(5, None) }, &[]);
        out.flush().unwrap();
        assert_eq!((out.held(), ring.lock().unwrap().0.len()), (2, 0));
        ring.lock().unwrap().1 = 1 << 16;
        out.flush().unwrap();
        let lengths: Vec<_> = ring.lock().unwrap().0.iter().map(Vec::len).collect();
        assert!(lengths.len() == 2 && lengths[0] > lengths[1]);
    }

    #[test]
    fn messages_that_are_too_large_are_split_or_cut() {
        let (mut out, ring) = outbox(8 * ROW_BYTES, 100);
        (0..50).for_each(|request| out.row(row(request, Some(FinishReason::Overloaded)), &[u32::MAX; 16]));
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
                logprobs: false,
            };
            assert!(!out.open(stream).unwrap());
        }
    }
}
