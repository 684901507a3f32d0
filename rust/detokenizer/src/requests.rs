//! The open requests of the detokenizer, and what a message does to them.
//!
//! Answers go into the outboxes, which the [`actor`](super::actor) flushes.
//! O(bytes of the new tokens) a step, no allocation once the buffers have grown.

use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use super::frontend_outbox::FrontendOutbox;
use super::scheduler_outbox::SchedulerOutbox;
use super::stop_matcher::StopStrings;
use super::stop_share::StopShare;
use super::stream::Stream;
use super::vocabulary::Vocabulary;
use pyengine_base::error::{Error, Result};
use pyengine_mailbox::Mailbox;
use pyengine_messages::{
    Counts, DeltaRef, FinishReason, Message, Notice, OpenStream, RequestExtra, RequestKey, SequenceTokens,
    read_batch, tag,
};

/// The detokenizer's state of one request.
struct Request {
    stream: Stream,
    prompt_tokens: u32,
    completion_tokens: u32,
    counts: Counts,
    /// The notice that its next delta carries.
    notice: Option<String>,
}

/// All open requests, and the outboxes.
pub(super) struct Requests {
    vocabulary: Arc<Vocabulary>,
    open: FxHashMap<RequestKey, Request>,
    compiled: CompiledStops,
    pub frontends: Vec<FrontendOutbox>,
    pub scheduler: SchedulerOutbox,
    /// Messages for frontends that do not exist and requests that are not open.
    pub ignored: u64,
    pub stop_share: StopShare,
    text: String,
    logprobs: Vec<u8>,
}

impl Requests {
    pub fn new(vocabulary: Arc<Vocabulary>, scheduler: Mailbox, frontends: Vec<Mailbox>) -> Self {
        Self {
            vocabulary,
            open: FxHashMap::default(),
            compiled: CompiledStops::default(),
            frontends: frontends.into_iter().map(FrontendOutbox::new).collect(),
            scheduler: SchedulerOutbox::new(scheduler),
            ignored: 0,
            stop_share: StopShare::default(),
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Handles one message of the inbox.
    pub fn handle(&mut self, message: &[u8]) -> Result<()> {
        match tag(message)? {
            "tokens_out" => read_batch(message, |row| self.take_tokens(&row)),
            "open_stream" => match Message::decode(message)? {
                Message::OpenStream(open) => self.open_stream(&open),
                _ => unreachable!("the tag is that of OpenStream"),
            },
            "notice" => match Message::decode(message)? {
                Message::Notice(notice) => {
                    self.keep_notice(notice);
                    Ok(())
                }
                _ => unreachable!("the tag is that of Notice"),
            },
            "extra" => match Message::decode(message)? {
                Message::Extra(extra) => self.pass_on(&extra),
                _ => unreachable!("the tag is that of Extra"),
            },
            other => Err(Error::MalformedMessage(format!("the detokenizer takes no {other:?}"))),
        }
    }

    /// Keeps a notice for the next delta of its request.
    fn keep_notice(&mut self, notice: Notice) {
        match self.open.get_mut(&notice.key) {
            Some(request) => request.notice = Some(notice.text),
            None => self.ignored += 1,
        }
    }

    /// Sends what a feature gives back to its frontend, in a delta of its own.
    fn pass_on(&mut self, RequestExtra { key, extra }: &RequestExtra) -> Result<()> {
        let Some(request) = self.open.get(key) else {
            self.ignored += 1;
            return Ok(());
        };
        let delta = DeltaRef { extras: std::slice::from_ref(extra), ..request.delta(*key, "", &[]) };
        self.frontends[key.frontend as usize].add(delta)
    }

    /// Removes the requests of a frontend that has ended, and aborts them in the scheduler.
    pub fn drop_frontend(&mut self, frontend: u32) -> Result<()> {
        let orphans: Vec<_> = self.open.keys().filter(|key| key.frontend == frontend).copied().collect();
        for key in orphans {
            self.open.remove(&key);
            self.scheduler.send(&Message::Abort(key))?;
        }
        Ok(())
    }

    fn open_stream(&mut self, open: &OpenStream) -> Result<()> {
        let key = open.key;
        let Some(frontend) = self.frontends.get(key.frontend as usize) else {
            self.ignored += 1;
            return self.scheduler.send(&Message::Abort(key));
        };
        if !frontend.is_open() {
            return self.scheduler.send(&Message::Abort(key));
        }
        let (generated, rest) = open.generated.as_chunks::<4>();
        if !rest.is_empty() {
            return self.refuse(open, 0);
        }
        let generated: Vec<u32> = generated.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let too_long = open.stop.iter().any(|stop| stop.len() > frontend.longest_stop());
        let stops = match self.compiled.get(&open.stop) {
            Ok(stops) if !too_long => stops,
            _ => return self.refuse(open, generated.len() as u32),
        };

        let mut stream =
            Stream::new(self.vocabulary.clone(), stops, open.include_stop, open.skip_special_tokens);
        if open.places {
            stream.keep_places();
        }
        let mut request = Request {
            stream,
            prompt_tokens: open.prompt_length,
            completion_tokens: generated.len() as u32,
            counts: Counts::default(),
            notice: None,
        };
        // The client has this text already; what was withheld is withheld again.
        self.text.clear();
        let Some(found) = request.stream.push(&generated, &mut self.text) else {
            self.open.insert(key, request);
            return Ok(());
        };
        // The request had ended before the engine died; only its last delta was lost.
        let delta = DeltaRef {
            finish: Some(FinishReason::Stop),
            stop_string: Some(request.stream.stop_string(found.index)),
            completion_tokens: found.tokens as u32,
            ..request.delta(key, "", &[])
        };
        self.frontends[key.frontend as usize].add(delta)?;
        self.scheduler.send(&Message::StopMatched(key))
    }

    /// Ends a request whose stop strings cannot be compiled or named in a delta.
    fn refuse(&mut self, open: &OpenStream, completion_tokens: u32) -> Result<()> {
        let delta = DeltaRef {
            request: open.key.request,
            finish: Some(FinishReason::Error),
            prompt_tokens: open.prompt_length,
            completion_tokens,
            notice: Some("its stop strings are too large for the engine"),
            ..DeltaRef::default()
        };
        self.frontends[open.key.frontend as usize].add(delta)?;
        self.scheduler.send(&Message::Abort(open.key))
    }

    fn take_tokens(&mut self, row: &SequenceTokens) -> Result<()> {
        let key = row.key;
        let Some(request) = self.open.get_mut(&key) else {
            self.ignored += 1;
            return Ok(());
        };
        self.text.clear();
        // The stop token counts but never becomes text, even if it is an ordinary token.
        let textual = match (row.stop_token, row.tokens.split_last()) {
            (Some(stop_token), Some((last, before))) if *last == stop_token => before,
            _ => &row.tokens,
        };
        let mut found = match self.stop_share.clock() {
            None => request.stream.push(textual, &mut self.text),
            Some(mut clock) => {
                let found = request.stream.push_measured(textual, &mut self.text, &mut clock);
                self.stop_share.add(&clock);
                found
            }
        };
        let mut taken = found.map_or(row.tokens.len(), |found| found.tokens);
        place(&row.logprobs, row.tokens.len(), request.stream.places(), &mut self.logprobs);
        if found.is_none() && row.finish.is_some() {
            found = request.stream.finish(&mut self.text);
            taken = row.tokens.len();
        }
        request.counts = row.counts.unwrap_or(request.counts);
        request.completion_tokens += taken as u32;

        let finish = if found.is_some() { Some(FinishReason::Stop) } else { row.finish };
        if taken > 0 || finish.is_some() || !self.text.is_empty() {
            let notice = request.notice.take();
            let delta = DeltaRef {
                finish,
                notice: notice.as_deref(),
                stop_string: found.map(|found| request.stream.stop_string(found.index)),
                stop_token: if found.is_some() { None } else { row.stop_token },
                committed_ns: row.committed_ns,
                logprobs: &self.logprobs[..self.logprobs.len() / row.tokens.len().max(1) * taken],
                ..request.delta(key, &self.text, &row.tokens[..taken])
            };
            self.frontends[key.frontend as usize].add(delta)?;
        }
        if finish.is_some() {
            self.open.remove(&key);
        }
        // The scheduler knows of requests that it ended itself.
        if found.is_some() && row.finish.is_none() {
            self.scheduler.send(&Message::StopMatched(key))?;
        }
        Ok(())
    }
}

impl Request {
    fn delta<'a>(&self, key: RequestKey, text: &'a str, tokens: &'a [u32]) -> DeltaRef<'a> {
        DeltaRef {
            request: key.request,
            text,
            tokens,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.counts.cached_tokens,
            completion_tokens: self.completion_tokens,
            queued_us: self.counts.queued_us,
            accepted_drafts: self.counts.accepted_drafts,
            rejected_drafts: self.counts.rejected_drafts,
            ..DeltaRef::default()
        }
    }
}

/// Copies the `logprobs` of `tokens` tokens to `out` with their places in the text; tokens beyond `places` get -1.
fn place(logprobs: &[u8], tokens: usize, places: &[i32], out: &mut Vec<u8>) {
    out.clear();
    if logprobs.is_empty() || tokens == 0 {
        return;
    }
    out.extend_from_slice(logprobs);
    let places = places.iter().copied().chain(std::iter::repeat(-1));
    for (record, place) in out.chunks_exact_mut(logprobs.len() / tokens).zip(places) {
        record[..4].copy_from_slice(&place.to_le_bytes());
    }
}

/// Stop strings compiled once for all open requests that bring the same.
#[derive(Default)]
struct CompiledStops {
    by_strings: FxHashMap<Vec<String>, Weak<StopStrings>>,
    /// Entries without a request are removed when there are more than this.
    sweep_at: usize,
}

impl CompiledStops {
    /// None for no stop strings.
    fn get(&mut self, strings: &Vec<String>) -> Result<Option<Arc<StopStrings>>> {
        if strings.is_empty() {
            return Ok(None);
        }
        if let Some(compiled) = self.by_strings.get(strings).and_then(Weak::upgrade) {
            return Ok(Some(compiled));
        }
        let compiled = Arc::new(StopStrings::new(strings)?);
        if self.by_strings.len() >= self.sweep_at {
            self.by_strings.retain(|_, compiled| compiled.strong_count() > 0);
            self.sweep_at = 64 + 2 * self.by_strings.len();
        }
        self.by_strings.insert(strings.clone(), Arc::downgrade(&compiled));
        Ok(Some(compiled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stop_strings_are_compiled_once_and_forgotten() {
        let mut compiled = CompiledStops::default();
        let strings = vec!["a".to_owned()];
        let first = compiled.get(&strings).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &compiled.get(&strings).unwrap().unwrap()));
        for index in 0..1000 {
            compiled.get(&vec![index.to_string()]).unwrap();
        }
        assert!(compiled.by_strings.len() <= 66, "{}", compiled.by_strings.len());
        assert!(Arc::ptr_eq(&first, &compiled.get(&strings).unwrap().unwrap()));
        assert!(compiled.get(&Vec::new()).unwrap().is_none());
    }
}
