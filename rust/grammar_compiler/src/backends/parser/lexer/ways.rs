//! The ways out of a lexeme, and the tokens that take them.
//!
//! ```text
//!  way out `"`     nodes of a trie at which it is taken      x"  →  end
//!                  what its tokens have after it             ",  →  ,       as a trie of their own where there are many
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

use super::SetId;
use crate::context::Tokens;
use crate::plain;
use crate::trie::{Reader, Trie};

/// So few nodes are walked one by one.
const FEW: usize = 4;
/// So often more are, too: to gather what comes after them costs several walks.
const WALKED: u32 = 3;

/// How tokens leave the lexeme.
pub(crate) struct WayOut {
    pub number: u32,
    /// The lexemes that have ended.
    pub set: SetId,
    /// The byte that begins the next one; None where the last byte was the lexeme's.
    pub byte: Option<u8>,
    /// Nodes of the trie at which it is taken.
    pub nodes: Box<[u32]>,
    pub texts: Texts,
    /// What comes after it, where there are many nodes.
    pub after: OnceLock<Arc<After>>,
    /// How often it was asked for.
    pub asked: AtomicU32,
}

/// The trie that a walk goes over.
#[derive(Clone)]
pub(crate) enum Texts {
    All,
    /// Without plain tokens, with one byte for each plain character that the others begin with ...
    Counted,
    /// ... or without these characters, ...
    Behind,
    /// ... some tokens left out, ascending.
    BehindBut(Arc<[u32]>),
    After(Arc<After>),
}

impl Texts {
    pub fn trie<'a>(&'a self, tokens: &'a Tokens) -> &'a Trie {
        match self {
            Self::All => tokens.text_trie(),
            Self::Counted => &tokens.plain().counted().trie,
            Self::Behind | Self::BehindBut(_) => &tokens.plain().behind().trie,
            Self::After(after) => &after.texts.trie,
        }
    }

    /// Appends the tokens that have the text of one of the trie.
    pub fn list(&self, tokens: &Tokens, text: u32, out: &mut Vec<u32>) {
        let at = text as usize;
        match self {
            Self::All => out.push(text),
            Self::Counted => out.extend_from_slice(&tokens.plain().counted().lists[at]),
            Self::Behind => out.extend_from_slice(&tokens.plain().behind().lists[at]),
            Self::BehindBut(except) => {
                let all = tokens.plain().behind().lists[at].iter();
                out.extend(all.filter(|token| except.binary_search(token).is_err()));
            }
            Self::After(after) => out.extend_from_slice(&after.texts.lists[at]),
        }
    }

    /// The tokens that have these texts of the trie.
    pub fn tokens(&self, tokens: &Tokens, texts: Vec<u32>) -> Vec<u32> {
        if let Self::All = self {
            return texts;
        }
        let mut out = Vec::new();
        texts.iter().for_each(|text| self.list(tokens, *text, &mut out));
        out
    }

    /// How many bytes it holds besides the tokenizer's.
    pub fn memory(&self) -> usize {
        if let Self::BehindBut(except) = self { 4 * except.len() } else { 0 }
    }

    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::BehindBut(a), Self::BehindBut(b)) => a == b,
            (Self::After(a), Self::After(b)) => Arc::ptr_eq(a, b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Tokens by what they have after a lexeme.
pub(crate) struct After {
    /// Tokens that end with the lexeme, or with the byte after it.
    pub ended: Box<[u32]>,
    pub texts: plain::Texts,
}

impl WayOut {
    /// The tokens by what they have after it; None where a walk below each of its nodes is faster.
    pub fn after(&self, tokens: &Tokens) -> Option<&Arc<After>> {
        let is_worth = || self.after.get().is_some() || self.asked.fetch_add(1, Ordering::Relaxed) >= WALKED;
        (self.nodes.len() > FEW && is_worth())
            .then(|| self.after.get_or_init(|| Arc::new(After::new(&self.texts, tokens, &self.nodes))))
    }
}

impl After {
    fn new(texts: &Texts, tokens: &Tokens, nodes: &[u32]) -> Self {
        let trie = texts.trie(tokens);
        let mut by_bytes: FxHashMap<Vec<u8>, Vec<u32>> = FxHashMap::default();
        let mut ended = Vec::new();
        for node in nodes {
            trie.token(*node).iter().for_each(|text| texts.list(tokens, *text, &mut ended));
            let mut all = Everything { texts, tokens, bytes: Vec::new(), found: &mut by_bytes };
            trie.walk_below(*node, &mut all);
        }
        Self { ended: ended.into(), texts: plain::Texts::new(by_bytes) }
    }
}

/// Notes every token by its bytes.
struct Everything<'a> {
    texts: &'a Texts,
    tokens: &'a Tokens,
    bytes: Vec<u8>,
    found: &'a mut FxHashMap<Vec<u8>, Vec<u32>>,
}

impl Reader for Everything<'_> {
    fn take(&mut self, depth: usize, byte: u8, _node: u32) -> bool {
        self.bytes.truncate(depth);
        self.bytes.push(byte);
        true
    }

    fn token(&mut self, text: u32) {
        let found = match self.found.get_mut(&self.bytes) {
            Some(found) => found,
            None => self.found.entry(self.bytes.clone()).or_default(),
        };
        self.texts.list(self.tokens, text, found);
    }
}
