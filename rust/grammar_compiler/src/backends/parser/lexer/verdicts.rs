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
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use llguidance::derivre::StateID;
use rustc_hash::{FxHashMap, FxHasher};

use super::Lexer;
use super::plain::{Plain, PlainCharacters};
use super::search::{Difference, FoundWay, Search};
use super::ways::{Texts, WayOut};
use crate::context::Tokens;
use pyengine_grammar::masks::Mask;

/// A verdict's number.
pub(crate) type VerdictId = u32;
/// The verdict of a state that was not looked at.
const UNKNOWN: VerdictId = u32::MAX;
/// The number of what comes behind a way out.
pub(crate) type BehindId = u32;

/// What a state says.
pub(crate) struct Verdict {
    /// The tokens that stay in the lexeme.
    pub inside: Arc<Mask>,
    pub ways_out: Arc<[WayOut]>,
}

/// What a state says of the tokens that take a way out.
pub(crate) struct Behind {
    /// Tokens that end with the lexeme, or stay in the next one.
    pub tokens: Box<[u32]>,
    pub ways_out: Arc<[WayOut]>,
}

/// The verdicts of a lexer's states so far.
pub(crate) struct Verdicts {
    plain: PlainCharacters,
    all: Vec<Verdict>,
    /// By state; [`UNKNOWN`] where none was found yet.
    by_state: Vec<VerdictId>,
    by_content: FxHashMap<u64, VerdictId>,
    ways_out: FxHashMap<u64, Vec<Arc<[WayOut]>>>,
    behind: Vec<Behind>,
    behind_by_state: FxHashMap<(u32, u32), BehindId>,
    /// How many ways out there are.
    ways: u32,
    memory: usize,
}

impl Verdicts {
    /// Where nothing is known yet of this lexer's states.
    pub fn new(lexer: &Lexer) -> Self {
        Self {
            plain: PlainCharacters::new(lexer),
            all: Vec::new(),
            by_state: Vec::new(),
            by_content: FxHashMap::default(),
            ways_out: FxHashMap::default(),
            behind: Vec::new(),
            behind_by_state: FxHashMap::default(),
            ways: 0,
            memory: 0,
        }
    }

    pub fn get(&self, verdict: VerdictId) -> &Verdict {
        &self.all[verdict as usize]
    }

    pub fn get_behind(&self, behind: BehindId) -> &Behind {
        &self.behind[behind as usize]
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory + self.by_state.len() * 4 + self.behind_by_state.len() * 16
    }

    /// What a state says, if it is known.
    pub fn known(&self, state: StateID) -> Option<VerdictId> {
        self.by_state.get(state.as_usize()).copied().filter(|verdict| *verdict != UNKNOWN)
    }

    /// What a state says.
    pub fn of(&mut self, tokens: &Tokens, lexer: &mut Lexer, state: StateID) -> VerdictId {
        if let Some(known) = self.known(state) {
            return known;
        }
        let (begun, texts) = match self.plain.plain(lexer, state, tokens.plain().longest()) {
            Some(Plain::Free) => (tokens.plain().up_to(usize::MAX).clone(), Texts::Behind),
            Some(Plain::AtMost(count)) => (tokens.plain().up_to(count).clone(), Texts::Counted),
            None => (tokens.plain().up_to(0).clone(), Texts::All),
        };
        let verdict = match self.plain.mostly_free(lexer, state) {
            Some(free) if matches!(texts, Texts::All) => self.differing(tokens, lexer, state, free),
            _ => {
                let mut search = Search::new(lexer, state);
                texts.trie(tokens).walk(&mut search);
                let (more, ways_out) = search.found(tokens, &texts);
                let inside = begun.with(more, tokens.vocab_size().div_ceil(32));
                Verdict { inside, ways_out: self.ways_out(ways_out) }
            }
        };
        self.keep(state, verdict)
    }

    /// What a state says by how it differs from one in which all plain characters may come.
    fn differing(&mut self, tokens: &Tokens, lexer: &mut Lexer, state: StateID, free: StateID) -> Verdict {
        let free_verdict = self.of(tokens, lexer, free);
        let trie = tokens.text_trie();
        let mut difference = Difference::new(lexer, trie, state, free);
        trie.walk(&mut difference);
        let (found, other) = difference.found();
        let like = self.get(free_verdict);
        let inside = like.inside.but(&other, &found.inside, tokens.vocab_size().div_ceil(32));
        let texts = Texts::BehindBut(other.into());
        let same = like.ways_out.iter().map(|way| FoundWay {
            way: (way.set, way.byte),
            nodes: way.nodes.to_vec(),
            texts: texts.clone(),
        });
        let ways_out = same.chain(found.ways_out(&Texts::All)).collect();
        Verdict { inside: Arc::new(inside), ways_out: self.ways_out(ways_out) }
    }

    fn keep(&mut self, state: StateID, verdict: Verdict) -> VerdictId {
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
        if self.by_state.len() <= state.as_usize() {
            self.by_state.resize(state.as_usize() + 1, UNKNOWN);
        }
        self.by_state[state.as_usize()] = number;
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
                let (mut ended, trie) = (Vec::new(), way.texts.trie(tokens));
                for node in &way.nodes {
                    trie.token(*node).iter().for_each(|text| way.texts.list(tokens, *text, &mut ended));
                    trie.walk_below(*node, &mut search);
                }
                (ended, way.texts.clone())
            }
        };
        let (more, further) = search.found(tokens, &texts);
        if found.is_empty() {
            found = more
        } else {
            found.extend(more)
        }
        let ways_out = self.ways_out(further);
        self.memory += 4 * found.len() + 96;
        let number = self.behind.len() as BehindId;
        self.behind.push(Behind { tokens: found.into(), ways_out });
        self.behind_by_state.insert(key, number);
        number
    }

    /// The ways out that were found: earlier ones, if they are the same.
    fn ways_out(&mut self, found: Vec<FoundWay>) -> Arc<[WayOut]> {
        let mut hasher = FxHasher::default();
        found.iter().for_each(|found| (found.way, &found.nodes).hash(&mut hasher));
        let same = |other: &&Arc<[WayOut]>| {
            let equal = |way: &WayOut, found: &FoundWay| {
                (way.set, way.byte) == found.way
                    && *way.nodes == found.nodes[..]
                    && way.texts.is(&found.texts)
            };
            other.len() == found.len() && other.iter().zip(&found).all(|(way, found)| equal(way, found))
        };
        let like = self.ways_out.entry(hasher.finish()).or_default();
        if let Some(known) = like.iter().find(same) {
            return known.clone();
        }
        let made = (self.ways..).zip(found).map(|(number, found)| WayOut {
            number,
            set: found.way.0,
            byte: found.way.1,
            nodes: found.nodes.into(),
            texts: found.texts,
            after: OnceLock::new(),
            asked: AtomicU32::new(0),
        });
        let made: Arc<[WayOut]> = made.collect();
        like.push(made.clone());
        self.ways += made.len() as u32;
        // What comes after the ways out takes about as much as their nodes.
        self.memory += made.iter().map(|way| 64 + 16 * way.nodes.len() + way.texts.memory()).sum::<usize>();
        made
    }
}
