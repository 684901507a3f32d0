//! The two messages of every step, read and written without allocation.
//!
//! [`pyengine_messages`] defines the wire; these are the same bytes through reused buffers (a test compares the two). O(bytes).

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};

use pyengine_base::error::{Error, Result};
use pyengine_messages::{Delta, RequestKey, SequenceTokens, tag};

/// A delta that is written: borrowed.
pub(super) type DeltaRef<'a> = Delta<&'a str, &'a [u32], &'a [u8]>;

/// A Deltas message to which deltas are added one by one.
#[derive(Debug, Default)]
pub(super) struct DeltaBatch {
    bytes: Vec<u8>,
    count: u32,
}

impl DeltaBatch {
    /// `["deltas", [` with an array header of fixed width, so that the count can be written afterwards.
    const HEAD: [u8; 9] = *b"\x92\xa6deltas\xdd";

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    pub fn push(&mut self, delta: &impl Serialize) -> Result<()> {
        if self.count == 0 {
            self.bytes.clear();
            self.bytes.extend_from_slice(&Self::HEAD);
            self.bytes.extend_from_slice(&[0; 4]);
        }
        rmp_serde::encode::write(&mut self.bytes, delta)
            .map_err(|error| Error::MalformedMessage(error.to_string()))?;
        self.count += 1;
        Ok(())
    }

    /// The message; the batch must not be empty.
    pub fn message(&mut self) -> &[u8] {
        self.bytes[Self::HEAD.len()..][..4].copy_from_slice(&self.count.to_be_bytes());
        &self.bytes
    }
}

/// Calls `take` with every sequence of a TokensOut message, each read into `row`.
pub(super) fn read_tokens_out(
    message: &[u8],
    row: &mut SequenceTokens,
    take: impl FnMut(&SequenceTokens) -> Result<()>,
) -> Result<()> {
    // The tag is a short string: two bytes of headers and itself.
    let body = &message[2 + tag(message)?.len()..];
    let mut failure = None;
    let rows = Rows { row, take, failure: &mut failure };
    let read = rows.deserialize(&mut rmp_serde::Deserializer::from_read_ref(body));
    match failure {
        Some(error) => Err(error),
        None => read.map_err(|error| Error::MalformedMessage(error.to_string())),
    }
}

/// An empty row.
pub(super) fn empty_row() -> SequenceTokens {
    let key = RequestKey { frontend: 0, request: 0 };
    SequenceTokens {
        key,
        tokens: Vec::new(),
        finish: None,
        stop_token: None,
        cached_tokens: 0,
        queued_us: 0,
        accepted_drafts: 0,
        rejected_drafts: 0,
        logprobs: Vec::new(),
    }
}

struct Rows<'a, F> {
    row: &'a mut SequenceTokens,
    take: F,
    /// An error of `take`, which serde's error type cannot carry.
    failure: &'a mut Option<Error>,
}

struct Row<'a>(&'a mut SequenceTokens);

struct Tokens<'a>(&'a mut Vec<u32>);

impl<'de, F: FnMut(&SequenceTokens) -> Result<()>> DeserializeSeed<'de> for Rows<'_, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&SequenceTokens) -> Result<()>> Visitor<'de> for Rows<'_, F> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of sequences")
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> std::result::Result<(), A::Error> {
        while list.next_element_seed(Row(self.row))?.is_some() {
            if let Err(error) = (self.take)(self.row) {
                *self.failure = Some(error);
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_tuple(9, self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a sequence's tokens: nine fields")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> std::result::Result<(), A::Error> {
        let missing = |at| serde::de::Error::invalid_length(at, &"nine fields");
        let SequenceTokens {
            key,
            tokens,
            finish,
            stop_token,
            cached_tokens,
            queued_us,
            accepted_drafts,
            rejected_drafts,
            logprobs,
        } = self.0;
        *key = fields.next_element()?.ok_or_else(|| missing(0))?;
        fields.next_element_seed(Tokens(tokens))?.ok_or_else(|| missing(1))?;
        *finish = fields.next_element()?.ok_or_else(|| missing(2))?;
        *stop_token = fields.next_element()?.ok_or_else(|| missing(3))?;
        *cached_tokens = fields.next_element()?.ok_or_else(|| missing(4))?;
        *queued_us = fields.next_element()?.ok_or_else(|| missing(5))?;
        *accepted_drafts = fields.next_element()?.ok_or_else(|| missing(6))?;
        *rejected_drafts = fields.next_element()?.ok_or_else(|| missing(7))?;
        let bytes: &serde_bytes::Bytes = fields.next_element()?.ok_or_else(|| missing(8))?;
        logprobs.clear();
        logprobs.extend_from_slice(bytes);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Tokens<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Tokens<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of token ids")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        self.0.clear();
        while let Some(token) = list.next_element()? {
            self.0.push(token);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pyengine_messages::{FinishReason, Message};

    fn rows(message: &[u8]) -> Result<Vec<SequenceTokens>> {
        let (mut rows, mut row) = (Vec::new(), empty_row());
        read_tokens_out(message, &mut row, |row| {
            rows.push(row.clone());
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn tokens_out_reads_as_the_contract_has_it() {
        let first = SequenceTokens {
            key: RequestKey { frontend: 3, request: 1 << 40 },
            tokens: vec![1, 70_000, 2],
            finish: Some(FinishReason::Length),
            stop_token: Some(2),
            cached_tokens: 16,
            queued_us: 70_000,
            accepted_drafts: 300,
            rejected_drafts: 2,
            logprobs: vec![9; 300],
        };
        let message = Message::TokensOut(vec![first, empty_row()]);
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).unwrap();
        assert_eq!(Message::TokensOut(rows(&bytes).unwrap()), message);
        for length in 0..bytes.len() {
            assert!(matches!(rows(&bytes[..length]), Err(Error::MalformedMessage(_))), "cut at {length}");
        }
    }

    #[test]
    fn an_error_of_the_taker_comes_through() {
        let mut bytes = Vec::new();
        Message::TokensOut(vec![empty_row()]).encode_into(&mut bytes).unwrap();
        let result = read_tokens_out(&bytes, &mut empty_row(), |_| Err(Error::MailboxClosed));
        assert_eq!(result, Err(Error::MailboxClosed));
    }

    #[test]
    fn deltas_are_written_as_the_contract_has_it() {
        let mut batch = DeltaBatch::default();
        for round in 1..3u32 {
            let mut expected = Vec::new();
            for request in 0..round {
                let tokens = [request, 1 << 20];
                batch
                    .push(&DeltaRef {
                        request: request.into(),
                        text: "né",
                        tokens: &tokens,
                        finish: Some(FinishReason::Stop),
                        stop_string: Some("x"),
                        stop_token: None,
                        prompt_tokens: 1,
                        cached_tokens: 2,
                        completion_tokens: 3,
                        queued_us: 4,
                        accepted_drafts: 5,
                        rejected_drafts: 6,
                        notice: Some("n"),
                        logprobs: &[7; 3],
                        pooled: &[8; 4],
                        prompt_logprobs: &[9; 5],
                    })
                    .unwrap();
                expected.push(Delta {
                    request: request.into(),
                    text: "né".into(),
                    tokens: tokens.to_vec(),
                    finish: Some(FinishReason::Stop),
                    stop_string: Some("x".into()),
                    stop_token: None,
                    prompt_tokens: 1,
                    cached_tokens: 2,
                    completion_tokens: 3,
                    queued_us: 4,
                    accepted_drafts: 5,
                    rejected_drafts: 6,
                    notice: Some("n".into()),
                    logprobs: vec![7; 3],
                    pooled: vec![8; 4],
                    prompt_logprobs: vec![9; 5],
                });
            }
            assert_eq!(Message::decode(batch.message()).unwrap(), Message::Deltas(expected));
            batch.clear();
            assert!(batch.is_empty());
        }
    }
}
