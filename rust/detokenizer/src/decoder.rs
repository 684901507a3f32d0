//! The `decoder` of a `tokenizer.json`, split into steps on single tokens and rules across tokens.
//!
//! `tokenizers` runs a chain of decoders over the whole list of tokens; a stream has only the tokens so far. In every
//! chain that is supported here each decoder either works on single tokens, or joins them, or strips the beginning of the
//! joined text. Other chains are refused by name rather than decoded almost right.
//!
//! ```text
//!  Replace, Metaspace, Strip      ByteFallback │ ByteLevel     Fuse       Strip (from the left)
//!  └── per token, done once ──┘   └──────────── per stream: Rules ─────────────────────────┘
//! ```
//!
//! O(bytes) a token, when a vocabulary is loaded.

use serde::Deserialize;

use pyengine_base::error::{Error, Result};

/// A decoder as the file spells it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type")]
pub(super) enum Decoder {
    ByteLevel,
    ByteFallback,
    Fuse,
    Sequence {
        decoders: Vec<Decoder>,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        replacement: char,
        #[serde(default)]
        add_prefix_space: Option<bool>,
        #[serde(default)]
        prepend_scheme: Option<String>,
    },
    WordPiece,
    #[serde(rename = "BPEDecoder")]
    Bpe,
    #[serde(rename = "CTC")]
    Ctc,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

/// The part of decoding that works across tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rules {
    /// Tokens are arbitrary bytes, which are joined and read as UTF-8, lossily. Otherwise each is text or one byte.
    pub byte_level: bool,
    /// A character, and how many of it at most are stripped from the beginning of the text.
    pub strip: Option<(char, usize)>,
}

/// A step on a single token.
#[derive(Debug)]
enum Step {
    Replace { pattern: String, content: String },
    Strip { content: char, start: usize, stop: usize },
    Metaspace { replacement: char, drop_first: bool },
}

/// A supported decoder.
#[derive(Debug, Default)]
pub(super) struct TokenDecoder {
    steps: Vec<Step>,
    byte_fallback: bool,
    joined: bool,
    rules: Rules,
}

impl TokenDecoder {
    /// # Errors
    /// [`Error::UnsupportedTokenizer`] that names the unsupported decoder.
    pub fn from_decoder(decoder: &Decoder) -> Result<Self> {
        let mut this = Self::default();
        this.add(decoder)?;
        Ok(this)
    }

    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Whether a token may have other text at the beginning than elsewhere.
    pub fn first_differs(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Metaspace { drop_first: true, .. }))
    }

    /// Appends the bytes of `token`; true if it is a byte of the byte fallback.
    pub fn piece(&self, token: &str, first: bool, out: &mut Vec<u8>) -> bool {
        if self.steps.is_empty() {
            return self.encode(token, out);
        }
        let mut text = token.to_owned();
        for step in &self.steps {
            text = step.apply(&text, first);
        }
        self.encode(&text, out)
    }

    fn encode(&self, text: &str, out: &mut Vec<u8>) -> bool {
        if self.byte_fallback
            && let Some(byte) = fallback_byte(text)
        {
            out.push(byte);
            return true;
        }
        if self.rules.byte_level {
            let start = out.len();
            for char in text.chars() {
                let Some(byte) = byte_of_char(char) else {
                    // A character outside the table: the whole token stands for itself.
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    break;
                };
                out.push(byte);
            }
        } else {
            out.extend_from_slice(text.as_bytes());
        }
        false
    }

    fn add(&mut self, decoder: &Decoder) -> Result<()> {
        // Until tokens are joined or bytes gathered, a decoder sees single tokens.
        let alone = !self.joined && !self.byte_fallback;
        match decoder {
            Decoder::Sequence { decoders } => {
                return decoders.iter().try_for_each(|decoder| self.add(decoder));
            }
            Decoder::Fuse => self.joined = true,
            Decoder::ByteLevel if alone => {
                self.rules.byte_level = true;
                self.joined = true;
            }
            Decoder::ByteFallback if alone => self.byte_fallback = true,
            Decoder::Replace { pattern: Pattern::String(pattern), content }
                if alone && !pattern.is_empty() =>
            {
                self.steps.push(Step::Replace { pattern: pattern.clone(), content: content.clone() });
            }
            Decoder::Metaspace { replacement, add_prefix_space, prepend_scheme } if alone => {
                let drop_first =
                    add_prefix_space.unwrap_or(true) && prepend_scheme.as_deref() != Some("never");
                self.steps.push(Step::Metaspace { replacement: *replacement, drop_first });
            }
            Decoder::Strip { content, start, stop } if alone => {
                self.steps.push(Step::Strip { content: *content, start: *start, stop: *stop });
            }
            Decoder::Strip { content, start, stop: 0 } if self.joined && self.rules.strip.is_none() => {
                self.rules.strip = Some((*content, *start));
            }
            Decoder::Strip { stop: 1.., .. } => return Err(refused("Strip from the end of the text")),
            Decoder::Replace { pattern: Pattern::Regex(_), .. } => {
                return Err(refused("Replace by a regular expression"));
            }
            Decoder::WordPiece => return Err(refused("WordPiece")),
            Decoder::Bpe => return Err(refused("BPEDecoder")),
            Decoder::Ctc => return Err(refused("CTC")),
            Decoder::Unknown => return Err(refused("of a type that is not known here")),
            late => {
                let name = format!("{late:?}");
                let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
                return Err(refused(&format!("{name} at this place of the Sequence")));
            }
        }
        Ok(())
    }
}

fn refused(what: &str) -> Error {
    Error::UnsupportedTokenizer(format!(
        "decoder {what} (byte-level and byte-fallback decoders are supported)"
    ))
}

impl Step {
    fn apply(&self, token: &str, first: bool) -> String {
        match self {
            Self::Replace { pattern, content } => token.replace(pattern.as_str(), content),
            Self::Strip { content, start, stop } => {
                let left = token.chars().take(*start).take_while(|char| char == content).count();
                let rest = &token[left * content.len_utf8()..];
                let right = rest.chars().rev().take(*stop).take_while(|char| char == content).count();
                rest[..rest.len() - right * content.len_utf8()].to_owned()
            }
            Self::Metaspace { replacement, drop_first } => {
                token.replace(*replacement, if first && *drop_first { "" } else { " " })
            }
        }
    }
}

/// The byte of `<0xNN>`, read as leniently as `tokenizers` does.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that a character stands for in GPT-2's table: printable Latin-1 characters stand for their own byte, and
/// the 68 others are numbered from U+0100 in order.
fn byte_of_char(char: char) -> Option<u8> {
    Some(match u32::from(char) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8, // bytes 0x00..=0x20
        code @ 0x121..=0x142 => (code - 0x121 + 0x7f) as u8, // bytes 0x7f..=0xa0
        0x143 => 0xad,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(json: &str) -> Result<TokenDecoder> {
        TokenDecoder::from_decoder(&serde_json::from_str(json).unwrap())
    }

    fn piece(decoder: &TokenDecoder, token: &str) -> (bool, Vec<u8>) {
        let mut out = Vec::new();
        (decoder.piece(token, false, &mut out), out)
    }

    #[test]
    fn the_byte_table_is_a_bijection() {
        let mut seen = [false; 256];
        for byte in (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char) {
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "{byte} twice");
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
    }

    #[test]
    fn per_token_links_are_applied_in_order() {
        let decoder = decoder(
            r#"{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
                {"type": "Strip", "content": " ", "start": 1, "stop": 2}, {"type": "ByteFallback"}, {"type": "Fuse"}]}"#,
        )
        .unwrap();
        assert_eq!(piece(&decoder, "__a_b___"), (false, b" a b ".to_vec()));
        assert_eq!(piece(&decoder, "_<0xe2>_"), (true, vec![0xe2]));
        assert_eq!(piece(&decoder, "<0xxx>"), (false, b"<0xxx>".to_vec()));
    }

    #[test]
    fn what_cannot_be_streamed_is_refused_by_name() {
        for (json, name) in [
            (r#"{"type": "WordPiece", "prefix": "x"}"#, "WordPiece"),
            (r#"{"type": "CTC"}"#, "CTC"),
            (r#"{"type": "Novel"}"#, "not known"),
            (r#"{"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}"#, "regular expression"),
            (
                r#"{"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}"#,
                "ByteFallback",
            ),
            (
                r#"{"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "_"}]}"#,
                "Metaspace",
            ),
            (
                r#"{"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]}"#,
                "Strip from the end",
            ),
        ] {
            let error = decoder(json).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
