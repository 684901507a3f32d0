//! What a state of the lexer says of all tokens, whatever the parser's stack.
//!
//! ```text
//!  state within a string      the  cat  \n  7          inside: they stay in the lexeme, and may come
//!                             "  ",  "}  x"            ways out: the stack decides
//!  way out `"`      x"  →  end         its tokens' bytes after the lexeme, as a trie of their own. Behind it the
//!                   ",  →  ,           row gives the lexer's state, which says the same of that trie: and so on
//! ```
//!
//! Found once for each state, by a walk over the tokens. Where all plain characters lead to the same state, as within a
//! string, the length of a plain token decides, and of the others what comes behind their plain characters is walked.
//! States that say the same share it.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHasher};

use super::lexer::{Lexer, Move, SetId};
use super::plain::Plain;
use crate::grammar::context::Tokens;
use crate::grammar::masks::Mask;
use crate::grammar::plain;
use crate::grammar::trie::{Reader, Trie};

/// So few nodes are walked one by one.
const FEW: usize = 4;

/// A verdict's number.
pub(super) type VerdictId = u32;
/// The number of what comes behind a way out.
pub(super) type BehindId = u32;

/// What a state says.
pub(super) struct Verdict {
    /// The tokens that stay in the lexeme.
    pub inside: Arc<Mask>,
    pub ways_out: Arc<[WayOut]>,
}

/// What a state says of the tokens that take a way out.
pub(super) struct Behind {
    /// Those that end with the lexeme, or stay in the next one.
    pub tokens: Box<[u32]>,
    pub ways_out: Arc<[WayOut]>,
}

/// How tokens leave the lexeme.
pub(super) struct WayOut {
    number: u32,
    /// The lexemes that have ended.
    pub set: SetId,
    /// The byte that begins the next one; None where the last byte was the lexeme's.
    pub byte: Option<u8>,
    /// Nodes of the trie at which it is taken.
    nodes: Box<[u32]>,
    trie: Texts,
    /// What comes after it, where there are many nodes.
    after: OnceLock<Arc<After>>,
}

/// The trie that a walk goes over.
#[derive(Clone)]
enum Texts {
    All,
    /// Without plain tokens, with one byte for each plain character that the others begin with ...
    Counted,
    /// ... or without these characters.
    Behind,
    After(Arc<After>),
}

impl Texts {
    fn trie<'a>(&'a self, tokens: &'a Tokens) -> &'a Trie {
        match self {
            Self::All => tokens.text_trie(),
            Self::Counted => &tokens.plain().counted().trie,
            Self::Behind => &tokens.plain().behind().trie,
            Self::After(after) => &after.texts.trie,
        }
    }

    /// The tokens that have the text of one of the trie.
    fn list<'a>(&'a self, tokens: &'a Tokens, text: &'a u32) -> &'a [u32] {
        let lists = match self {
            Self::All => return std::slice::from_ref(text),
            Self::Counted => &tokens.plain().counted().lists,
            Self::Behind => &tokens.plain().behind().lists,
            Self::After(after) => &after.texts.lists,
        };
        &lists[*text as usize]
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::After(a), Self::After(b)) => Arc::ptr_eq(a, b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Tokens by what they have after a lexeme.
struct After {
    /// Those that end with the lexeme, or with the byte after it.
    ended: Box<[u32]>,
    texts: plain::Texts,
}

impl WayOut {
    /// The tokens by what they have after it; None where a walk below each of its nodes is faster.
    fn after(&self, tokens: &Tokens) -> Option<&Arc<After>> {
        (self.nodes.len() > FEW)
            .then(|| self.after.get_or_init(|| Arc::new(After::new(&self.trie, tokens, &self.nodes))))
    }
}

impl After {
    fn new(texts: &Texts, tokens: &Tokens, nodes: &[u32]) -> Self {
        let trie = texts.trie(tokens);
        let mut by_bytes: FxHashMap<Vec<u8>, Vec<u32>> = FxHashMap::default();
        let mut ended = Vec::new();
        for node in nodes {
            trie.token(*node).iter().for_each(|text| ended.extend(texts.list(tokens, text)));
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
        let tokens = self.texts.list(self.tokens, &text);
        match self.found.get_mut(&self.bytes) {
            Some(found) => found.extend(tokens),
            None => drop(self.found.insert(self.bytes.clone(), tokens.to_vec())),
        }
    }
}

/// The verdicts of a lexer's states so far.
#[derive(Default)]
pub(super) struct Verdicts {
    all: Vec<Verdict>,
    by_state: FxHashMap<u32, VerdictId>,
    by_content: FxHashMap<u64, VerdictId>,
    ways_out: FxHashMap<u64, Vec<Arc<[WayOut]>>>,
    behind: Vec<Behind>,
    behind_by_state: FxHashMap<(u32, u32), BehindId>,
    /// How many ways out there are.
    ways: u32,
    memory: usize,
}

impl Verdicts {
    pub fn get(&self, verdict: VerdictId) -> &Verdict {
        &self.all[verdict as usize]
    }

    pub fn get_behind(&self, behind: BehindId) -> &Behind {
        &self.behind[behind as usize]
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + (self.by_state.len() + self.behind_by_state.len()) * 16
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
        let (begun, texts) = match lexer.plain(state, tokens.plain().longest()) {
            Some(Plain::Free) => (tokens.plain().up_to(usize::MAX).clone(), Texts::Behind),
            Some(Plain::AtMost(count)) => (tokens.plain().up_to(count).clone(), Texts::Counted),
            None => (Arc::new(Mask::of(Vec::new())), Texts::All),
        };
        let mut search = Search::new(lexer, state);
        texts.trie(tokens).walk(&mut search);
        let mut found = Vec::new();
        search.found.iter().for_each(|text| found.extend_from_slice(texts.list(tokens, text)));
        let inside = begun.with(found, tokens.vocab_size().div_ceil(32));
        let verdict = Verdict { inside, ways_out: self.ways_out(search, &texts) };
        let mut hasher = FxHasher::default();
        (verdict.inside.content(), Arc::as_ptr(&verdict.ways_out).addr()).hash(&mut hasher);
        let same = |other: &Verdict| {
            Arc::ptr_eq(&other.ways_out, &verdict.ways_out) && other.inside.is_same(&verdict.inside)
        };
        let content = hasher.finish();
        let number = match self.by_content.get(&content) {
            Some(known) if same(self.get(*known)) => *known,
            _ => {
                self.memory += verdict.inside.memory() + 128;
                self.all.push(verdict);
                self.by_content.insert(content, self.all.len() as VerdictId - 1);
                self.all.len() as VerdictId - 1
            }
        };
        self.by_state.insert(state.as_usize() as u32, number);
        number
    }

    /// What a state says of the tokens that take a way out.
    pub fn behind(&mut self, tokens: &Tokens, lexer: &mut Lexer, way: &WayOut, state: StateID) -> BehindId {
        let key = (way.number, state.as_usize() as u32);
        if let Some(known) = self.behind_by_state.get(&key) {
            return *known;
        }
        let mut search = Search::new(lexer, state);
        let (mut found, texts) = match way.after(tokens) {
            Some(after) => {
                after.texts.trie.walk(&mut search);
                (after.ended.to_vec(), Texts::After(after.clone()))
            }
            None => {
                let (mut ended, trie) = (Vec::new(), way.trie.trie(tokens));
                for node in &way.nodes {
                    trie.token(*node).iter().for_each(|text| ended.extend(way.trie.list(tokens, text)));
                    trie.walk_below(*node, &mut search);
                }
                (ended, way.trie.clone())
            }
        };
        search.found.iter().for_each(|text| found.extend(texts.list(tokens, text)));
        let ways_out = self.ways_out(search, &texts);
        self.memory += 4 * found.len() + 96;
        let number = self.behind.len() as BehindId;
        self.behind.push(Behind { tokens: found.into(), ways_out });
        self.behind_by_state.insert(key, number);
        number
    }

    /// The ways out that a search has found: earlier ones, if they are the same.
    fn ways_out(&mut self, search: Search<'_>, trie: &Texts) -> Arc<[WayOut]> {
        let mut found: Vec<_> = search.ways_out.into_iter().collect();
        found.sort_unstable_by_key(|(way, _)| *way);
        let mut hasher = FxHasher::default();
        found.hash(&mut hasher);
        let same = |other: &&Arc<[WayOut]>| {
            let equal = |way: &WayOut, found: &(_, Vec<u32>)| {
                (way.set, way.byte) == found.0 && *way.nodes == found.1[..] && way.trie.is(trie)
            };
            other.len() == found.len() && other.iter().zip(&found).all(|(way, found)| equal(way, found))
        };
        let like = self.ways_out.entry(hasher.finish()).or_default();
        if let Some(known) = like.iter().find(same) {
            return known.clone();
        }
        let made = (self.ways..).zip(found).map(|(number, ((set, byte), nodes))| WayOut {
            number,
            set,
            byte,
            nodes: nodes.into(),
            trie: trie.clone(),
            after: OnceLock::new(),
        });
        let made: Arc<[WayOut]> = made.collect();
        like.push(made.clone());
        self.ways += made.len() as u32;
        // What comes after the ways out takes about as much as their nodes.
        self.memory += made.iter().map(|way| 64 + 16 * way.nodes.len()).sum::<usize>();
        made
    }
}

/// A walk over tokens from a state of the lexer.
struct Search<'a> {
    lexer: &'a mut Lexer,
    states: Vec<StateID>,
    /// Texts that stay in the lexeme.
    found: Vec<u32>,
    ways_out: FxHashMap<(SetId, Option<u8>), Vec<u32>>,
}

impl<'a> Search<'a> {
    fn new(lexer: &'a mut Lexer, state: StateID) -> Self {
        Self { lexer, states: vec![state], found: Vec::new(), ways_out: FxHashMap::default() }
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
    fn token(&mut self, text: u32) {
        self.found.push(text);
    }

    #[inline]
    fn only(&mut self, depth: usize) -> Option<u8> {
        self.lexer.forced(self.states[depth])
    }
}
