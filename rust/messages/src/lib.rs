//! Every message between actors, as `pyengine/messages.py` has it: msgpack arrays whose first element is the tag.
//!
//! ```text
//!  frontend ── Submit, Abort ──► scheduler ── OpenStream, TokensOut ──► detokenizer ── Deltas ──► frontend
//!                                    ▲                                      │
//!                                    └──────────── StopMatched ─────────────┘
//! ```
//!
//! `tests/test_messages.py` checks that the two files agree.

mod batch;
mod described;
mod extensions;

pub use batch::{Batch, encoded_size, read_batch};
pub use described::{Described, Fields, describe};
pub use extensions::{Extension, ExtensionKind, Extensions, Extra};

use pyengine_kernels_cpu::sampler::SamplingRow;
use serde::{Deserialize, Serialize};

use pyengine_base::error::{Error, Result};

/// Names one request: the frontend it came from, and that frontend's own number for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestKey {
    /// Index of the frontend (HTTP worker or embedding process) whose mailbox gets the answer.
    pub frontend: u32,
    /// The frontend's number for the request, never used twice.
    pub request: u64,
}

impl RequestKey {
    /// A number that no other request has: the step of its spans.
    pub fn number(self) -> u64 {
        u64::from(self.frontend) << 48 | self.request
    }
}

/// A new request, or one that goes on after a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// The request.
    pub key: RequestKey,
    /// Token ids, u32 little-endian: the prompt, then what was generated before a restart.
    #[serde(with = "serde_bytes")]
    pub tokens: Vec<u8>,
    /// How many of `tokens` are the prompt.
    pub prompt_length: u32,
    /// Most tokens to generate, including tokens from before a restart; 0 computes the prompt alone.
    pub max_tokens: u32,
    /// Fewest tokens before an end-of-sequence or stop token may end the request.
    pub min_tokens: u32,
    /// The request's sampling row: how its tokens are chosen.
    #[serde(with = "row_bytes")]
    pub sampling: SamplingRow,
    /// Tokens that end the request: the model's end-of-sequence tokens (unless ignored) and the request's own.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end the request.
    pub stop: Vec<String>,
    /// Leave the stop string in the text.
    pub include_stop: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Lower runs first; 0 is usual.
    pub priority: i32,
    /// The tenant that the request is charged to in fair sharing; 0 where the client named none.
    pub tenant: u64,
    /// Requests share cached prefixes only under the same salt.
    pub cache_salt: u64,
    /// Monotonic clock at arrival, nanoseconds.
    pub arrival_ns: u64,
    /// Monotonic clock at which the request is given up with `timeout`; 0 is never.
    pub deadline_ns: u64,
    /// What features are asked for; each declares its own part.
    pub extensions: Extensions,
}

/// Token ids as messages carry them, u32 little-endian; an incomplete word at the end is left out.
pub fn token_ids<T: FromIterator<u32>>(bytes: &[u8]) -> T {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A sampling row on the wire: its bytes.
mod row_bytes {
    use pyengine_kernels_cpu::sampler::SamplingRow;
    use serde::{Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(row: &SamplingRow, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(row.as_bytes())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SamplingRow, D::Error> {
        let bytes: &[u8] = serde_bytes::deserialize(deserializer)?;
        SamplingRow::from_bytes(bytes)
            .ok_or_else(|| D::Error::invalid_length(bytes.len(), &"the bytes of a row"))
    }
}

/// Opens a request's stream at the detokenizer, before its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenStream {
    /// The request.
    pub key: RequestKey,
    /// Length of the prompt in tokens, for the usage report.
    pub prompt_length: u32,
    /// Tokens generated before a restart, u32 little-endian: decoded silently, so that text goes on where it was.
    #[serde(with = "serde_bytes")]
    pub generated: Vec<u8>,
    /// Strings that end the request.
    pub stop: Vec<String>,
    /// Leave the stop string in the text.
    pub include_stop: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// The request's tokens come with records, for which the detokenizer finds each token's place in the text.
    pub places: bool,
}

/// Why a request ended. Serialized by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context was used up.
    Length,
    /// The client left or asked for it.
    Abort,
    /// The deadline passed.
    Timeout,
    /// The waiting queue was full, or a notice says what else had no room.
    Overloaded,
    /// The engine failed on it.
    Error,
    /// Its grammar was refused; a notice says why.
    Refused,
}

/// What is counted of a request besides its tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Prompt tokens whose KV came from the prefix cache when it was first admitted.
    pub cached_tokens: u32,
    /// Microseconds from its arrival to its first admission.
    pub queued_us: u32,
    /// Draft tokens that were verified and accepted so far.
    pub accepted_drafts: u32,
    /// Draft tokens that were verified and rejected so far.
    pub rejected_drafts: u32,
}

/// The tokens of one sequence from one step: owned where it is read, borrowed where it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "Tokens: Serialize, Bytes: serde_bytes::Serialize",
    deserialize = "Tokens: Deserialize<'de>, Bytes: serde_bytes::Deserialize<'de>"
))]
pub struct SequenceTokens<Tokens = Vec<u32>, Bytes = Vec<u8>> {
    /// The request.
    pub key: RequestKey,
    /// The new tokens; the token that stopped the request is among them.
    pub tokens: Tokens,
    /// Set in the request's last message.
    pub finish: Option<FinishReason>,
    /// The stop token that ended it, if one did.
    pub stop_token: Option<u32>,
    /// The request's counts, if they are not those of its last message.
    pub counts: Option<Counts>,
    /// The monotonic clock at the commit of the tokens, nanoseconds.
    pub committed_ns: u64,
    /// If it wants them, as many bytes for each of the tokens, little-endian: four for the detokenizer, the token's
    /// log-probability (f32), and pairs of a token (i32, -1 where there are no more) and its log-probability, the most
    /// likely first.
    #[serde(with = "serde_bytes")]
    pub logprobs: Bytes,
}

/// A sequence's tokens that are written.
pub type TokensRef<'a> = SequenceTokens<&'a [u32], &'a [u8]>;

/// A text for the client: why a grammar was refused, or which of its keywords are not enforced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The request.
    pub key: RequestKey,
    /// The text.
    pub text: String,
}

/// What a feature gives back with an answer, besides its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestExtra {
    /// The request.
    pub key: RequestKey,
    /// What it gives back.
    pub extra: Extra,
}

/// New text and tokens of a request: owned where it is read, borrowed where it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "Text: Serialize, Tokens: Serialize, Bytes: serde_bytes::Serialize, Extras: Serialize",
    deserialize = "Text: Deserialize<'de>, Tokens: Deserialize<'de>, Bytes: serde_bytes::Deserialize<'de>, \
                   Extras: Deserialize<'de>"
))]
pub struct Delta<Text = String, Tokens = Vec<u32>, Bytes = Vec<u8>, Extras = Vec<Extra>> {
    /// The frontend's number for the request.
    pub request: u64,
    /// New text, possibly empty. Valid UTF-8, never half a character, never a part of a stop string.
    pub text: Text,
    /// The new tokens (also those whose text is still withheld).
    pub tokens: Tokens,
    /// Set when this is the last delta.
    pub finish: Option<FinishReason>,
    /// The stop string that matched, if one did.
    pub stop_string: Option<Text>,
    /// The stop token that ended the request, if one did.
    pub stop_token: Option<u32>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated so far.
    pub completion_tokens: u32,
    /// Microseconds from its arrival to its first admission.
    pub queued_us: u32,
    /// Draft tokens that were verified and accepted so far.
    pub accepted_drafts: u32,
    /// Draft tokens that were verified and rejected so far.
    pub rejected_drafts: u32,
    /// The monotonic clock at the commit of the first of the tokens, nanoseconds; 0 where none came.
    pub committed_ns: u64,
    /// The text of a [`Notice`].
    pub notice: Option<Text>,
    /// As in [`SequenceTokens`], for each of `tokens`. The first four bytes (i32) are where the token's text begins, in
    /// characters from the beginning of the answer; -1 for a token that has no text.
    #[serde(with = "serde_bytes")]
    pub logprobs: Bytes,
    /// What features give back besides, in the order in which it came.
    pub extras: Extras,
}

/// A delta that is written.
pub type DeltaRef<'a> = Delta<&'a str, &'a [u32], &'a [u8], &'a [Extra]>;

/// A message on a ring. On the wire: `[tag, fields...]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// `["submit", ...]`: frontend to scheduler.
    Submit(Box<Submit>),
    /// `["abort", key]`: frontend to scheduler. Unknown keys are ignored: the request may have ended meanwhile.
    Abort(RequestKey),
    /// `["abort_frontend", [frontend, below]]`: supervisor to scheduler. The process behind the frontend has died: ends
    /// its requests with numbers under `below`, where those of its successor begin.
    AbortFrontend(RequestKey),
    /// `["stop_matched", key]`: detokenizer to scheduler.
    StopMatched(RequestKey),
    /// `["open_stream", ...]`: scheduler to detokenizer.
    OpenStream(OpenStream),
    /// `["tokens_out", [...]]`: scheduler to detokenizer, one a step.
    TokensOut(Vec<SequenceTokens>),
    /// `["notice", ...]`: scheduler to detokenizer, which passes it on.
    Notice(Notice),
    /// `["extra", ...]`: scheduler to detokenizer, which passes it on.
    Extra(RequestExtra),
    /// `["grammars_ready", nil]`: compiler to scheduler. Verdicts wait to be collected.
    GrammarsReady(()),
    /// `["deltas", [...]]`: detokenizer to one frontend, one a step.
    Deltas(Vec<Delta>),
}

impl Message {
    /// Appends the wire form to `out`, which the caller reuses from step to step.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<()> {
        let result = match self {
            Self::Submit(body) => rmp_serde::encode::write(out, &("submit", body)),
            Self::Abort(key) => rmp_serde::encode::write(out, &("abort", key)),
            Self::AbortFrontend(below) => rmp_serde::encode::write(out, &("abort_frontend", below)),
            Self::StopMatched(key) => rmp_serde::encode::write(out, &("stop_matched", key)),
            Self::OpenStream(body) => rmp_serde::encode::write(out, &("open_stream", body)),
            Self::TokensOut(body) => rmp_serde::encode::write(out, &("tokens_out", body)),
            Self::Notice(body) => rmp_serde::encode::write(out, &("notice", body)),
            Self::Extra(body) => rmp_serde::encode::write(out, &("extra", body)),
            Self::GrammarsReady(()) => rmp_serde::encode::write(out, &("grammars_ready", ())),
            Self::Deltas(body) => rmp_serde::encode::write(out, &("deltas", body)),
        };
        result.map_err(|error| Error::MalformedMessage(error.to_string()))
    }

    /// Reads one message.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        fn body<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T> {
            let (_tag, body): (&str, T) =
                rmp_serde::from_slice(bytes).map_err(|error| Error::MalformedMessage(error.to_string()))?;
            Ok(body)
        }
        match tag(bytes)? {
            "submit" => body(bytes).map(Self::Submit),
            "abort" => body(bytes).map(Self::Abort),
            "abort_frontend" => body(bytes).map(Self::AbortFrontend),
            "stop_matched" => body(bytes).map(Self::StopMatched),
            "open_stream" => body(bytes).map(Self::OpenStream),
            "tokens_out" => body(bytes).map(Self::TokensOut),
            "notice" => body(bytes).map(Self::Notice),
            "extra" => body(bytes).map(Self::Extra),
            "grammars_ready" => body(bytes).map(Self::GrammarsReady),
            "deltas" => body(bytes).map(Self::Deltas),
            other => Err(Error::MalformedMessage(format!("unknown tag {other:?}"))),
        }
    }
}

/// The tag of a message: a two-element array that begins with a short string.
pub fn tag(bytes: &[u8]) -> Result<&str> {
    let malformed = || Error::MalformedMessage("not a tagged message".into());
    let [0x92, head, rest @ ..] = bytes else { return Err(malformed()) };
    let length = match head {
        0xa0..=0xbf => usize::from(head & 0x1f),
        _ => return Err(malformed()),
    };
    rest.get(..length).and_then(|tag| std::str::from_utf8(tag).ok()).ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_went() {
        let key = RequestKey { frontend: 1, request: 7 };
        let delta = Delta {
            request: 7,
            text: "é".into(),
            tokens: vec![1, 70_000],
            finish: Some(FinishReason::Stop),
            stop_string: None,
            stop_token: Some(2),
            prompt_tokens: 3,
            cached_tokens: 0,
            completion_tokens: 2,
            queued_us: 9,
            accepted_drafts: 4,
            rejected_drafts: 5,
            committed_ns: 1 << 50,
            notice: Some("so".into()),
            logprobs: vec![1, 2],
            extras: vec![Extra("colour".into(), vec![3])],
        };
        for message in [
            Message::Abort(key),
            Message::AbortFrontend(key),
            Message::StopMatched(key),
            Message::Notice(Notice { key, text: "ü".into() }),
            Message::Extra(RequestExtra { key, extra: Extra("colour".into(), vec![0; 8]) }),
            Message::GrammarsReady(()),
            Message::Deltas(vec![delta]),
        ] {
            let mut bytes = Vec::new();
            message.encode_into(&mut bytes).unwrap();
            assert_eq!(Message::decode(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for bytes in [&b""[..], b"\x92", b"\x92\xa5abo", b"\x93\xa5abort", b"\xff\xff", b"\x92\xa3huh\xc0"] {
            assert!(matches!(Message::decode(bytes), Err(Error::MalformedMessage(_))));
        }
    }
}
