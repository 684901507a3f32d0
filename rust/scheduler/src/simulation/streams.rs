//! The detokenizer's side of a world: what it is told of each request, in order.

use super::extensions::asked;
use super::model::logprob;
use super::world::World;
use crate::features::logprobs::LogProbsExtension;
use crate::features::pooling::VectorExtra;
use crate::features::prompt_logprobs::{PromptLogProbsExtension, PromptLogProbsExtra};
use pyengine_messages::{FinishReason, Message, RequestExtra};

/// Messages of one request in the detokenizer's mailbox.
#[derive(Default, Debug)]
pub(super) struct Stream {
    pub(super) tokens: Vec<u32>,
    pub(super) finish: Option<FinishReason>,
    pub(super) vector: Vec<f32>,
    pub(super) prompt_logprobs: Vec<f32>,
}

impl World {
    /// Reads what the detokenizer got.
    pub(super) fn read(&mut self) {
        let messages: Vec<_> = self.ring.lock().unwrap().0.drain(..).collect();
        for bytes in messages {
            match Message::decode(&bytes).unwrap() {
                Message::OpenStream(open) => {
                    let tokens =
                        open.generated.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                    let stream = Stream { tokens: tokens.collect(), ..Stream::default() };
                    assert!(self.streams.insert(open.key, stream).is_none(), "announced twice");
                }
                Message::Notice(notice) => {
                    if notice.text == "no length" {
                        self.cut.insert(notice.key, FinishReason::Refused);
                    }
                }
                Message::Extra(RequestExtra { key, extra }) => {
                    let stream = self.streams.get_mut(&key).expect("announced before its extras");
                    assert!(stream.finish.is_none());
                    if let Some(VectorExtra { states }) = extra.get().unwrap() {
                        assert!(stream.vector.is_empty());
                        let words = states.as_chunks::<4>().0;
                        stream.vector = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
                        continue;
                    }
                    let scored: PromptLogProbsExtra = extra.get().unwrap().expect("there are no others");
                    let submit = &self.expected[&key].submit;
                    let known = submit.tokens.len() / 4 - submit.prompt_length as usize;
                    assert!(stream.tokens.len() == known, "before its tokens");
                    let wanted: PromptLogProbsExtension = asked(submit).unwrap();
                    let size = 8 + 8 * usize::from(wanted.count);
                    assert!(scored.records.len().is_multiple_of(size));
                    for record in scored.records.chunks(size) {
                        stream.prompt_logprobs.push(f32::from_le_bytes(record[4..8].try_into().unwrap()));
                    }
                }
                Message::TokensOut(rows) => {
                    for row in rows {
                        let stream = self.streams.get_mut(&row.key).expect("announced before its tokens");
                        assert_eq!(stream.finish, None, "{:?} after its end", row.key);
                        let cached = row.counts.map_or(0, |counts| counts.cached_tokens);
                        assert!(cached <= self.expected[&row.key].submit.prompt_length);
                        let submit = &self.expected[&row.key].submit;
                        let wanted: Option<LogProbsExtension> = asked(submit);
                        assert!(wanted.is_some() || row.logprobs.is_empty());
                        if let Some(LogProbsExtension { count }) = wanted {
                            let size = 8 + 8 * usize::from(count);
                            assert_eq!(row.logprobs.len(), row.tokens.len() * size);
                            for (at, record) in row.logprobs.chunks(size).enumerate() {
                                let position = submit.prompt_length as usize + stream.tokens.len() + at;
                                assert_eq!(record[4..8], logprob(row.tokens[at], position).to_le_bytes());
                                for pair in record[8..].chunks(8) {
                                    let (token, value) = pair.split_at(4);
                                    let token = i32::from_le_bytes(token.try_into().unwrap());
                                    assert_eq!(value, (token as f32).to_le_bytes());
                                }
                            }
                        }
                        stream.tokens.extend(row.tokens);
                        stream.finish = row.finish;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
