//! A loaded tokenizer: the bytes of every token, tries of them, and how text is tokenized.
//!
//! Loading is O(vocabulary). Look-ups are O(1), and O(bytes) where bytes are looked for.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use aho_corasick::{AhoCorasick, MatchKind};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use tokenizers::Tokenizer;

use crate::plain::Plain;
use crate::trie::Trie;
use pyengine_base::error::{Error, Result};
use pyengine_detokenizer::Vocabulary;
use pyengine_grammar::masks::{Mask, MaskCache};

/// The trie takes no longer tokens; tokenizers have them for runs of spaces only.
const LONGEST_TOKEN: usize = 1000;

/// A part of a text as grammars write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Byte(u8),
    /// A special token.
    Special(u32),
}

/// A loaded tokenizer.
pub struct Tokens {
    environment: Arc<Environment>,
    /// The tokens that stand for text, by their bytes.
    text_trie: Trie,
    plain: Plain,
    masks: Arc<MaskCache>,
    end_mask: Arc<Mask>,
    tokenizer: Tokenizer,
    end_tokens: Vec<u32>,
    vocab_size: usize,
    /// Special tokens by their spelling, longest first.
    special: Vec<(String, u32)>,
    /// Finds them in a text; a match is an index into `special`.
    special_finder: Option<AhoCorasick>,
    /// Ids of the tokens that stand for text.
    text: Vec<u32>,
    /// For each byte the token that consists of it.
    bytes: [Option<u32>; 256],
    separated: OnceLock<Box<[u32]>>,
    lists: OnceLock<Box<[u32]>>,
    members: OnceLock<Box<[u32]>>,
}

impl Tokens {
    pub(super) fn load(
        text: &str,
        end_tokens: &[u32],
        vocab_size: usize,
        masks: &Arc<MaskCache>,
    ) -> Result<Self> {
        let vocabulary = Vocabulary::from_tokenizer_json(text)?;
        let mut tokenizer: Tokenizer =
            text.parse().map_err(|error| Error::UnsupportedTokenizer(format!("{error}")))?;
        // A forced text that spells a special token stays text.
        tokenizer.set_encode_special_tokens(true);

        let mut words = vec![Vec::new(); vocab_size + 1];
        let (mut special, mut plain, mut bytes) = (Vec::new(), Vec::new(), [None; 256]);
        for (id, word) in (0u32..).zip(&mut words[..vocab_size]) {
            let Some(content) = vocabulary.token_bytes(id) else { break };
            if vocabulary.is_special(id) || end_tokens.binary_search(&id).is_ok() {
                if let Ok(name) = std::str::from_utf8(content)
                    && (1..LONGEST_TOKEN).contains(&name.len())
                {
                    special.push((name.to_owned(), id));
                    word.push(TokTrie::SPECIAL_TOKEN_MARKER);
                    word.extend_from_slice(content);
                }
            } else if (1..=LONGEST_TOKEN).contains(&content.len())
                // The marker is a byte that no text has.
                && !content.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
            {
                word.extend_from_slice(content);
                plain.push(id);
                if let [byte] = content {
                    bytes[*byte as usize].get_or_insert(id);
                }
            }
        }
        special.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then(a.1.cmp(&b.1)));
        let special_finder = (!special.is_empty())
            .then(|| {
                let kind = MatchKind::LeftmostLongest;
                AhoCorasick::builder().match_kind(kind).build(special.iter().map(|(name, _)| name))
            })
            .transpose()
            .map_err(|error| Error::UnsupportedTokenizer(format!("its special tokens: {error}")))?;
        words[vocab_size] = b"\xff<|end of the text|>".to_vec();

        let info = TokRxInfo::new(vocab_size as u32 + 1, vocab_size as u32);
        let environment = Arc::new(Environment { trie: TokTrie::from(&info, &words) });
        let spelled = || plain.iter().map(|id| (*id, words[*id as usize].as_slice()));
        let plain_tokens = Plain::new(spelled(), vocab_size);
        let text_trie = Trie::new(spelled());
        Ok(Self {
            environment,
            text_trie,
            plain: plain_tokens,
            masks: masks.clone(),
            end_mask: Arc::new(Mask::of(end_tokens.to_vec())),
            tokenizer,
            end_tokens: end_tokens.to_vec(),
            vocab_size,
            special,
            special_finder,
            text: plain,
            bytes,
            separated: OnceLock::new(),
            lists: OnceLock::new(),
            members: OnceLock::new(),
        })
    }

    /// How many ids a mask covers.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The tokens that end an answer, ascending.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Special tokens by their spelling, longest first.
    pub fn special(&self) -> &[(String, u32)] {
        &self.special
    }

    /// The spelling of a special token.
    pub fn special_name(&self, token: u32) -> Option<&str> {
        self.special.iter().find(|(_, id)| *id == token).map(|(name, _)| name.as_str())
    }

    /// Where special tokens are spelled in a text, and which.
    pub fn find_special(&self, text: &str) -> Vec<(Range<usize>, u32)> {
        let Some(finder) = &self.special_finder else { return Vec::new() };
        let found = finder.find_iter(text);
        found.map(|found| (found.range(), self.special[found.pattern().as_usize()].1)).collect()
    }

    /// Ids of all tokens that stand for text, ascending.
    pub fn text_tokens(&self) -> &[u32] {
        &self.text
    }

    /// The bytes of a token that stands for text; empty for any other.
    pub fn text_bytes(&self, token: u32) -> &[u8] {
        if token as usize >= self.vocab_size {
            return &[];
        }
        let bytes = self.trie().token(token);
        if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { &[] } else { bytes }
    }

    /// The token that consists of this byte.
    pub fn byte_token(&self, byte: u8) -> Option<u32> {
        self.bytes[byte as usize]
    }

    /// Whether a longer token begins with these bytes.
    pub fn has_longer(&self, bytes: &[u8]) -> bool {
        bytes.len() <= LONGEST_TOKEN && self.trie().has_extensions(bytes)
    }

    /// Appends the tokens of a text as the tokenizer splits it.
    ///
    /// Where the tokenizer would change the text (by a normalizer, or a space put before it), each token is the longest
    /// that fits instead. Stops at bytes that no token has.
    pub fn tokenize(&self, text: &[u8], out: &mut Vec<u32>) {
        if let Ok(text) = std::str::from_utf8(text)
            && let Ok(encoding) = self.tokenizer.encode_fast(text, false)
        {
            let ids = encoding.get_ids();
            let same = ids.iter().flat_map(|id| self.text_bytes(*id)).eq(text.as_bytes());
            if same {
                out.extend_from_slice(ids);
                return;
            }
        }
        self.longest(text, out);
    }

    /// Appends the tokens of a text of which each is the longest that fits, up to bytes that no token has.
    pub(crate) fn longest(&self, mut text: &[u8], out: &mut Vec<u32>) {
        while let Some((token, length)) = (!text.is_empty()).then(|| self.trie().prefix_token_id(text))
            && length > 0
            && self.text_bytes(token) == &text[..length]
        {
            out.push(token);
            text = &text[length..];
        }
    }

    /// Appends the fewest tokens that a text can be split into; nothing if there are none. O(text * longest token).
    pub(crate) fn fewest(&self, text: &[u8], out: &mut Vec<u32>) {
        // From each byte on: how many, and the first of them.
        let mut best: Vec<Option<(u32, u32)>> = vec![None; text.len()];
        for at in (0..text.len()).rev() {
            let rest = &text[at..];
            for token in self.trie().all_prefixes(rest) {
                let bytes = self.text_bytes(token);
                if bytes.is_empty() || !rest.starts_with(bytes) {
                    continue;
                }
                let behind = match best.get(at + bytes.len()) {
                    Some(behind) => behind.map(|(count, _)| count),
                    None => Some(0),
                };
                best[at] = best[at].into_iter().chain(behind.map(|count| (count + 1, token))).min();
            }
        }
        let mut at = 0;
        while let Some(Some((_, token))) = best.get(at) {
            out.push(*token);
            at += self.text_bytes(*token).len();
        }
    }

    /// The tokens of steps, and how many there are up to the last special one.
    pub(crate) fn spelled(&self, steps: &[Step]) -> (Vec<u32>, usize) {
        self.spelled_by(steps, Self::tokenize)
    }

    /// The same where `split` appends the tokens of a text.
    pub(crate) fn spelled_by(
        &self,
        steps: &[Step],
        split: fn(&Self, &[u8], &mut Vec<u32>),
    ) -> (Vec<u32>, usize) {
        let (mut out, mut text, mut last) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Byte(byte) => text.push(*byte),
                Step::Special(token) => {
                    split(self, &text, &mut out);
                    text.clear();
                    out.push(*token);
                    last = out.len();
                }
            }
        }
        split(self, &text, &mut out);
        (out, last)
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        &self.environment.trie
    }

    /// The tokenizer as llguidance's compiler takes it.
    pub(crate) fn environment(&self) -> TokEnv {
        self.environment.clone()
    }

    /// The tokens that stand for text, by their bytes.
    pub(crate) fn text_trie(&self) -> &Trie {
        &self.text_trie
    }

    pub(crate) fn plain(&self) -> &Plain {
        &self.plain
    }

    /// Tokens with a comma that a byte follows: they may end an item of a list and go on with the next one.
    pub(crate) fn separated(&self) -> &[u32] {
        self.separated.get_or_init(|| {
            let is_space = |byte: &u8| byte.is_ascii_whitespace();
            let goes_on = |rest: &[u8]| rest.iter().any(|byte| !is_space(byte));
            let is = |token: &&u32| {
                let text = self.text_bytes(**token);
                text.iter().position(|byte| *byte == b',').is_some_and(|at| goes_on(&text[at + 1..]))
            };
            self.text.iter().filter(is).copied().collect()
        })
    }

    /// Tokens of them that begin a list before the comma.
    pub(crate) fn lists(&self) -> &[u32] {
        self.lists.get_or_init(|| {
            let is = |token: &&u32| {
                let text = self.text_bytes(**token);
                let comma = text.iter().rposition(|byte| *byte == b',').unwrap_or(0);
                text[..comma].contains(&b'[')
            };
            self.separated().iter().filter(is).copied().collect()
        })
    }

    /// Tokens with a colon and a closing brace behind it: they may write a member and end its object.
    pub(crate) fn members(&self) -> &[u32] {
        self.members.get_or_init(|| {
            let is = |token: &&u32| {
                let text = self.text_bytes(**token);
                text.iter().position(|byte| *byte == b':').is_some_and(|at| text[at..].contains(&b'}'))
            };
            self.text.iter().filter(is).copied().collect()
        })
    }

    /// The mask that allows the end tokens.
    pub(crate) fn end_mask(&self) -> &Arc<Mask> {
        &self.end_mask
    }

    /// The masks that are kept for all grammars.
    pub(crate) fn masks(&self) -> &MaskCache {
        &self.masks
    }
}

struct Environment {
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(text)
    }

    /// Masks allow every way to split the text into tokens; [`Tokens::tokenize`] gives the likely one.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
