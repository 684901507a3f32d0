//! One sequence: tokens go in, and text comes out that later tokens cannot change.
//!
//! ```text
//!  tokens ─► Vocabulary ─► Lossy or ByteRuns ─► strip the beginning ─► StopStrings ─► text
//!                            half characters                            what may become a stop string
//!                            stay here                                  stays here
//! ```
//!
//! The emitted text depends on the tokens only, not on how they were grouped into pushes. So a stream continues after a
//! restart: its earlier tokens are pushed again, and their text is dropped.
//!
//! Stop strings are searched after every token, which gives the token that completed a match. O(1) a byte.

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
    /// How many tokens of this push belong to it, up to the one that completed it.
    pub tokens: usize,
}

/// Measures how much of a stream's time the search for stop strings takes.
pub trait Meter {
    /// The search begins.
    fn search(&mut self);
    /// The search ends.
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
    /// No token has been decoded yet.
    first: bool,
    /// The character to strip from the beginning, and how many more of it.
    strip: Option<(char, usize)>,
    stops: Option<Box<Stops>>,
    ended: bool,
    places: Option<Box<Places>>,
}

/// The positions of tokens in the text.
#[derive(Debug, Clone, Default)]
struct Places {
    /// Characters of the text so far, withheld ones included.
    characters: usize,
    /// Positions of the tokens of the last push.
    of_tokens: Vec<i32>,
}

#[derive(Debug, Clone)]
enum Assembler {
    Lossy(Lossy),
    ByteRuns(ByteRuns),
}

/// The state of the search for stop strings.
#[derive(Debug, Clone)]
struct Stops {
    strings: Arc<StopStrings>,
    include: bool,
    state: StateID,
    /// Text that is withheld; all of it has been scanned between two pushes.
    held: String,
    /// The state after `probed` bytes of the unfinished byte run, if the run ended there.
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

    /// Makes [`Self::places`] report positions. Call before the first token.
    pub fn keep_places(&mut self) {
        self.places = Some(Box::default());
    }

    /// The position at which each token of the last push begins, in characters from the beginning of the answer; -1 for
    /// a token without text. Tokens that make up one character begin together. Empty unless
    /// [`kept`](Self::keep_places); shorter than the push where a stop string was found.
    pub fn places(&self) -> &[i32] {
        self.places.as_ref().map_or(&[], |places| &places.of_tokens)
    }

    /// Appends to `text` what `tokens` add to it and later tokens cannot change. No text comes after a match or after
    /// [`Self::finish`].
    pub fn push(&mut self, tokens: &[u32], text: &mut String) -> Option<StopMatch> {
        self.push_measured(tokens, text, &mut NoMeter)
    }

    /// [`Self::push`], with its search for stop strings reported to `meter`.
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

    /// Ends the stream: appends the withheld text. Only the U+FFFD of an unfinished character can still complete a stop
    /// string.
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
        // The text of a byte run that the token has ended comes before its own.
        let place = own.map_or(-1, |own| start.max(places.characters.saturating_sub(own)) as i32);
        places.of_tokens.push(place);
        self.places = Some(places);
    }

    /// An upper bound of the token's own characters in the text; `None` if it has no text.
    fn decode(&mut self, token: u32, out: &mut String) -> Option<usize> {
        if self.skip_special_tokens && self.vocabulary.is_special(token) {
            return None;
        }
        // An id without a token is skipped like a special token: it does not end a byte run either.
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

    /// Whether the unfinished byte run would complete a stop string if it ended now.
    ///
    /// Its text is withheld because a later invalid byte would turn all of it into U+FFFD. If the request ends here, no
    /// byte follows.
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
