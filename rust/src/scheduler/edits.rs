//! Penalties, biases and bad words: what is changed in a request's logits before anything else looks at them.
//!
//! ```text
//!  committed token ─push─► counts ─► edits of logits row 0: (token, factor, add), each token once
//!  draft           ─push─►        ─► edits of logits row 1, ...              and the drafts are popped again
//! ```
//!
//! A logit `l` becomes `(l > 0 ? l / factor : l * factor) + add`: the repetition penalty of Keskar et al., "CTRL"
//! (2019), over prompt and answer, then presence and frequency penalties over the answer and the bias; a token that
//! would complete a bad word gets minus infinity. The edits are a function of the tokens before a logits row alone, so
//! neither drafts nor preemption change any token.
//!
//! They go by all tokens before, so they are filled after the commit of the step before, like masks. A step takes as
//! many rows with edits as have a place in its buffers; who found none has the first turn in the next.
//! O(1) a token; a row costs O(edits + tokens of bad words).

use rustc_hash::FxHashMap;

use super::buffers::header::NUM_EDITS;
use super::plan::Room;
use super::planner::Planner;
use super::sequence_table::Progress;
use crate::error::{Error, Result};
use crate::messages::EditRules;
use crate::telemetry::Stage;

/// What is known of a token whose logit is, or may be, changed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Entry {
    token: u32,
    /// How often it was generated.
    generated: u32,
    prompt: bool,
    bias: f32,
    /// It ends a bad word of several tokens.
    ends_word: bool,
    /// A bad word would end with it now.
    forbidden: bool,
}

impl Entry {
    /// Whether nothing is known of it any more.
    fn is_blank(&self) -> bool {
        self.generated == 0 && !self.prompt && self.bias == 0.0 && !self.ends_word
    }
}

/// A bad word of several tokens.
#[derive(Debug)]
struct Word {
    before: Box<[u32]>,
    /// The entry of its last token.
    last: usize,
}

/// Where the edits of a step go: the fields of its buffers.
pub(super) struct EditFields<'a> {
    pub token: &'a mut [i32],
    pub factor: &'a mut [f32],
    pub add: &'a mut [f32],
    /// How many are written.
    pub end: usize,
}

/// The edits of one request, at its last known token.
#[derive(Debug)]
pub struct Edits {
    presence: f32,
    frequency: f32,
    repetition: f32,
    vocab_size: u32,
    entries: Vec<Entry>,
    by_token: FxHashMap<u32, usize>,
    words: Vec<Word>,
}

impl Edits {
    /// The edits of a request whose tokens are `prompt`, then `generated`. `InvalidArgument` for rules that no
    /// frontend sends: tokens beyond the vocabulary, penalties that are no numbers.
    pub fn new(rules: &EditRules, vocab_size: usize, prompt: &[u32], generated: &[u32]) -> Result<Self> {
        let invalid = |message: &str| Err(Error::InvalidArgument(message.into()));
        let penalties = [rules.presence, rules.frequency, rules.repetition];
        if rules.repetition <= 0.0 || penalties.iter().any(|penalty| !penalty.is_finite()) {
            return invalid("a penalty is out of its range");
        }
        let mut edits = Self {
            presence: rules.presence,
            frequency: rules.frequency,
            repetition: rules.repetition,
            vocab_size: u32::try_from(vocab_size).unwrap_or(u32::MAX),
            entries: Vec::new(),
            by_token: FxHashMap::default(),
            words: Vec::new(),
        };
        for &(token, bias) in &rules.bias {
            if !bias.is_finite() || token >= edits.vocab_size {
                return invalid("a bias is no number, or its token is not in the vocabulary");
            }
            // What is nothing in single precision must leave no entry: `pop` takes such a one for the last draft's.
            if bias != 0.0
                && let Some(at) = edits.entry(token)
            {
                edits.entries[at].bias = bias;
            }
        }
        for word in &rules.bad_words {
            let Some((&last, before)) = word.split_last() else { return invalid("a bad word is empty") };
            let Some(last) = edits.entry(last) else {
                return invalid("a bad word's token is not in the vocabulary");
            };
            if before.is_empty() {
                edits.entries[last].bias = f32::NEG_INFINITY;
            } else {
                edits.entries[last].ends_word = true;
                edits.words.push(Word { before: before.into(), last });
            }
        }
        if edits.repetition != 1.0 {
            for &token in prompt {
                if let Some(at) = edits.entry(token) {
                    edits.entries[at].prompt = true;
                }
            }
        }
        generated.iter().for_each(|token| edits.push(*token));
        Ok(edits)
    }

    /// The place of a token's entry; none beyond the vocabulary.
    fn entry(&mut self, token: u32) -> Option<usize> {
        if token >= self.vocab_size {
            return None;
        }
        let next = self.entries.len();
        let at = *self.by_token.entry(token).or_insert(next);
        if at == next {
            self.entries.push(Entry { token, ..Entry::default() });
        }
        Some(at)
    }

    fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0 || self.repetition != 1.0
    }

    /// Counts a generated token.
    pub fn push(&mut self, token: u32) {
        if self.counts()
            && let Some(at) = self.entry(token)
        {
            self.entries[at].generated += 1;
        }
    }

    /// Takes the last pushed token back.
    fn pop(&mut self, token: u32) {
        let Some(&at) = self.by_token.get(&token).filter(|_| self.counts()) else { return };
        self.entries[at].generated -= 1;
        if self.entries[at].is_blank() {
            // It came with this token, and so after all others.
            debug_assert_eq!(at + 1, self.entries.len());
            self.entries.truncate(at);
            self.by_token.remove(&token);
        }
    }

    /// The most edits of a logits row `ahead` tokens beyond the known ones.
    pub fn bound(&self, ahead: usize) -> usize {
        (self.entries.len() + ahead).min(self.vocab_size as usize)
    }

    /// Writes the edits of a row's logits: `drafts.len() + 1`, `starts` being where each of them begins. `known` are
    /// the tokens before the drafts. `InvalidArgument` if there is no room for them.
    pub(super) fn fill(
        &mut self,
        known: &[u32],
        drafts: &[u32],
        starts: &mut [i32],
        out: &mut EditFields<'_>,
    ) -> Result<()> {
        let mut filled = Ok(());
        let mut pushed = 0;
        for (at, start) in starts.iter_mut().enumerate() {
            if at > 0 {
                self.push(drafts[at - 1]);
                pushed = at;
            }
            *start = out.end as i32;
            self.forbid(known, &drafts[..at], true);
            filled = filled.and(self.write(out));
            self.forbid(known, &drafts[..at], false);
        }
        drafts[..pushed].iter().rev().for_each(|draft| self.pop(*draft));
        filled
    }

    /// Marks, or unmarks, the last tokens of the bad words whose tokens before stand at the end of `known` and
    /// `drafts`.
    fn forbid(&mut self, known: &[u32], drafts: &[u32], forbidden: bool) {
        for word in &self.words {
            let tail = known.iter().chain(drafts).rev();
            if word.before.len() <= known.len() + drafts.len()
                && word.before.iter().rev().eq(tail.take(word.before.len()))
            {
                self.entries[word.last].forbidden = forbidden;
            }
        }
    }

    fn write(&self, out: &mut EditFields<'_>) -> Result<()> {
        for entry in &self.entries {
            let (factor, add) = self.edit(entry);
            if factor == 1.0 && add == 0.0 {
                continue;
            }
            let at = out.end;
            if at == out.token.len() {
                return Err(Error::InvalidArgument("a step's edits do not fit its buffers".into()));
            }
            (out.token[at], out.factor[at], out.add[at]) = (entry.token as i32, factor, add);
            out.end += 1;
        }
        Ok(())
    }

    /// What becomes of the logit of a token: a function of how often it was generated, not of how that came.
    fn edit(&self, entry: &Entry) -> (f32, f32) {
        let generated = entry.generated > 0;
        let factor = if entry.prompt || generated { self.repetition } else { 1.0 };
        if entry.forbidden {
            return (factor, f32::NEG_INFINITY);
        }
        let presence = if generated { self.presence } else { 0.0 };
        (factor, entry.bias - (presence + self.frequency * entry.generated as f32))
    }
}

/// A row whose edits are to be filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct EditRecord {
    pub slot: u32,
    pub generation: u32,
    /// The first of its logits.
    pub first: u32,
    pub drafts: u32,
}

impl Planner {
    /// Chooses which decodes have a place for their edits in the step: the others wait, and have the first turn in the
    /// next. O(running), and nothing where no request has edits.
    pub(super) fn seat_edits(&mut self, room: &mut Room) {
        if self.editing == 0 {
            return;
        }
        let split = self.running.partition_point(|runner| runner.order < self.edit_turn);
        let mut waits = None;
        for at in (split..self.running.len()).chain(0..split) {
            let runner = self.running[at];
            let slot = runner.slot as usize;
            let progress = self.table.progress[slot];
            let Some(edits) = &self.requests.get(self.table.request[slot]).edits else { continue };
            if progress.remaining() != 1 {
                continue;
            }
            let needed = edits.bound(progress.pending as usize);
            self.table.seated[slot] = needed <= room.edits;
            if self.table.seated[slot] {
                room.edits -= needed;
            } else {
                waits = waits.or(Some(runner.order));
            }
        }
        self.edit_turn = waits.unwrap_or((i32::MIN, 0));
    }

    /// Whether a sequence that decodes has edits and no place for them in this step.
    pub(super) fn lacks_seat(&self, slot: u32) -> bool {
        self.editing > 0
            && !self.table.seated[slot as usize]
            && self.requests.get(self.table.request[slot as usize]).edits.is_some()
    }

    /// Takes the place of the edits of a prefill that would sample in this step; false if there is none.
    pub(super) fn seat_prefill(&self, slot: u32, progress: &Progress, room: &mut Room) -> bool {
        if self.editing == 0 {
            return true;
        }
        let Some(edits) = &self.requests.get(self.table.request[slot as usize]).edits else { return true };
        let needed = edits.bound(progress.pending as usize);
        let fits = needed <= room.edits;
        room.edits -= if fits { needed } else { 0 };
        fits
    }

    /// How many of `count` drafts of a decode have a place for the edits of what is sampled behind them; takes it.
    pub(super) fn seat_drafts(&self, slot: u32, count: usize, room: &mut Room) -> usize {
        if self.editing == 0 {
            return count;
        }
        let Some(edits) = &self.requests.get(self.table.request[slot as usize]).edits else { return count };
        let fitting = (1..=count).take_while(|ahead| {
            let left = room.edits.checked_sub(edits.bound(*ahead));
            room.edits = left.unwrap_or(room.edits);
            left.is_some()
        });
        fitting.count()
    }

    /// Fills the edits of the step that was planned last into `bytes`, its buffers; returns how many.
    ///
    /// To be called when every step before it is committed, and before the device samples.
    pub fn fill_edits(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let out = self.layout.view(bytes)?;
        let Some(record) = self.in_flight.back_mut() else {
            return Err(Error::InvalidArgument("no step is in flight".into()));
        };
        let records = std::mem::take(&mut record.edits);
        let logits = record.num_logits;
        if records.is_empty() {
            return Ok(0);
        }
        if self.in_flight.len() > 1 {
            return Err(Error::InvalidArgument("the step before is not committed yet".into()));
        }
        let mut fields =
            EditFields { token: out.edit_token, factor: out.edit_factor, add: out.edit_add, end: 0 };
        let (mut drafts, mut next, mut filled) = (Vec::new(), 0, Ok(()));
        for record in &records {
            let first = record.first as usize;
            let behind = first + record.drafts as usize + 1;
            out.edit_start[next..behind].fill(fields.end as i32);
            next = behind;
            // A sequence that has ended meanwhile has none: whatever is sampled is dropped.
            if !self.table.is_current(record.slot, record.generation) {
                continue;
            }
            let token = out.logit_token[first] as usize + 1;
            drafts.clear();
            drafts.extend(
                out.token_ids[token..token + record.drafts as usize].iter().map(|token| *token as u32),
            );
            let known = &self.table.tokens[record.slot as usize];
            let request = self.requests.get_mut(self.table.request[record.slot as usize]);
            if let Some(edits) = &mut request.edits {
                let starts = &mut out.edit_start[first..behind];
                filled = filled.and(edits.fill(known, &drafts, starts, &mut fields));
            }
        }
        out.edit_start[next..=logits].fill(fields.end as i32);
        out.header[NUM_EDITS] = fields.end as i64;
        let end = fields.end;
        if let Some(record) = self.in_flight.back_mut() {
            record.edits = records;
            record.edits.clear();
        }
        self.timeline.lap(Stage::BufferFill);
        filled.map(|()| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_that_is_nothing_in_single_precision_takes_no_others_place() {
        // As a frontend may send it: a double that a float has no place for.
        let message = rmp_serde::to_vec(&(0.5, 0.0, 1.0, [(5, 1e-50), (6, -3.0)], [[0u32; 0]; 0])).unwrap();
        let rules: EditRules = rmp_serde::from_slice(&message).unwrap();
        let mut edits = Edits::new(&rules, 16, &[], &[]).unwrap();
        let mut filled = || {
            let (mut token, mut factor, mut add) = ([0; 8], [0.0; 8], [0.0; 8]);
            let mut out = EditFields { token: &mut token, factor: &mut factor, add: &mut add, end: 0 };
            edits.fill(&[], &[5], &mut [0; 2], &mut out).unwrap();
            let end = out.end;
            (token[..end].to_vec(), add[..end].to_vec())
        };
        let wanted = (vec![6, 6, 5], vec![-3.0, -3.0, -0.5]);
        assert_eq!([filled(), filled()], [wanted.clone(), wanted]);
    }
}
