//! Tokens of plain characters only: those that a JSON string may have as they are.
//!
//! ```text
//!  plain     the   cat   é           a token's length alone decides wherever any plain character may come
//!  others    cat", x"} \n ...        plain characters, and then something else
//!            └ a a a ",              as long, each plain character by the same: for where a state counts them
//!            └ ",                    only what comes behind them: for where a state does not
//! ```

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::trie::Trie;
use pyengine_grammar::masks::Mask;

/// The character that stands for any plain one.
const ANY: u8 = b'a';

/// The tokens of a tokenizer.
pub(crate) struct Plain {
    /// Strings of at most this many plain characters.
    up_to: Vec<Arc<Mask>>,
    counted: Texts,
    behind: Texts,
}

/// Texts, and the tokens that have them.
#[derive(Default)]
pub(crate) struct Texts {
    /// Each text with the number of its list.
    pub trie: Trie,
    pub lists: Box<[Box<[u32]>]>,
}

impl Texts {
    /// Makes it of texts, none of which is empty.
    pub fn new(by_bytes: FxHashMap<Vec<u8>, Vec<u32>>) -> Self {
        let (texts, lists): (Vec<_>, Vec<_>) =
            by_bytes.into_iter().map(|(text, tokens)| (text, tokens.into_boxed_slice())).unzip();
        let trie = Trie::new((0..).zip(texts.iter().map(Vec::as_slice)));
        Self { trie, lists: lists.into() }
    }
}

impl Plain {
    /// Makes it of tokens that stand for text.
    pub fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>, vocab_size: usize) -> Self {
        let mut by_length: Vec<Vec<u32>> = Vec::new();
        let (mut counted, mut behind) =
            (FxHashMap::<Vec<u8>, Vec<u32>>::default(), FxHashMap::<Vec<u8>, Vec<u32>>::default());
        for (id, bytes) in tokens {
            let (length, rest) = split(bytes);
            if rest.is_empty() {
                by_length.resize(by_length.len().max(length + 1), Vec::new());
                by_length[length].push(id);
            } else {
                counted.entry([&vec![ANY; length], rest].concat()).or_default().push(id);
                behind.entry(rest.to_vec()).or_default().push(id);
            }
        }
        let mut mask = vec![0; vocab_size.div_ceil(32)];
        let up_to = |ids: Vec<u32>| {
            ids.iter().for_each(|id| mask[*id as usize / 32] |= 1 << (id % 32));
            Arc::new(Mask::base(mask.clone()))
        };
        let mut up_to: Vec<_> = by_length.into_iter().map(up_to).collect();
        if up_to.is_empty() {
            up_to.push(Arc::new(Mask::of(Vec::new())));
        }
        Self { up_to, counted: Texts::new(counted), behind: Texts::new(behind) }
    }

    /// How many characters the longest has.
    pub fn longest(&self) -> usize {
        self.up_to.len() - 1
    }

    /// Strings of at most this many characters.
    pub fn up_to(&self, characters: usize) -> &Arc<Mask> {
        &self.up_to[characters.min(self.longest())]
    }

    /// The others with one byte in place of each plain character that they begin with, whichever it is.
    pub fn counted(&self) -> &Texts {
        &self.counted
    }

    /// The others without the plain characters that they begin with.
    pub fn behind(&self) -> &Texts {
        &self.behind
    }
}

/// How many plain characters a token begins with, and what comes behind them.
fn split(bytes: &[u8]) -> (usize, &[u8]) {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    let plain = valid.find(|char| !is_plain(char)).unwrap_or(valid.len());
    (valid[..plain].chars().count(), &bytes[plain..])
}

/// Whether a JSON string may have the character as it is.
pub(crate) fn is_plain(char: char) -> bool {
    !matches!(char, '"' | '\\' | '\0'..='\x1f' | '\x7f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_split_behind_their_plain_characters() {
        let cases: [(&[u8], _, &[u8]); 6] = [
            (b"the", 3, b""),
            ("é\"x".as_bytes(), 1, b"\"x"),
            (b"\\n", 0, b"\\n"),
            (b"a\xe4\xb8", 1, b"\xe4\xb8"),
            (b"\x7f", 0, b"\x7f"),
            (b"ab\"\xff", 2, b"\"\xff"),
        ];
        for (bytes, count, rest) in cases {
            assert_eq!(split(bytes), (count, rest), "{bytes:?}");
        }
    }
}
