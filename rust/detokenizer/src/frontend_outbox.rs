//! The outbox of a frontend: deltas wait here for a slow reader, without blocking the thread and without being lost.
//!
//! ```text
//!            add            flush, the ring has room
//!  deltas ────────► batch ─────────────────────────────► ring of the frontend
//!                     │ the ring is full                  ▲
//!                     ▼                                   │ flush, later
//!                  waiting: one delta per request, grown ─┘
//! ```
//!
//! While a reader is behind, the deltas of a request become one: its texts and tokens joined. So their size is bounded
//! by what the requests may generate. A delta that does not fit the ring is cut in two.
//! O(bytes) a delta; nothing is allocated while the reader keeps up.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use pyengine_base::error::{Error, Result};
use pyengine_mailbox::Mailbox;
use pyengine_messages::{Batch, Delta, DeltaRef, encoded_size, read_batch};

/// A message of waiting deltas has room for a few tokens at least, be the ring ever so small.
const LEAST_LIMIT: usize = 128;
/// Bytes of a token on the wire at most.
const TOKEN_BYTES: usize = 5;

/// The outbox of one frontend.
pub(super) struct FrontendOutbox {
    mailbox: Mailbox,
    /// The deltas of this step.
    batch: Batch,
    /// Deltas that found no room, oldest first.
    waiting: VecDeque<Delta>,
    /// Where the last delta of each request is in `waiting`, counted from the first delta that ever waited.
    last: FxHashMap<u64, usize>,
    /// How many deltas have left `waiting`.
    gone: usize,
    /// The longest message of waiting deltas, in bytes: small beside the ring, so that it soon finds room.
    limit: usize,
    open: bool,
}

impl FrontendOutbox {
    pub fn new(mailbox: Mailbox) -> Self {
        let limit = (mailbox.max_message() / 4).max(LEAST_LIMIT);
        Self {
            mailbox,
            batch: Batch::new("deltas"),
            waiting: VecDeque::new(),
            last: FxHashMap::default(),
            gone: 0,
            limit,
            open: true,
        }
    }

    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    pub fn is_open(&self) -> bool {
        self.open
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The longest stop string that a delta can name.
    pub fn longest_stop(&self) -> usize {
        self.mailbox.max_message() / 2
    }

    /// Adds a delta to the next [`Self::flush`].
    pub fn add(&mut self, delta: DeltaRef<'_>) -> Result<()> {
        if self.open { self.batch.push(&delta) } else { Ok(()) }
    }

    /// Sends the batch as one message, or behind the deltas that wait. What finds no room keeps waiting.
    ///
    /// # Errors
    /// `MailboxClosed` when the frontend has closed its mailbox (once) or died; then what waits for it is dropped.
    pub fn flush(&mut self) -> Result<()> {
        if self.open && self.mailbox.is_closed() {
            // Also where there is nothing to send: otherwise its requests would run on.
            return self.failed(Error::MailboxClosed);
        }
        if !self.batch.is_empty() && self.waiting.is_empty() {
            match self.mailbox.send(self.batch.message()) {
                Ok(()) => {
                    self.batch.clear();
                    return Ok(());
                }
                Err(Error::MailboxFull { .. } | Error::MessageTooLarge { .. }) => {}
                Err(error) => return self.failed(error),
            }
        }
        if !self.batch.is_empty() {
            let mut deltas = Vec::new();
            read_batch(self.batch.message(), |delta| {
                deltas.push(delta);
                Ok(())
            })?;
            deltas.into_iter().for_each(|delta| self.wait(delta));
            self.batch.clear();
        }
        while !self.waiting.is_empty() {
            match self.send_first() {
                Ok(()) => {}
                Err(Error::MailboxFull { .. }) => return Ok(()),
                Err(error) => return self.failed(error),
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        if error == Error::MailboxClosed {
            self.open = !self.mailbox.is_closed();
            self.abandon();
        }
        Err(error)
    }

    /// Drops what waits, for a reader that has died. Another may take its place and its mailbox.
    pub fn abandon(&mut self) {
        self.batch.clear();
        self.waiting.clear();
        self.last.clear();
    }

    /// Sends as many of the waiting deltas as one message takes.
    fn send_first(&mut self) -> Result<()> {
        self.batch.clear();
        let (mut count, mut bytes) = (0, 0);
        for delta in &self.waiting {
            bytes += encoded_size(delta);
            if count > 0 && bytes > self.limit {
                break;
            }
            self.batch.push(delta)?;
            count += 1;
        }
        let sent = self.mailbox.send(self.batch.message());
        self.batch.clear();
        sent?;
        for delta in self.waiting.drain(..count) {
            if self.last.get(&delta.request) == Some(&self.gone) {
                self.last.remove(&delta.request);
            }
            self.gone += 1;
        }
        Ok(())
    }

    /// Lets `delta` wait, joined to the one of its request that waits already, if both fit one message.
    fn wait(&mut self, mut delta: Delta) {
        if let Some(&at) = self.last.get(&delta.request) {
            let before = &mut self.waiting[at - self.gone];
            if encoded_size(before) + encoded_size(&delta) <= self.limit {
                join(before, delta);
                return;
            }
        }
        while let Some(part) = cut(&mut delta, self.limit) {
            self.waiting.push_back(part);
        }
        self.last.insert(delta.request, self.gone + self.waiting.len());
        self.waiting.push_back(delta);
    }
}

fn join(before: &mut Delta, delta: Delta) {
    let mut text = std::mem::take(&mut before.text);
    let mut tokens = std::mem::take(&mut before.tokens);
    text.push_str(&delta.text);
    tokens.extend_from_slice(&delta.tokens);
    let mut logprobs = std::mem::take(&mut before.logprobs);
    logprobs.extend_from_slice(&delta.logprobs);
    let mut extras = std::mem::take(&mut before.extras);
    extras.extend_from_slice(&delta.extras);
    let notice = before.notice.take().or_else(|| delta.notice.clone());
    let committed_ns = if before.committed_ns > 0 { before.committed_ns } else { delta.committed_ns };
    *before = Delta { text, tokens, committed_ns, notice, logprobs, extras, ..delta };
}

/// Takes a first part off a delta that is over `limit` for its text or its tokens.
fn cut(delta: &mut Delta, limit: usize) -> Option<Delta> {
    let words = delta.text.len() + encoded_size(&delta.tokens) + delta.logprobs.len();
    // A stop string or an extra may be longer than that; the rest goes on all the same.
    let room = (limit + words).saturating_sub(encoded_size(delta)).max(limit / 4);
    // Bytes of a token's log-probabilities.
    let record = delta.logprobs.len() / delta.tokens.len().max(1);
    let each = TOKEN_BYTES + record;
    if delta.text.len() + delta.tokens.len() * each <= room {
        return None;
    }
    // One token at least, be the ring ever so small.
    let tokens = delta.tokens.len().min((room / 2 / each).max(1));
    let mut text = delta.text.len().min(room.saturating_sub(tokens * each));
    while !delta.text.is_char_boundary(text) {
        text -= 1;
    }
    let after = delta.tokens.split_off(tokens);
    let logprobs_after = delta.logprobs.split_off(tokens * record);
    let part = Delta {
        text: delta.text[..text].to_owned(),
        tokens: std::mem::replace(&mut delta.tokens, after),
        logprobs: std::mem::replace(&mut delta.logprobs, logprobs_after),
        finish: None,
        stop_string: None,
        stop_token: None,
        notice: delta.notice.take(),
        extras: std::mem::take(&mut delta.extras),
        completion_tokens: delta.completion_tokens - delta.tokens.len() as u32,
        ..*delta
    };
    delta.text.drain(..text);
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pyengine_messages::{FinishReason, Message};

    fn delta<'a>(request: u64, text: &'a str, tokens: &'a [u32], completion_tokens: u32) -> DeltaRef<'a> {
        DeltaRef { request, text, tokens, prompt_tokens: 1, completion_tokens, ..DeltaRef::default() }
    }

    fn read(mailbox: &Mailbox) -> Option<Vec<Delta>> {
        let mut bytes = Vec::new();
        if !mailbox.receive(&mut bytes).unwrap() {
            return None;
        }
        match Message::decode(&bytes).unwrap() {
            Message::Deltas(deltas) => Some(deltas),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_message_a_flush_while_there_is_room() {
        let mailbox = Mailbox::new(4096).unwrap();
        let mut outbox = FrontendOutbox::new(mailbox.clone());
        outbox.flush().unwrap();
        for request in 0..3 {
            outbox.add(delta(request, "a", &[7], 1)).unwrap();
        }
        outbox.flush().unwrap();
        assert_eq!(read(&mailbox).unwrap().len(), 3);
        assert_eq!(read(&mailbox), None);
        assert!(!outbox.is_waiting());
    }

    #[test]
    fn a_slow_reader_loses_nothing() {
        let mailbox = Mailbox::new(4096).unwrap();
        let mut outbox = FrontendOutbox::new(mailbox.clone());
        let (mut text, mut tokens) = (vec![String::new(); 5], vec![Vec::new(); 5]);
        for step in 0..400u32 {
            for request in 0..5usize {
                let (new, token) = (format!("é{step},"), step * 70_000);
                text[request].push_str(&new);
                tokens[request].push(token);
                outbox.add(delta(request as u64, &new, &[token], step + 1)).unwrap();
            }
            outbox.flush().unwrap();
        }
        assert!(outbox.is_waiting());
        assert!(outbox.waiting.len() < 100, "deltas are joined: {}", outbox.waiting.len());
        let (mut read_text, mut read_tokens) = (vec![String::new(); 5], vec![Vec::new(); 5]);
        loop {
            while let Some(deltas) = read(&mailbox) {
                for delta in deltas {
                    let request = delta.request as usize;
                    read_text[request].push_str(&delta.text);
                    read_tokens[request].extend(delta.tokens);
                    assert_eq!(delta.completion_tokens as usize, read_tokens[request].len());
                }
            }
            if !outbox.is_waiting() {
                break;
            }
            outbox.flush().unwrap();
        }
        assert_eq!((read_text, read_tokens), (text, tokens));
        assert!(outbox.last.is_empty());
    }

    #[test]
    fn a_delta_larger_than_the_ring_is_cut() {
        let mailbox = Mailbox::new(4096).unwrap();
        let mut outbox = FrontendOutbox::new(mailbox.clone());
        let (text, tokens) = ("é€".repeat(4000), (0..3000).collect::<Vec<u32>>());
        let whole = DeltaRef {
            finish: Some(FinishReason::Stop),
            stop_string: Some("x"),
            ..delta(1, &text, &tokens, 3000)
        };
        outbox.add(whole).unwrap();
        let (mut read_text, mut read_tokens, mut finishes) = (String::new(), Vec::new(), Vec::new());
        outbox.flush().unwrap();
        while let Some(deltas) = read(&mailbox) {
            for delta in deltas {
                read_text.push_str(&delta.text);
                read_tokens.extend(delta.tokens);
                assert_eq!(delta.completion_tokens as usize, read_tokens.len());
                finishes.push((delta.finish, delta.stop_string));
            }
            outbox.flush().unwrap();
        }
        assert_eq!((read_text, read_tokens), (text, tokens));
        assert_eq!(finishes.pop(), Some((Some(FinishReason::Stop), Some("x".into()))));
        assert!(finishes.iter().all(|finish| *finish == (None, None)));
    }

    #[test]
    fn a_closed_frontend_is_told_once() {
        let mailbox = Mailbox::new(4096).unwrap();
        let mut outbox = FrontendOutbox::new(mailbox.clone());
        mailbox.close();
        outbox.add(delta(1, "a", &[1], 1)).unwrap();
        assert_eq!(outbox.flush(), Err(Error::MailboxClosed));
        outbox.add(delta(1, "a", &[1], 1)).unwrap();
        assert_eq!(outbox.flush(), Ok(()));
        assert!(!outbox.is_open() && !outbox.is_waiting());
    }
}
