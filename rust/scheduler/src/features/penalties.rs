//! Penalties, biases and bad words of one request: how its logits are changed before the sampler sees them.
//!
//! ```text
//!  committed token ─push─► counts ─► penalties of logits row 0: (token, factor, add), each token once
//!  draft           ─push─►        ─► penalties of logits row 1, ...              and the drafts are popped again
//! ```
//!
//! A logit `l` becomes `(l > 0 ? l / factor : l * factor) + add`: the repetition penalty of Keskar et al., "CTRL"
//! (2019), over prompt and answer, then presence and frequency penalties over the answer, [repetitions](super::dry) and the
//! bias; a token that would complete a bad word gets minus infinity. The penalties are a function of the tokens before a logits row alone, so
//! neither drafts nor preemption change any token. [`penalty_budget`](super::penalty_budget) puts them into steps.
//!
//! O(1) a token; a row costs O(penalties + tokens of bad words).

use pyengine_kernels_cpu::sampler::SamplingRow;
use rustc_hash::FxHashMap;

use super::dry::Dry;
use pyengine_base::error::{Error, Result};
use pyengine_messages::Extension;
use serde::{Deserialize, Serialize};

/// Asks for changes of logits beside those of the sampling row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PenaltiesExtension {
    /// Added to the logits of these tokens; each token once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Sequences of tokens of which the last must not follow the others.
    pub bad_words: Vec<Vec<u32>>,
    /// Tokens at which a sequence ends that must not be repeated, token ids as u32 little-endian; for the rule DRY.
    #[serde(with = "serde_bytes")]
    pub dry_breakers: Vec<u8>,
}

impl Extension for PenaltiesExtension {
    const TAG: &'static str = "penalties";
}

/// A token whose logit is, or may be, changed.
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
    /// Whether it changes nothing any more.
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

/// The fields of a step's buffers that hold its penalties.
pub(crate) struct PenaltyFields<'a> {
    pub token: &'a mut [i32],
    pub factor: &'a mut [f32],
    pub add: &'a mut [f32],
    /// How many are written.
    pub end: usize,
}

impl PenaltyFields<'_> {
    /// Writes a token's penalty, if it changes something. `InvalidArgument` if there is no room for it.
    fn write(&mut self, token: u32, factor: f32, add: f32) -> Result<()> {
        if factor == 1.0 && add == 0.0 {
            return Ok(());
        }
        let at = self.end;
        if at == self.token.len() {
            return Err(Error::InvalidArgument("a step's penalties do not fit its buffers".into()));
        }
        (self.token[at], self.factor[at], self.add[at]) = (token as i32, factor, add);
        self.end += 1;
        Ok(())
    }
}

/// The penalties of one request, at its last known token.
#[derive(Debug)]
pub struct Penalties {
    rules: SamplingRow,
    vocab_size: u32,
    entries: Vec<Entry>,
    by_token: FxHashMap<u32, usize>,
    words: Vec<Word>,
    dry: Option<Dry>,
}

impl Penalties {
    /// The penalties of a request whose tokens are `prompt`, then `generated`; `dry` knows these tokens.
    /// `InvalidArgument` for rules that no frontend sends: tokens beyond the vocabulary, penalties that are no numbers.
    pub fn new(
        rules: &SamplingRow,
        changes: &PenaltiesExtension,
        dry: Option<Dry>,
        vocab_size: usize,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<Self> {
        let invalid = |message: &str| Err(Error::InvalidArgument(message.into()));
        let penalties = [rules.presence_penalty, rules.frequency_penalty, rules.repetition_penalty];
        if rules.repetition_penalty <= 0.0 || penalties.iter().any(|penalty| !penalty.is_finite()) {
            return invalid("a penalty is out of its range");
        }
        let mut penalties = Self {
            rules: *rules,
            vocab_size: u32::try_from(vocab_size).unwrap_or(u32::MAX),
            entries: Vec::new(),
            by_token: FxHashMap::default(),
            words: Vec::new(),
            dry,
        };
        for &(token, bias) in &changes.logit_bias {
            if !bias.is_finite() || token >= penalties.vocab_size {
                return invalid("a bias is no number, or its token is not in the vocabulary");
            }
            // A bias that rounds to zero must leave no entry: `pop` would take it for the last draft's.
            if bias != 0.0
                && let Some(at) = penalties.entry(token)
            {
                penalties.entries[at].bias = bias;
            }
        }
        for word in &changes.bad_words {
            let Some((&last, before)) = word.split_last() else { return invalid("a bad word is empty") };
            let Some(last) = penalties.entry(last) else {
                return invalid("a bad word's token is not in the vocabulary");
            };
            if before.is_empty() {
                penalties.entries[last].bias = f32::NEG_INFINITY;
            } else {
                penalties.entries[last].ends_word = true;
                penalties.words.push(Word { before: before.into(), last });
            }
        }
        if rules.repetition_penalty != 1.0 {
            for &token in prompt {
                if let Some(at) = penalties.entry(token) {
                    penalties.entries[at].prompt = true;
                }
            }
        }
        generated.iter().for_each(|token| penalties.count(*token));
        Ok(penalties)
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

    /// Whether any penalty depends on what was generated.
    fn counts(&self) -> bool {
        self.rules.has_penalties()
    }

    /// Takes a token of the answer in.
    pub fn push(&mut self, token: u32) {
        self.count(token);
        if let Some(dry) = &mut self.dry {
            dry.push(token);
        }
    }

    /// Counts a generated token.
    fn count(&mut self, token: u32) {
        if self.counts()
            && let Some(at) = self.entry(token)
        {
            self.entries[at].generated += 1;
        }
    }

    /// Takes the last counted token back.
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

    /// The most penalties of a logits row `ahead` tokens beyond the known ones.
    pub fn bound(&self, ahead: usize) -> usize {
        let repeats = self.dry.as_ref().map_or(0, |dry| dry.bound(ahead));
        (self.entries.len() + ahead + repeats).min(self.vocab_size as usize)
    }

    /// Writes the penalties of a row's logits: `drafts.len() + 1`, `starts` being where each of them begins. `known` are
    /// the tokens before the drafts. `InvalidArgument` if there is no room for them.
    pub(crate) fn fill(
        &mut self,
        known: &[u32],
        drafts: &[u32],
        starts: &mut [i32],
        out: &mut PenaltyFields<'_>,
    ) -> Result<()> {
        let mut filled = Ok(());
        let mut pushed = 0;
        for (at, start) in starts.iter_mut().enumerate() {
            if at > 0 {
                self.count(drafts[at - 1]);
                pushed = at;
            }
            *start = out.end as i32;
            self.forbid(known, &drafts[..at], true);
            let repeats = self.dry.as_mut().map(|dry| dry.find(known, &drafts[..at]));
            filled = filled.and(self.write(repeats.unwrap_or_default(), out));
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

    /// Writes the penalties of a logits row, `repeats` taken from the logits of these tokens besides.
    fn write(&self, mut repeats: FxHashMap<u32, f32>, out: &mut PenaltyFields<'_>) -> Result<()> {
        for entry in &self.entries {
            let (factor, add) = self.penalty(entry);
            let repeat = repeats.remove(&entry.token).unwrap_or(0.0);
            out.write(entry.token, factor, add - repeat)?;
        }
        let others = repeats.into_iter().filter(|(token, _)| *token < self.vocab_size);
        others.into_iter().try_for_each(|(token, repeat)| out.write(token, 1.0, -repeat))
    }

    /// The penalty of a token: a function of how often it was generated, not of the order.
    fn penalty(&self, entry: &Entry) -> (f32, f32) {
        let generated = entry.generated > 0;
        let factor = if entry.prompt || generated { self.rules.repetition_penalty } else { 1.0 };
        if entry.forbidden {
            return (factor, f32::NEG_INFINITY);
        }
        let presence = if generated { self.rules.presence_penalty } else { 0.0 };
        (factor, entry.bias - (presence + self.rules.frequency_penalty * entry.generated as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_that_is_nothing_in_single_precision_takes_no_others_place() {
        // As a frontend may send it: a double that a float has no place for.
        let message = rmp_serde::to_vec(&[(5, 1e-50), (6, -3.0)]).unwrap();
        let logit_bias: Vec<(u32, f32)> = rmp_serde::from_slice(&message).unwrap();
        let changes = PenaltiesExtension { logit_bias, ..PenaltiesExtension::default() };
        let rules = SamplingRow { presence_penalty: 0.5, ..SamplingRow::NEUTRAL };
        let mut penalties = Penalties::new(&rules, &changes, None, 16, &[], &[]).unwrap();
        let mut filled = || {
            let (mut token, mut factor, mut add) = ([0; 8], [0.0; 8], [0.0; 8]);
            let mut out = PenaltyFields { token: &mut token, factor: &mut factor, add: &mut add, end: 0 };
            penalties.fill(&[], &[5], &mut [0; 2], &mut out).unwrap();
            let end = out.end;
            (token[..end].to_vec(), add[..end].to_vec())
        };
        let wanted = (vec![6, 6, 5], vec![-3.0, -3.0, -0.5]);
        assert_eq!([filled(), filled()], [wanted.clone(), wanted]);
    }
}
