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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Byte-level; token = byte, then a special one, a hole, and one of two characters and a half.
    fn bytes() -> Arc<Vocabulary> {
        let table = (0u32..0x144).filter_map(char::from_u32).filter_map(|char| {
            let vocabulary = format!(
                r#"{{"decoder": {{"type": "ByteLevel"}}, "model": {{"vocab": {{{:?}: 0}}}}}}"#,
                char.to_string()
            );
            let vocabulary = Vocabulary::from_tokenizer_json(&vocabulary).ok()?;
            match vocabulary.token_bytes(0)? {
                [byte] => Some((char, *byte)),
                _ => None,
            }
        });
        let mut entries: Vec<_> =
            table.map(|(char, byte)| format!("{}: {byte}", serde_json::to_string(&char).unwrap())).collect();
        entries.push(r#""éĠab": 258"#.into());
        let json = format!(
            r#"{{"added_tokens": [{{"id": 256, "content": "<|x|>", "special": true}}], "decoder": {{"type": "ByteLevel"}},
                "model": {{"vocab": {{{}}}}}}}"#,
            entries.join(", ")
        );
        Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap())
    }

    /// Byte fallback as Llama has it; token = byte for 0..256, then a special one, a hole, text tokens.
    fn fallback() -> Arc<Vocabulary> {
        let mut entries: Vec<_> = (0..256).map(|byte| format!(r#""<0x{byte:02X}>": {byte}"#)).collect();
        entries.extend(
            [r#""▁": 258"#, r#""▁a": 259"#, r#""b": 260"#, r#""": 261"#, r#""é▁": 262"#].map(String::from),
        );
        let json = format!(
            r#"{{"added_tokens": [{{"id": 256, "content": "</s>", "special": true}}],
                "decoder": {{"type": "Sequence", "decoders": [
                    {{"type": "Replace", "pattern": {{"String": "▁"}}, "content": " "}}, {{"type": "ByteFallback"}},
                    {{"type": "Fuse"}}, {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}},
                "model": {{"vocab": {{{}}}}}}}"#,
            entries.join(", ")
        );
        Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap())
    }

    fn stream(vocabulary: &Arc<Vocabulary>, stops: &[&str], include: bool) -> Stream {
        let stops: Vec<_> = stops.iter().map(ToString::to_string).collect();
        let compiled = (!stops.is_empty()).then(|| Arc::new(StopStrings::new(&stops).unwrap()));
        Stream::new(vocabulary.clone(), compiled, include, true)
    }

    /// The text of the whole, as `tokenizers` would decode it.
    fn decode(vocabulary: &Vocabulary, tokens: &[u32]) -> String {
        let mut pieces = tokens
            .iter()
            .filter(|token| !vocabulary.is_special(**token))
            .filter_map(|token| vocabulary.piece(*token, false))
            .peekable();
        if vocabulary.rules().byte_level {
            let bytes: Vec<u8> = pieces
                .flat_map(|piece| match piece {
                    Piece::Bytes(bytes) => bytes.to_vec(),
                    Piece::Byte(_) => unreachable!(),
                })
                .collect();
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        let mut text = String::new();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Bytes(bytes) => text.push_str(std::str::from_utf8(bytes).unwrap()),
                Piece::Byte(byte) => {
                    let mut run = vec![byte];
                    while let Some(Piece::Byte(byte)) = pieces.peek() {
                        run.push(*byte);
                        pieces.next();
                    }
                    match String::from_utf8(run) {
                        Ok(run) => text.push_str(&run),
                        Err(error) => text.extend(error.as_bytes().iter().map(|_| '\u{fffd}')),
                    }
                }
            }
        }
        text.strip_prefix(' ').map(String::from).unwrap_or(text)
    }

    /// The first token with which the whole text has a stop string; then (tokens, text, index).
    ///
    /// A character that is not whole yet is no U+FFFD until the end.
    fn model(
        vocabulary: &Vocabulary,
        tokens: &[u32],
        stops: &[String],
        include: bool,
    ) -> (usize, String, Option<usize>) {
        for count in 1..=tokens.len() {
            let text = decode(vocabulary, &tokens[..count]);
            let found = text.char_indices().map(|(at, char)| at + char.len_utf8()).find_map(|end| {
                let matches = (0..stops.len()).filter(|index| text[..end].ends_with(&stops[*index]));
                matches
                    .max_by_key(|index| (stops[*index].len(), std::cmp::Reverse(*index)))
                    .map(|index| (end, index))
            });
            if let Some((end, index)) = found {
                return (
                    count,
                    text[..if include { end } else { end - stops[index].len() }].to_owned(),
                    Some(index),
                );
            }
        }
        (tokens.len(), decode(vocabulary, tokens), None)
    }

    fn run(mut stream: Stream, tokens: &[u32], sizes: &[usize]) -> (usize, String, Option<usize>) {
        let (mut text, mut taken, mut sizes) = (String::new(), 0, sizes.iter().cycle());
        while taken < tokens.len() {
            let size = (*sizes.next().unwrap()).min(tokens.len() - taken);
            if let Some(found) = stream.push(&tokens[taken..taken + size], &mut text) {
                assert_eq!(stream.push(tokens, &mut text), None);
                assert_eq!(stream.finish(&mut text), None);
                return (taken + found.tokens, text, Some(found.index));
            }
            taken += size;
        }
        let found = stream.finish(&mut text);
        (taken, text, found.map(|found| found.index))
    }

    fn tokens() -> impl Strategy<Value = Vec<u32>> {
        let text = prop::sample::select(vec!["é", "a", " ", "€", "😀", "b\n", "\n"]);
        let text = text.prop_map(|text| text.bytes().map(u32::from).collect());
        let stray =
            prop::sample::select(vec![0xe2, 0x82, 0xff, 0x20, 256, 257]).prop_map(|token: u32| vec![token]);
        let token = (258..264u32).prop_map(|token| vec![token]);
        proptest::collection::vec(prop_oneof![4 => text, 1 => stray, 3 => token], 0..12)
            .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn equals_the_whole_however_it_is_grouped(
            kind in any::<bool>(),
            tokens in tokens(),
            stops in proptest::collection::vec("[ab é\n]{1,3}", 0..3),
            include in any::<bool>(),
            sizes in proptest::collection::vec(1..5usize, 1..5),
        ) {
            let vocabulary = if kind { bytes() } else { fallback() };
            let borrowed: Vec<_> = stops.iter().map(String::as_str).collect();
            let expected = model(&vocabulary, &tokens, &stops, include);
            prop_assert_eq!(&run(stream(&vocabulary, &borrowed, include), &tokens, &sizes), &expected);
            prop_assert_eq!(&run(stream(&vocabulary, &borrowed, include), &tokens, &[usize::MAX]), &expected);
        }
    }

    proptest! {
        #[test]
        fn a_token_is_placed_behind_the_text_before_it(
            kind in any::<bool>(),
            tokens in tokens(),
            stops in proptest::collection::vec("[ab é\n]{1,3}", 0..3),
            sizes in proptest::collection::vec(1..5usize, 1..5),
        ) {
            let vocabulary = if kind { bytes() } else { fallback() };
            let borrowed: Vec<_> = stops.iter().map(String::as_str).collect();
            let mut placed = stream(&vocabulary, &borrowed, false);
            placed.keep_places();
            let (mut places, mut text, mut sizes) = (Vec::new(), String::new(), sizes.iter().cycle());
            let mut rest = &tokens[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
                let found = placed.push(now, &mut text);
                let count = found.map_or(now.len(), |found| found.tokens);
                prop_assert_eq!(placed.places().len(), count);
                places.extend_from_slice(placed.places());
                if found.is_some() {
                    break;
                }
                rest = later;
            }
            let mut before = stream(&vocabulary, &[], false);
            let mut text = String::new();
            for (token, place) in tokens.iter().zip(&places) {
                let characters = text.chars().count() as i32;
                let skipped = vocabulary.is_special(*token) || vocabulary.piece(*token, false).is_none();
                let textual = matches!(vocabulary.piece(*token, false), Some(Piece::Bytes(_)));
                before.push(&[*token], &mut text);
                if skipped {
                    prop_assert_eq!(*place, -1);
                } else if kind || !textual {
                    prop_assert_eq!(*place, characters);
                } else {
                    // Behind the run of bytes that it has ended.
                    let own = decode(&vocabulary, &[260, *token]).chars().count() as i32 - 1;
                    let after = text.chars().count() as i32;
                    prop_assert_eq!(*place, characters.max(after - own));
                }
            }
        }
    }

    #[test]
    fn half_a_character_and_half_a_stop_string_stay_inside() {
        let vocabulary = bytes();
        let mut stream = stream(&vocabulary, &["b€c"], false);
        let mut out = Vec::new();
        for byte in "ab€d".bytes() {
            let mut text = String::new();
            assert_eq!(stream.push(&[byte.into()], &mut text), None);
            out.push(text);
        }
        assert_eq!(out, ["a", "", "", "", "", "b€d"]);
    }

    #[test]
    fn a_newline_of_byte_fallback_stops_at_its_own_token() {
        let vocabulary = fallback();
        let mut stream = stream(&vocabulary, &["\n"], true);
        let mut text = String::new();
        assert_eq!(stream.push(&[260, 10, 260], &mut text), Some(StopMatch { index: 0, tokens: 2 }));
        assert_eq!(text, "b\n");
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_a_replacement() {
        let vocabulary = bytes();
        let mut stream = stream(&vocabulary, &["\u{fffd}"], false);
        let mut text = String::new();
        assert_eq!(stream.push(&[0x61, 0xe2, 0x82], &mut text), None);
        assert_eq!(stream.finish(&mut text), Some(StopMatch { index: 0, tokens: 0 }));
        assert_eq!(text, "a");
    }
}
