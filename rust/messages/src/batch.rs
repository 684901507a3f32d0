//! Messages that are lists, as a step sends them: written and read item by item, through buffers that are used again.
//!
//! ```text
//!   [tag, [item, item, ...]]     the length of the list has a fixed width, so that it is written once all items are there
//! ```
//!
//! O(bytes); writing allocates nothing once the buffer has grown.

use std::io;

use rmp_serde::{Deserializer, encode};
use serde::{Deserialize, Serialize};

use crate::tag;
use pyengine_base::error::{Error, Result};

/// A list to which items are added one by one.
#[derive(Debug)]
pub struct Batch {
    /// Head, length and items.
    bytes: Vec<u8>,
    head: usize,
    count: u32,
}

impl Batch {
    /// An empty list under a tag of less than 32 bytes.
    pub fn new(tag: &str) -> Self {
        let mut bytes = vec![0x92, 0xa0 | tag.len() as u8];
        bytes.extend_from_slice(tag.as_bytes());
        bytes.extend_from_slice(&[0xdd, 0, 0, 0, 0]);
        let head = bytes.len();
        Self { bytes, head, count: 0 }
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Drops all items.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.head);
        self.count = 0;
    }

    /// Adds an item.
    pub fn push(&mut self, item: &impl Serialize) -> Result<()> {
        encode::write(&mut self.bytes, item).map_err(|error| Error::MalformedMessage(error.to_string()))?;
        self.count += 1;
        Ok(())
    }

    /// Adds an item. If the message is longer than `limit` with it, it begins the next one: returns the message before it.
    pub fn push_within(&mut self, item: &impl Serialize, limit: usize) -> Result<Option<Vec<u8>>> {
        let end = self.bytes.len();
        self.push(item)?;
        if self.count == 1 || self.bytes.len() <= limit {
            return Ok(None);
        }
        let last = self.bytes.split_off(end);
        self.count -= 1;
        let full = self.message().to_vec();
        self.clear();
        self.bytes.extend_from_slice(&last);
        self.count = 1;
        Ok(Some(full))
    }

    /// The message with all items.
    pub fn message(&mut self) -> &[u8] {
        self.bytes[self.head - 4..self.head].copy_from_slice(&self.count.to_be_bytes());
        &self.bytes
    }
}

/// Calls `take` with each item of a message that is a list, as far as that returns no error.
pub fn read_batch<'de, T: Deserialize<'de>>(
    message: &'de [u8],
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let malformed = |error: &dyn ToString| Error::MalformedMessage(error.to_string());
    // The tag is a short string: two bytes of headers and itself.
    let mut body = &message[2 + tag(message)?.len()..];
    let count = rmp::decode::read_array_len(&mut body).map_err(|error| malformed(&error))?;
    let mut items = Deserializer::from_read_ref(body);
    for _ in 0..count {
        take(T::deserialize(&mut items).map_err(|error| malformed(&error))?)?;
    }
    Ok(())
}

/// Bytes of an item on the wire.
pub fn encoded_size(item: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail, and what cannot be encoded was never in a message.
    let encoded = encode::write(&mut count, item);
    debug_assert!(encoded.is_ok());
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Counts, Delta, DeltaRef, Extra, FinishReason, Message, RequestKey, SequenceTokens, TokensRef,
    };

    fn row() -> SequenceTokens {
        SequenceTokens {
            key: RequestKey { frontend: 3, request: 1 << 40 },
            tokens: vec![1, 70_000, 2],
            finish: Some(FinishReason::Length),
            stop_token: Some(2),
            counts: Some(Counts {
                cached_tokens: 16,
                queued_us: 70_000,
                accepted_drafts: 300,
                rejected_drafts: 2,
            }),
            committed_ns: 1 << 50,
            logprobs: vec![9; 300],
        }
    }

    fn read(message: &[u8]) -> Result<Vec<SequenceTokens>> {
        let mut rows = Vec::new();
        read_batch(message, |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn a_batch_is_the_message_with_the_same_items_and_reads_as_it() {
        let rows = vec![row(), SequenceTokens::default()];
        let mut batch = Batch::new("tokens_out");
        for _ in 0..2 {
            assert!(batch.is_empty());
            rows.iter().for_each(|row| batch.push(row).unwrap());
            let message = batch.message();
            assert_eq!(Message::decode(message).unwrap(), Message::TokensOut(rows.clone()));
            assert_eq!(read(message).unwrap(), rows);
            for length in 0..message.len() {
                assert!(matches!(read(&message[..length]), Err(Error::MalformedMessage(_))), "{length}");
            }
            batch.clear();
        }
    }

    #[test]
    fn borrowed_items_are_written_as_owned_ones() {
        let owned = row();
        let borrowed = TokensRef {
            key: owned.key,
            tokens: &owned.tokens,
            finish: owned.finish,
            stop_token: owned.stop_token,
            counts: owned.counts,
            committed_ns: owned.committed_ns,
            logprobs: &owned.logprobs,
        };
        let [mut one, mut other] = [Batch::new("tokens_out"), Batch::new("tokens_out")];
        one.push(&owned).unwrap();
        other.push(&borrowed).unwrap();
        assert_eq!(one.message(), other.message());
        let extras = [Extra("colour".into(), vec![8; 4])];
        let borrowed =
            DeltaRef { request: 7, text: "né", tokens: &[1], extras: &extras, ..DeltaRef::default() };
        let mut deltas = Batch::new("deltas");
        deltas.push(&borrowed).unwrap();
        let owned = Delta {
            request: 7,
            text: "né".into(),
            tokens: vec![1],
            extras: extras.to_vec(),
            ..Delta::default()
        };
        assert_eq!(Message::decode(deltas.message()).unwrap(), Message::Deltas(vec![owned.clone()]));
        assert_eq!(encoded_size(&borrowed), deltas.message().len() - "..deltas.....".len());
        assert_eq!(encoded_size(&owned), encoded_size(&borrowed));
    }

    #[test]
    fn an_item_that_is_too_much_begins_the_next_message() {
        let mut batch = Batch::new("tokens_out");
        let limit = 2 * encoded_size(&row()) + 20;
        let mut messages: Vec<_> = (0..5).filter_map(|_| batch.push_within(&row(), limit).unwrap()).collect();
        messages.push(batch.message().to_vec());
        assert!(messages.iter().all(|message| message.len() <= limit));
        assert_eq!(
            messages.iter().map(|message| read(message).unwrap().len()).collect::<Vec<_>>(),
            [2, 2, 1]
        );
        batch.clear();
        assert_eq!(batch.push_within(&row(), 1).unwrap(), None, "one item is never split");
    }

    #[test]
    fn an_error_of_the_taker_comes_through() {
        let mut batch = Batch::new("tokens_out");
        batch.push(&row()).unwrap();
        let result = read_batch(batch.message(), |_: SequenceTokens| Err(Error::MailboxClosed));
        assert_eq!(result, Err(Error::MailboxClosed));
    }
}
