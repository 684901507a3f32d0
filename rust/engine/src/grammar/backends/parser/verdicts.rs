//! What a state of the lexer says of all tokens, whatever the parser's stack.
//!
//! ```text
//!  state within a string      the  cat  \n  7          inside: they stay in the lexeme, and may come
//!                             "  ",  "}  x"            ways out: the stack decides
//!  way out `"`      x"  →  end         its tokens' bytes after the lexeme, as a trie of their own,
//!                   ",  →  ,           which is walked from the row behind the lexeme
//! ```
//!
//! Found once for each state, by a walk over the tokens. Where all plain characters lead to the same state, as within a
//! string, the length of a plain token decides, and only the others are walked. States that say the same share it.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHasher};

use super::lexer::{Lexer, Move, SetId};
use crate::grammar::context::Tokens;
use crate::grammar::trie::{Reader, Trie};

/// So few ways out of a kind are walked one by one.
const FEW: usize = 4;

/// A verdict's number.
pub(super) type VerdictId = u32;

/// What a state says.
pub(super) struct Verdict {
    /// The tokens that stay in the lexeme, as a mask.
    pub inside: Arc<[u32]>,
    pub ways_out: Arc<[WayOut]>,
    /// Plain tokens are judged by their length, and the ways out are nodes of the trie of the others.
    plain: bool,
}

impl Verdict {
    /// The trie of the tokens that the ways out lead to.
    pub fn trie<'a>(&self, tokens: &'a Tokens) -> &'a Trie {
        if self.plain { tokens.plain().others() } else { tokens.text_trie() }
    }
}

/// How tokens leave the lexeme.
pub(super) struct WayOut {
    /// The lexemes that have ended.
    pub set: SetId,
    /// The byte that begins the next one; None where the last byte was the lexeme's.
    pub byte: Option<u8>,
    /// Nodes of the tokens' trie at which it is taken.
    nodes: Box<[u32]>,
    /// What comes after it: tokens by their bytes.
    after: OnceLock<After>,
}

/// Tokens by what they have after a lexeme.
pub(super) struct After {
    /// Those that end with the lexeme, or with the byte after it.
    pub ended: Box<[u32]>,
    /// The number of a list of tokens by its bytes.
    pub trie: Trie,
    pub lists: Box<[Box<[u32]>]>,
}

impl WayOut {
    /// The tokens by what they have after it; None where a walk below each of [`nodes`](Self::nodes) is faster.
    pub fn after(&self, trie: &Trie) -> Option<&After> {
        (self.nodes.len() > FEW).then(|| self.after.get_or_init(|| After::new(trie, &self.nodes)))
    }

    /// Nodes of the tokens' trie at which it is taken.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }
}

impl After {
    fn new(trie: &Trie, nodes: &[u32]) -> Self {
        let mut by_bytes: FxHashMap<Vec<u8>, Vec<u32>> = FxHashMap::default();
        let mut ended = Vec::new();
        for node in nodes {
            ended.extend(trie.token(*node));
            let mut all = Everything { bytes: Vec::new(), found: &mut by_bytes };
            trie.walk_below(*node, &mut all);
        }
        let (texts, lists): (Vec<_>, Vec<_>) =
            by_bytes.into_iter().map(|(text, tokens)| (text, tokens.into_boxed_slice())).unzip();
        let trie = Trie::new((0..).zip(texts.iter().map(Vec::as_slice)));
        Self { ended: ended.into(), trie, lists: lists.into() }
    }
}

/// Notes every token by its bytes.
struct Everything<'a> {
    bytes: Vec<u8>,
    found: &'a mut FxHashMap<Vec<u8>, Vec<u32>>,
}

impl Reader for Everything<'_> {
    fn take(&mut self, depth: usize, byte: u8, _node: u32) -> bool {
        self.bytes.truncate(depth);
        self.bytes.push(byte);
        true
    }

    fn token(&mut self, token: u32) {
        match self.found.get_mut(&self.bytes) {
            Some(tokens) => tokens.push(token),
            None => drop(self.found.insert(self.bytes.clone(), vec![token])),
        }
    }
}

/// The verdicts of a lexer's states so far.
#[derive(Default)]
pub(super) struct Verdicts {
    all: Vec<Verdict>,
    by_state: FxHashMap<u32, VerdictId>,
    by_content: FxHashMap<u64, VerdictId>,
    ways_out: FxHashMap<(bool, u64), Vec<Arc<[WayOut]>>>,
    memory: usize,
}

impl Verdicts {
    pub fn get(&self, verdict: VerdictId) -> &Verdict {
        &self.all[verdict as usize]
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + self.by_state.len() * 16
    }

    /// What a state says, if it is known.
    pub fn known(&self, state: StateID) -> Option<VerdictId> {
        self.by_state.get(&(state.as_usize() as u32)).copied()
    }

    /// What a state says.
    pub fn of(&mut self, tokens: &Tokens, lexer: &mut Lexer, state: StateID) -> VerdictId {
        if let Some(known) = self.known(state) {
            return known;
        }
        let mut verdict = Search::new(tokens, lexer, state).run();
        self.share(&mut verdict);
        let mut hasher = FxHasher::default();
        (&verdict.inside, Arc::as_ptr(&verdict.ways_out).addr()).hash(&mut hasher);
        let same = |other: &Verdict| {
            Arc::ptr_eq(&other.ways_out, &verdict.ways_out) && other.inside == verdict.inside
        };
        let content = hasher.finish();
        let number = match self.by_content.get(&content) {
            Some(known) if same(self.get(*known)) => *known,
            _ => {
                self.memory += 4 * verdict.inside.len() + 64;
                self.all.push(verdict);
                self.by_content.insert(content, self.all.len() as VerdictId - 1);
                self.all.len() as VerdictId - 1
            }
        };
        self.by_state.insert(state.as_usize() as u32, number);
        number
    }

    /// Gives a verdict the ways out of an earlier one, if they are the same.
    fn share(&mut self, verdict: &mut Verdict) {
        let mut hasher = FxHasher::default();
        for way in verdict.ways_out.iter() {
            (way.set, way.byte, &way.nodes).hash(&mut hasher);
        }
        let same = |other: &&Arc<[WayOut]>| {
            let way = |way: &WayOut| (way.set, way.byte);
            let pairs = || other.iter().zip(verdict.ways_out.iter());
            other.len() == verdict.ways_out.len()
                && pairs().all(|(a, b)| way(a) == way(b) && a.nodes == b.nodes)
        };
        let like = self.ways_out.entry((verdict.plain, hasher.finish())).or_default();
        match like.iter().find(same) {
            Some(known) => verdict.ways_out = known.clone(),
            None => {
                like.push(verdict.ways_out.clone());
                // What comes after the ways out takes about as much as their nodes.
                self.memory += verdict.ways_out.iter().map(|way| 64 + 16 * way.nodes.len()).sum::<usize>();
            }
        }
    }
}

/// A walk over the tokens from a state of the lexer.
struct Search<'a> {
    tokens: &'a Tokens,
    lexer: &'a mut Lexer,
    states: Vec<StateID>,
    inside: Vec<u32>,
    ways_out: FxHashMap<(SetId, Option<u8>), Vec<u32>>,
}

impl<'a> Search<'a> {
    fn new(tokens: &'a Tokens, lexer: &'a mut Lexer, state: StateID) -> Self {
        let inside = vec![0; tokens.vocab_size().div_ceil(32)];
        Self { tokens, lexer, states: vec![state], inside, ways_out: FxHashMap::default() }
    }

    fn run(mut self) -> Verdict {
        let (state, plain) = (self.states[0], self.tokens.plain());
        let characters = self.lexer.plain(state, plain.longest());
        let trie = match characters {
            Some(characters) => {
                self.inside.copy_from_slice(plain.up_to(characters));
                plain.others()
            }
            None => self.tokens.text_trie(),
        };
        trie.walk(&mut self);
        let mut ways_out: Vec<_> = self.ways_out.into_iter().collect();
        ways_out.sort_unstable_by_key(|(way, _)| *way);
        let way_out = |((set, byte), nodes): (_, Vec<u32>)| WayOut {
            set,
            byte,
            nodes: nodes.into(),
            after: OnceLock::new(),
        };
        Verdict {
            inside: self.inside.into(),
            ways_out: ways_out.into_iter().map(way_out).collect(),
            plain: characters.is_some(),
        }
    }
}

impl Reader for Search<'_> {
    #[inline]
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool {
        self.states.truncate(depth + 1);
        let way = match self.lexer.advance(self.states[depth], byte) {
            Move::To(state) => {
                self.states.push(state);
                return true;
            }
            Move::Nowhere => return false,
            Move::EndedBefore(set) => (set, Some(byte)),
            Move::EndsWith(set) => (set, None),
        };
        self.ways_out.entry(way).or_default().push(node);
        false
    }

    #[inline]
    fn token(&mut self, token: u32) {
        self.inside[token as usize / 32] |= 1 << (token % 32);
    }
}
