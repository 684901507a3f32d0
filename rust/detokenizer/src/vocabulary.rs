//! The bytes of every token, read from a Hugging Face `tokenizer.json`.
//!
//! Two kinds of tokenizer are read. *Byte-level*: each character of a token stands for one byte (GPT-2's table).
//! *Text*: a token is text with a mark for the space, and tokens spelled `<0xNN>` may stand for single bytes
//! (SentencePiece's byte fallback). The file's decoder is applied to each token here, once; the stream applies
//! its [`Rules`] across tokens.
//!
//! ```text
//!  ids      0     1    2     3            offsets[id]..offsets[id + 1] lies in one arena
//!  arena  │ the │ an │     │ ing │        (token 2 is a hole: an id that no token has)
//! ```
//!
//! Reading is O(file); a look-up is O(1). Added tokens keep the id and the content that the file gives them.
//! `tokenizers` since 0.23 differs for tokens marked `normalized`: it decodes their normalized content, and so does not
//! recognize, and skip, a special token whose normalizer prepends a space.

use std::borrow::Cow;
use std::fmt;

use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::decoder::{Decoder, Rules, TokenDecoder};
use pyengine_base::error::{Error, Result};

/// A file with a greater id is refused as damaged: the arena is dense by id.
const MAX_TOKEN_ID: u32 = 1 << 24;

const PRESENT: u8 = 1;
const SPECIAL: u8 = 2;
const BYTE: u8 = 4;

/// Bytes of all tokens, dense by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    pieces: Arena,
    /// The tokens at the beginning of a text, if the decoder treats them differently there.
    first_pieces: Option<Arena>,
    flags: Vec<u8>,
    rules: Rules,
}

/// The bytes that a token adds to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of a byte-level token, or the text of a text token.
    Bytes(&'a [u8]),
    /// One byte of a byte-fallback token.
    Byte(u8),
}

impl Vocabulary {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] that names what is not supported.
    pub fn from_tokenizer_json(text: &str) -> Result<Self> {
        let file: File = serde_json::from_str(text)
            .map_err(|error| unsupported(format!("not a tokenizer.json: {error}")))?;
        let decoder = file
            .decoder
            .as_ref()
            .ok_or_else(|| unsupported("it has no decoder, so tokens would be joined with spaces"))?;
        let decoder = TokenDecoder::from_decoder(decoder)?;

        let length = file.length()?;
        let special: FxHashSet<&str> = file
            .added_tokens
            .iter()
            .filter(|token| token.special)
            .map(|token| token.content.as_ref())
            .collect();
        let mut contents: Vec<Option<&str>> = vec![None; length];
        for (content, id) in &file.model.vocab.0 {
            contents[*id as usize] = Some(content);
        }
        for token in &file.added_tokens {
            contents[token.id as usize] = Some(&token.content);
        }

        let mut vocabulary = Self {
            pieces: Arena::with_capacity(length),
            first_pieces: decoder.first_differs().then(|| Arena::with_capacity(length)),
            flags: Vec::with_capacity(length),
            rules: decoder.rules(),
        };
        let mut scratch = Vec::new();
        for content in contents {
            let mut flags = 0;
            scratch.clear();
            if let Some(content) = content {
                // Like `tokenizers`, by the text of the token.
                flags |= PRESENT | if special.contains(content) { SPECIAL } else { 0 };
                flags |= if decoder.piece(content, false, &mut scratch) { BYTE } else { 0 };
            }
            vocabulary.pieces.push(&scratch);
            if let Some(first_pieces) = &mut vocabulary.first_pieces {
                scratch.clear();
                if let Some(content) = content {
                    decoder.piece(content, true, &mut scratch);
                }
                first_pieces.push(&scratch);
            }
            vocabulary.flags.push(flags);
        }
        Ok(vocabulary)
    }

    /// One more than the greatest id.
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    /// Whether there are no tokens at all.
    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// The bytes of a token: empty for an id that no token has, None beyond the end.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        ((token as usize) < self.len()).then(|| self.pieces.get(token as usize))
    }

    /// The tokens whose bytes contain `text`, ascending. O(bytes of the vocabulary).
    pub fn containing(&self, text: &[u8]) -> Vec<u32> {
        let holds = |bytes: &[u8]| bytes.windows(text.len().max(1)).any(|window| window == text);
        (0..self.len() as u32).filter(|token| holds(self.pieces.get(*token as usize))).collect()
    }

    /// Whether the token is left out of the text when special tokens are skipped.
    pub fn is_special(&self, token: u32) -> bool {
        self.flags.get(token as usize).is_some_and(|flags| flags & SPECIAL != 0)
    }

    /// The bytes of the token, as the `first` of a text or later; None for an id without a token.
    pub(super) fn piece(&self, token: u32, first: bool) -> Option<Piece<'_>> {
        let flags = *self.flags.get(token as usize)?;
        if flags & PRESENT == 0 {
            return None;
        }
        let bytes = match &self.first_pieces {
            Some(first_pieces) if first => first_pieces.get(token as usize),
            _ => self.pieces.get(token as usize),
        };
        Some(if flags & BYTE != 0 { Piece::Byte(bytes[0]) } else { Piece::Bytes(bytes) })
    }

    /// The part of decoding that works across tokens.
    pub(super) fn rules(&self) -> Rules {
        self.rules
    }
}

/// Many byte strings in one allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arena {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

impl Arena {
    fn with_capacity(count: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        Self { bytes: Vec::with_capacity(count * 7), offsets }
    }

    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.offsets.push(u32::try_from(self.bytes.len()).expect("a vocabulary is shorter than 4 GiB"));
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    added_tokens: Vec<AddedToken<'a>>,
    #[serde(default)]
    decoder: Option<Decoder>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedToken<'a> {
    id: u32,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    vocab: Entries<'a>,
}

impl File<'_> {
    /// One more than the greatest id, which is at most [`MAX_TOKEN_ID`].
    fn length(&self) -> Result<usize> {
        let model = self.model.vocab.0.iter().map(|(_, id)| *id);
        match model.chain(self.added_tokens.iter().map(|token| token.id)).max() {
            None => Ok(0),
            Some(id) if id <= MAX_TOKEN_ID => Ok(id as usize + 1),
            Some(id) => Err(unsupported(format!("token id {id} is beyond {MAX_TOKEN_ID}"))),
        }
    }
}

/// `{"token": id, ...}` (BPE, WordPiece, WordLevel) or `[["token", score], ...]` (Unigram), in the file's order.
struct Entries<'a>(Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct EntriesVisitor;
        /// A string, borrowed from the file unless it has escapes.
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from tokens to ids or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(1 << 15);
                while let Some((Text(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(Entries(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(1 << 15);
                while let Some((Text(token), _score)) = list.next_element::<(Text<'de>, IgnoredAny)>()? {
                    entries.push((token, entries.len() as u32));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_any(EntriesVisitor)
    }
}

fn unsupported(reason: impl Into<String>) -> Error {
    Error::UnsupportedTokenizer(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte_level(vocab: &str, added: &str) -> Vocabulary {
        Vocabulary::from_tokenizer_json(&format!(
            r#"{{"added_tokens": [{added}], "decoder": {{"type": "ByteLevel"}}, "model": {{"vocab": {vocab}, "merges": [["a", "b"]]}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn byte_level_tokens_are_bytes() {
        let vocabulary = byte_level(
            r#"{"a": 0, "Ġthe": 1, "ð": 2, "\u010a": 4}"#,
            r#"{"id": 6, "content": "<|end|>", "special": true}, {"id": 7, "content": "two words"}"#,
        );
        assert_eq!(vocabulary.len(), 8);
        let bytes: Vec<_> = (0..9).map(|id| vocabulary.token_bytes(id)).collect();
        let expected: [Option<&[u8]>; 9] = [
            Some(b"a"),
            Some(b" the"),
            Some(b"\xf0"),
            Some(b""),
            Some(b"\n"),
            Some(b""),
            Some(b"<|end|>"),
            Some(b"two words"), // the space is no character of the table: the token is its own text
            None,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(vocabulary.containing(b"\n"), [4]);
        assert_eq!(vocabulary.containing(b"t"), [1, 7]);
        assert_eq!(vocabulary.containing(b"wos"), [0u32; 0]);
        assert_eq!(vocabulary.piece(3, false), None, "a hole");
        assert!(vocabulary.is_special(6) && !vocabulary.is_special(7) && !vocabulary.is_special(99));
    }

    #[test]
    fn byte_fallback_tokens_are_text_and_bytes() {
        let vocabulary = Vocabulary::from_tokenizer_json(
            r#"{"added_tokens": [{"id": 0, "content": "<s>", "special": true}],
                "decoder": {"type": "Sequence", "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                "model": {"type": "Unigram", "vocab": [["<s>", 0.0], ["<0x0A>", -1], ["▁the▁", -2.5], ["<0xé>", -3]]}}"#,
        )
        .unwrap();
        assert_eq!(vocabulary.piece(1, true), Some(Piece::Byte(b'\n')));
        assert_eq!(vocabulary.piece(2, true), Some(Piece::Bytes(b" the ")));
        assert_eq!(vocabulary.piece(3, true), Some(Piece::Bytes("<0xé>".as_bytes())));
        assert_eq!(vocabulary.rules().strip, Some((' ', 1)));
    }

    #[test]
    fn a_metaspace_first_token_differs() {
        let vocabulary = Vocabulary::from_tokenizer_json(
            r#"{"decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true},
                "model": {"vocab": {"▁a▁b c": 0}}}"#,
        )
        .unwrap();
        assert_eq!(vocabulary.piece(0, false), Some(Piece::Bytes(b" a b c")));
        assert_eq!(vocabulary.piece(0, true), Some(Piece::Bytes(b"ab c")));
        assert_eq!(vocabulary.token_bytes(0), Some(&b" a b c"[..]));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        for text in [
            "",
            "{}",
            "[1]",
            r#"{"decoder": null, "model": {"vocab": {"a": 0}}}"#,
            r#"{"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": -1}}}"#,
            r#"{"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": 4294967295}}}"#,
            r#"{"decoder": {"type": "ByteLevel"}, "model": {"vocab": 3}}"#,
        ] {
            assert!(
                matches!(Vocabulary::from_tokenizer_json(text), Err(Error::UnsupportedTokenizer(_))),
                "{text}"
            );
        }
        assert!(byte_level("{}", "").is_empty());
    }
}
