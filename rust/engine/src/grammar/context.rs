//! The tokenizer as grammars need it: the bytes of every token, a trie of them, and how text is tokenized.
//!
//! ```text
//!  ids      0 ... tokenizer's ... │ ... holes of the model's logits ... │ vocab_size
//!  trie     text tokens; special ones behind a marker that no text has  │ means "the text may end here"
//! ```
//!
//! Special tokens (and the model's end tokens) never match text. llguidance gets an id beyond the vocabulary as its end
//! token instead of the model's, so that a grammar may have those within the text.
//!
//! Loading is O(vocabulary) and takes up to seconds. It happens once, on the thread that needs it first. Everything after
//! is a look-up.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aho_corasick::{AhoCorasick, MatchKind};
use llguidance::api::ParserLimits;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use tokenizers::Tokenizer;

use crate::detokenizer::Vocabulary;
use crate::error::{Error, Result};
use crate::grammar::backends::parser::Step;
use crate::grammar::masks::{Mask, MaskCache};
use crate::grammar::plain::Plain;
use crate::grammar::trie::Trie;

/// The trie takes no longer tokens; tokenizers have them for runs of spaces only.
const LONGEST_TOKEN: usize = 1000;
/// The trie's ids have 24 bits.
const LARGEST_VOCABULARY: usize = (1 << 24) - 2;
/// A tokenizer for grammars, loaded when it is first needed.
pub struct GrammarContext {
    /// The tokenizer.json, until it has been loaded.
    text: Mutex<Option<String>>,
    end_tokens: Vec<u32>,
    vocab_size: usize,
    loaded: OnceLock<Result<Arc<Tokens>>>,
    masks: Arc<MaskCache>,
}

impl GrammarContext {
    /// A context for a `tokenizer.json`, tokens that end an answer, and as many logits as the model has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no end tokens, or one beyond the vocabulary, or an empty or too large vocabulary.
    /// A mistake in the `tokenizer.json` is an error of [`load`](Self::load).
    pub fn from_tokenizer_json(text: &str, end_token_ids: &[u32], vocab_size: usize) -> Result<Self> {
        if vocab_size == 0 || vocab_size > LARGEST_VOCABULARY {
            return Err(Error::InvalidArgument(format!(
                "vocab_size must be in 1..={LARGEST_VOCABULARY}, not {vocab_size}"
            )));
        }
        if let Some(id) = end_token_ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(Error::InvalidArgument(format!(
                "end token {id} is beyond the vocabulary of {vocab_size}"
            )));
        }
        let mut end_tokens = end_token_ids.to_vec();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        if end_tokens.is_empty() {
            return Err(Error::InvalidArgument("a grammar needs an end token to end its text with".into()));
        }
        Ok(Self {
            text: Mutex::new(Some(text.to_owned())),
            end_tokens,
            vocab_size,
            loaded: OnceLock::new(),
            masks: Arc::new(MaskCache::new()),
        })
    }

    /// The tokens. Loads them at the first call, and waits while another thread does.
    ///
    /// # Errors
    /// [`Error::UnsupportedTokenizer`], at every call.
    pub fn load(&self) -> Result<Arc<Tokens>> {
        self.loaded
            .get_or_init(|| {
                let text = self.text.lock().unwrap_or_else(PoisonError::into_inner).take();
                Tokens::load(&text.unwrap_or_default(), &self.end_tokens, self.vocab_size, &self.masks)
                    .map(Arc::new)
            })
            .clone()
    }

    /// How many masks were found in the cache, how many had to be made, and how many bytes it holds.
    pub(crate) fn mask_counts(&self) -> [u64; 3] {
        self.masks.counts()
    }

    /// How many ids a mask covers.
    #[cfg(feature = "python")]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
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
}

impl Tokens {
    fn load(text: &str, end_tokens: &[u32], vocab_size: usize, masks: &Arc<MaskCache>) -> Result<Self> {
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
        let mut left = text;
        while !left.is_empty() {
            let (token, length) = self.trie().prefix_token_id(left);
            if length == 0 || self.text_bytes(token) != &left[..length] {
                return;
            }
            out.push(token);
            left = &left[length..];
        }
    }

    /// The tokens of steps, and how many there are up to the last special one.
    pub(crate) fn spelled(&self, steps: &[Step]) -> (Vec<u32>, usize) {
        let (mut out, mut text, mut last) = (Vec::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Byte(byte) => text.push(*byte),
                Step::Special(token) => {
                    self.tokenize(&text, &mut out);
                    text.clear();
                    out.push(*token);
                    last = out.len();
                }
            }
        }
        self.tokenize(&text, &mut out);
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

    /// Those of them that begin a list before the comma.
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

    /// The mask that allows the end tokens.
    pub(crate) fn end_mask(&self) -> &Arc<Mask> {
        &self.end_mask
    }

    /// The masks that are kept for all grammars.
    pub(crate) fn masks(&self) -> &MaskCache {
        &self.masks
    }
}

/// Limits of llguidance: what it builds when compiling, and what a mask may cost before it gives up.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        // A mask that gives up ends the answer, but one that takes long holds up every other answer.
        step_lexer_fuel: 2_000_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 300_000,
        verbose_errors: false,
        ..ParserLimits::default()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A byte-level tokenizer of all bytes, some words and some special tokens; end token 0.
    pub(crate) fn small(words: &[&str]) -> Arc<Tokens> {
        context(words).load().unwrap()
    }

    pub(crate) fn context(words: &[&str]) -> GrammarContext {
        let mut vocab = serde_json::Map::new();
        let special = ["<|end|>", "<|stop|>", "<tool>", "</tool>"];
        for name in special {
            vocab.insert(name.to_owned(), vocab.len().into());
        }
        for byte in 0..=255u8 {
            vocab.insert(alphabet(byte).to_string(), vocab.len().into());
        }
        for word in words {
            let spelled: String = word.bytes().map(alphabet).collect();
            vocab.insert(spelled, vocab.len().into());
        }
        let size = vocab.len() + 5;
        let added: Vec<_> = (0..)
            .zip(special)
            .map(|(id, content)| {
                serde_json::json!({"id": id, "content": content, "special": true, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false})
            })
            .collect();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                "vocab": vocab, "merges": []},
        });
        GrammarContext::from_tokenizer_json(&json.to_string(), &[0, 1], size).unwrap()
    }

    /// GPT-2's character for a byte.
    fn alphabet(byte: u8) -> char {
        let shown = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        if shown(&byte) {
            return byte as char;
        }
        let rank = (0..byte).filter(|byte| !shown(byte)).count() as u32;
        char::from_u32(256 + rank).unwrap()
    }

    #[test]
    fn special_tokens_are_no_text() {
        let tokens = small(&["the", " cat"]);
        assert_eq!(tokens.vocab_size(), 4 + 256 + 2 + 5);
        assert_eq!(tokens.special()[0], ("<|stop|>".to_owned(), 1));
        assert_eq!(tokens.special_name(3), Some("</tool>"));
        assert_eq!(tokens.find_special("a<tool>b</tool>"), [(1..7, 2), (8..15, 3)]);
        assert_eq!(tokens.text_bytes(0), b"");
        assert_eq!(tokens.text_bytes(261), b" cat");
        assert_eq!(tokens.text_bytes(265), b"", "a hole");
        assert_eq!(tokens.text_bytes(9999), b"");
        assert_eq!(tokens.byte_token(b'a'), Some(4 + u32::from(b'a')));
        assert_eq!(tokens.byte_token(0xff), None, "no text has it");
        let mut out = Vec::new();
        tokens.tokenize(b"the cat<tool>", &mut out);
        let text: Vec<u8> = out.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()).collect();
        assert_eq!(text, b"the cat<tool>");
        assert!(tokens.has_longer(b"th") && !tokens.has_longer(b"the"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (ends, size) in [(&[][..], 5), (&[5], 5), (&[0], 0), (&[0], usize::MAX)] {
            let context = GrammarContext::from_tokenizer_json("{}", ends, size);
            assert!(matches!(context, Err(Error::InvalidArgument(_))));
        }
        let context = GrammarContext::from_tokenizer_json("{}", &[0], 5).unwrap();
        for _ in 0..2 {
            assert!(matches!(context.load(), Err(Error::UnsupportedTokenizer(_))));
        }
    }
}
