//! One sequence: tokens go in, text comes out that will never be taken back.
//!
//! ```text
//!  tokens ─► Vocabulary ─► Lossy or ByteRuns ─► strip the beginning ─► StopStrings ─► text
//!                            half characters                            what may become a stop string
//!                            stay here                                  stays here
//! ```
//!
//! The text that is out is a function of the tokens so far, however they were grouped. That is what lets a stream go on
//! after a restart: the tokens of before are pushed once more, and their text is dropped.
//!
//! A match is looked for after every token, so that it is known which token completed it. O(1) a byte.

use std::sync::Arc;

use aho_corasick::automaton::StateID;

use super::stop_matcher::StopStrings;
use super::utf8::{ByteRuns, Lossy};
use super::vocabulary::{Piece, Vocabulary};

/// A stop string that ended the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Which of the stop strings.
    pub index: usize,
    /// How many of the tokens pushed now it took, the one that completed it counted in.
    pub tokens: usize,
}

/// Told when a stream looks for stop strings, to measure how much of its time that takes.
pub trait Meter {
    /// The search begins.
    fn search(&mut self);
    /// It is over.
    fn done(&mut self);
}

/// Measures nothing.
pub struct NoMeter;

impl Meter for NoMeter {
    #[inline]
    fn search(&mut self) {}
    #[inline]
    fn done(&mut self) {}
}

/// The state of one sequence.
#[derive(Debug, Clone)]
pub struct Stream {
    vocabulary: Arc<Vocabulary>,
    assembler: Assembler,
    skip_special_tokens: bool,
    /// No token has counted yet.
    first: bool,
    /// How many characters may still be taken off the beginning, and which.
    strip: Option<(char, usize)>,
    stops: Option<Box<Stops>>,
    ended: bool,
    places: Option<Box<Places>>,
}

/// Where in the text tokens begin.
#[derive(Debug, Clone, Default)]
struct Places {
    /// Characters of the whole text so far, also those that are withheld.
    characters: usize,
    /// Of the tokens of the last push.
    of_tokens: Vec<i32>,
}

#[derive(Debug, Clone)]
enum Assembler {
    Lossy(Lossy),
    ByteRuns(ByteRuns),
}

/// What a stream with stop strings has besides.
#[derive(Debug, Clone)]
struct Stops {
    strings: Arc<StopStrings>,
    include: bool,
    state: StateID,
    /// Text that is not out yet; all of it is scanned between two pushes.
    held: String,
    /// The state after so many bytes of a byte run that has not ended, should it end there.
    probe: StateID,
    probed: usize,
}

impl Stream {
    /// A stream before its first token. With `stops`, the text ends at the first match: before it, or behind it with
    /// `include_stop`.
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        stops: Option<Arc<StopStrings>>,
        include_stop: bool,
        skip_special_tokens: bool,
    ) -> Self {
        let rules = vocabulary.rules();
        let stops = stops.map(|strings| {
            let state = strings.start();
            Box::new(Stops {
                strings,
                include: include_stop,
                state,
                held: String::new(),
                probe: state,
                probed: 0,
            })
        });
        Self {
            vocabulary,
            assembler: if rules.byte_level {
                Assembler::Lossy(Lossy::default())
            } else {
                Assembler::ByteRuns(ByteRuns::default())
            },
            skip_special_tokens,
            first: true,
            strip: rules.strip,
            stops,
            ended: false,
            places: None,
        }
    }

    /// From now on [`Self::places`] tells where tokens are. Before the first token.
    pub fn keep_places(&mut self) {
        self.places = Some(Box::default());
    }

    /// Where in the text each token of the last push begins, in characters from the beginning of the answer; -1 for a
    /// token that has no text of its own. Tokens that make up one character begin together. Empty unless
    /// [`kept`](Self::keep_places); shorter than the push where a stop string was found.
    pub fn places(&self) -> &[i32] {
        self.places.as_ref().map_or(&[], |places| &places.of_tokens)
    }

    /// Appends to `text` what `tokens` bring for certain. After a match, and after [`Self::finish`], nothing comes any
    /// more.
    pub fn push(&mut self, tokens: &[u32], text: &mut String) -> Option<StopMatch> {
        self.push_measured(tokens, text, &mut NoMeter)
    }

    /// [`Self::push`] that tells `meter` what it does.
    pub fn push_measured(
        &mut self,
        tokens: &[u32],
        text: &mut String,
        meter: &mut impl Meter,
    ) -> Option<StopMatch> {
        if let Some(places) = &mut self.places {
            places.of_tokens.clear();
        }
        if self.ended {
            return None;
        }
        let Some(mut stops) = self.stops.take() else {
            for &token in tokens {
                self.decode_placed(token, text);
            }
            return None;
        };
        for (at, &token) in tokens.iter().enumerate() {
            let scanned = stops.held.len();
            self.decode_placed(token, &mut stops.held);
            meter.search();
            let mut found = stops.scan(scanned);
            if found.is_none() && self.run_would_match(&mut stops) {
                let scanned = stops.held.len();
                self.flush(&mut stops.held);
                found = stops.scan(scanned);
            }
            meter.done();
            if let Some(index) = found {
                self.ended = true;
                stops.release(0, text);
                self.stops = Some(stops);
                return Some(StopMatch { index, tokens: at + 1 });
            }
        }
        stops.release(stops.strings.withheld(stops.state), text);
        self.stops = Some(stops);
        None
    }

    /// Appends to `text` what was withheld, now that no token follows. Only the U+FFFD of an unfinished character can
    /// still complete a stop string.
    pub fn finish(&mut self, text: &mut String) -> Option<StopMatch> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let Some(mut stops) = self.stops.take() else {
            self.flush(text);
            return None;
        };
        let scanned = stops.held.len();
        self.flush(&mut stops.held);
        let found = stops.scan(scanned);
        stops.release(0, text);
        self.stops = Some(stops);
        found.map(|index| StopMatch { index, tokens: 0 })
    }

    /// The stop string of that index.
    pub fn stop_string(&self, index: usize) -> &str {
        self.stops.as_ref().map_or("", |stops| &stops.strings.strings()[index])
    }

    fn decode_placed(&mut self, token: u32, out: &mut String) {
        let Some(mut places) = self.places.take() else {
            self.decode(token, out);
            return;
        };
        let before = out.len();
        let own = self.decode(token, out);
        let start = places.characters;
        places.characters += out[before..].chars().count();
        // Before its own text may stand that of a run of bytes which it has ended.
        let place = own.map_or(-1, |own| start.max(places.characters.saturating_sub(own)) as i32);
        places.of_tokens.push(place);
        self.places = Some(places);
    }

    /// The most characters of the text that are the token's own; `None` if it has none.
    fn decode(&mut self, token: u32, out: &mut String) -> Option<usize> {
        if self.skip_special_tokens && self.vocabulary.is_special(token) {
            return None;
        }
        // An id that no token has is skipped like a special token: it does not end a run of bytes either.
        let piece = self.vocabulary.piece(token, self.first)?;
        self.first = false;
        let start = out.len();
        let mut own = usize::MAX;
        match (&mut self.assembler, piece) {
            (Assembler::Lossy(lossy), Piece::Bytes(bytes)) => lossy.push(bytes, out),
            (Assembler::Lossy(lossy), Piece::Byte(byte)) => lossy.push(&[byte], out),
            (Assembler::ByteRuns(runs), Piece::Byte(byte)) => runs.push_byte(byte, out),
            (Assembler::ByteRuns(runs), Piece::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes).unwrap_or_default();
                own = text.chars().count();
                runs.push_text(text, out);
            }
        }
        self.strip_from(start, out);
        Some(own)
    }

    fn flush(&mut self, out: &mut String) {
        let start = out.len();
        match &mut self.assembler {
            Assembler::Lossy(lossy) => lossy.finish(out),
            Assembler::ByteRuns(runs) => runs.finish(out),
        }
        self.strip_from(start, out);
    }

    /// Strips `out[start..]` if it is the beginning of the text.
    fn strip_from(&mut self, start: usize, out: &mut String) {
        let Some((content, most)) = self.strip else { return };
        if out.len() == start {
            return;
        }
        let length = leading(&out.as_bytes()[start..], content, most);
        let rest = most - length / content.len_utf8();
        // Another character ends the beginning.
        self.strip = (rest > 0 && start + length == out.len()).then_some((content, rest));
        out.drain(start..start + length);
    }

    /// Whether the byte run that has not ended would complete a stop string if it ended now.
    ///
    /// Its text cannot go out yet: a byte that does not fit would still turn all of it into U+FFFD. But if the request
    /// ends here it never will.
    fn run_would_match(&self, stops: &mut Stops) -> bool {
        let Assembler::ByteRuns(runs) = &self.assembler else { return false };
        if runs.is_empty() {
            stops.probed = 0;
            return false;
        }
        let whole = runs.whole();
        if stops.probed == 0 {
            stops.probe = stops.state;
        }
        let stripped = self.strip.map_or(0, |(content, most)| leading(whole, content, most));
        let from = stops.probed.max(stripped);
        if from >= whole.len() {
            return false;
        }
        stops.probed = whole.len();
        stops.strings.scan(&mut stops.probe, &whole[from..]).is_some()
    }
}

/// Bytes of up to `most` times `content` at the beginning of `text`.
fn leading(text: &[u8], content: char, most: usize) -> usize {
    let mut buffer = [0; 4];
    let content = content.encode_utf8(&mut buffer).as_bytes();
    text.chunks(content.len()).take(most).take_while(|chunk| *chunk == content).count() * content.len()
}

impl Stops {
    /// Scans `held[scanned..]`; on a match, cuts it there.
    fn scan(&mut self, scanned: usize) -> Option<usize> {
        let found = self.strings.scan(&mut self.state, &self.held.as_bytes()[scanned..])?;
        let end = scanned + found.end;
        self.held.truncate(if self.include { end } else { end - found.length });
        Some(found.index)
    }

    /// Moves all but the last `keep` bytes out.
    fn release(&mut self, keep: usize, text: &mut String) {
        let length = self.held.len() - keep;
        text.push_str(&self.held[..length]);
        self.held.drain(..length);
    }
}

#[cfg(test)]
mod tests;
