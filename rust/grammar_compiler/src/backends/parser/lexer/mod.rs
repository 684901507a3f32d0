//! llguidance's lexer: the automaton of a grammar's lexemes, which is built as texts reach its states.
//!
//! ```text
//!  state ─ byte ─► state             within the lexeme
//!                ► ends before it    the longest match is over; the byte begins the next lexeme
//!                ► ends with it      nothing longer may match
//! ```

mod alphabet;
mod plain;
mod search;
pub(super) mod verdicts;
pub(super) mod ways;

use std::sync::Arc;

use anyhow::{Result, anyhow};
use llguidance::api::{ParserLimits, SkipSpec};
use llguidance::derivre::{NextByte, RegexAst, StateID};
use llguidance::earley::CGrammar;
use llguidance::earley::lexerspec::{LexemeClass, LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::{LexemeSet, RegexVec};
use rustc_hash::{FxHashMap, FxHashSet};

use self::alphabet::Alphabets;
use crate::trie::{IsOf, KINDS, Kinds};

/// The number of a set of lexemes.
pub(super) type SetId = u32;
/// The set of a state that was not looked at.
const UNKNOWN: SetId = u32::MAX;
/// The kinds of a state that was not looked at.
const UNKNOWN_KINDS: Kinds = Kinds::MAX;
/// The set without lexemes.
pub(super) const NO_SET: SetId = 0;
/// States that may be made before new fuel is given.
const MAX_NEW: usize = 50_000;

/// Where a byte leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    To(StateID),
    /// One of these lexemes has ended before the byte.
    EndedBefore(SetId),
    /// One of these lexemes ends with the byte.
    EndsWith(SetId),
    Nowhere,
}

/// Which of its lexemes a grammar skips once between two others, and not as often as they come.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkippedOnce {
    /// Regexes of white space; those that the grammar does not skip are ignored.
    pub patterns: Vec<String>,
    /// What the grammar itself skips, outside of nested ones.
    pub own: bool,
}

/// The lexer of a grammar.
pub(super) struct Lexer {
    automaton: RegexVec,
    grammar: Arc<CGrammar>,
    /// Bytes with which some lexeme begins.
    first: [bool; 256],
    sets: Vec<Box<[u32]>>,
    /// The sets of one lexeme, which nearly all are, by lexeme; the others.
    single: Vec<SetId>,
    known: FxHashMap<Box<[u32]>, SetId>,
    /// The lexemes that have ended in a state, and those that end with the byte that leads there; by state.
    ended: Vec<[SetId; 2]>,
    alphabets: Alphabets,
    /// The kinds of bytes that lead from a state to itself, by state.
    loops: Vec<Kinds>,
    /// One byte of each class that the lexemes tell apart, the plain ones first, and how many these are.
    representatives: (Vec<u8>, usize),
    /// By class, whether its white space comes once.
    once: Vec<bool>,
    /// Lexemes that are special tokens, each with its tokens once they were wanted.
    special: FxHashMap<u32, Option<Box<[u32]>>>,
    limits: ParserLimits,
    /// How many states it may have before new fuel is given.
    max_states: usize,
}

impl Lexer {
    /// # Errors
    /// The lexer is too large.
    pub fn new(grammar: &Arc<CGrammar>, limits: &ParserLimits, once: &SkippedOnce) -> Result<Self> {
        let mut limits = limits.clone();
        let spec = grammar.lexer_spec();
        let mut automaton = spec.to_regex_vec(&mut limits)?;
        let all = automaton.initial_state(&spec.all_lexemes());
        let first = std::array::from_fn(|byte| !automaton.transition(all, byte as u8).is_dead());
        let representatives = representatives(|byte| automaton.alpha().map(byte));
        let mut special = FxHashMap::default();
        for (number, _) in spec.lexemes.iter().enumerate() {
            let mut one = spec.alloc_lexeme_set();
            one.add(LexemeIdx::new(number));
            if !spec.token_range_lexemes(&one).is_empty() {
                special.insert(number as u32, None);
            }
        }
        Ok(Self {
            automaton,
            grammar: grammar.clone(),
            first,
            sets: vec![Box::default()],
            single: vec![UNKNOWN; spec.lexemes.len()],
            known: FxHashMap::default(),
            ended: Vec::new(),
            alphabets: Alphabets::new(),
            loops: Vec::new(),
            representatives,
            once: skipped_once(spec, once)?,
            special,
            max_states: limits.max_lexer_states,
            limits,
        })
    }

    pub fn spec(&self) -> &LexerSpec {
        self.grammar.lexer_spec()
    }

    /// Gives new fuel: what one mask or token may take.
    pub fn refuel(&mut self, fuel: u64) {
        self.max_states = self.limits.max_lexer_states.min(self.states() + MAX_NEW);
        self.automaton.set_fuel(fuel);
        self.automaton.set_max_states(self.max_states);
    }

    /// How much fuel is left.
    pub fn fuel(&self) -> u64 {
        self.automaton.get_fuel()
    }

    /// Why it has given up, if it has.
    pub fn error(&self) -> Option<String> {
        self.automaton.get_error()
    }

    /// Whether it should build no more states than it must: giving up would end answers.
    pub fn is_near_limits(&self) -> bool {
        self.states() + MAX_NEW / 4 > self.max_states
            || self.automaton.get_fuel() < self.limits.step_lexer_fuel / 2
    }

    /// One byte of each class that its lexemes tell apart, ascending: plain characters first, or alone.
    pub fn representatives(&self, plain: bool) -> &[u8] {
        let (bytes, count) = &self.representatives;
        if plain { &bytes[..*count] } else { bytes }
    }

    /// About how many bytes it holds.
    pub fn memory(&self) -> usize {
        self.automaton.num_bytes() + self.alphabets.memory() + self.ended.len() * 8 + self.loops.len()
    }

    /// How many states it has.
    pub fn states(&self) -> usize {
        self.automaton.stats().num_states
    }

    /// The state before any of these lexemes.
    pub fn start(&mut self, lexemes: &LexemeSet) -> StateID {
        self.automaton.initial_state(lexemes)
    }

    /// The same without the white space of a class.
    pub fn start_without_skip(&mut self, start: StateID, class: usize) -> StateID {
        let mut possible = self.automaton.state_desc(start).possible.clone();
        possible.remove(self.skip(class));
        self.automaton.initial_state(&possible)
    }

    /// Where a byte leads from a state. Walks over all tokens take their time here, and mostly stay in the lexeme.
    #[inline(always)]
    pub fn advance(&mut self, state: StateID, byte: u8) -> Move {
        let next = self.automaton.transition(state, self.alphabets.stand_in(state.as_usize(), byte));
        if next.is_dead() || next.has_lowest_match() {
            return self.leave(state, byte, next);
        }
        Move::To(next)
    }

    #[cold]
    fn leave(&mut self, state: StateID, byte: u8, next: StateID) -> Move {
        if next.is_dead() {
            if !self.first[byte as usize] {
                return Move::Nowhere;
            }
            return match self.ended(state) {
                NO_SET => Move::Nowhere,
                set => Move::EndedBefore(set),
            };
        }
        match self.automaton.state_desc(next).has_special_token {
            // Special tokens are taken whole.
            true => Move::Nowhere,
            false => Move::EndsWith(self.ends_with(next)),
        }
    }

    /// The kinds of bytes that lead from a state to itself.
    #[inline]
    pub fn loops(&mut self, state: StateID) -> Kinds {
        match self.loops.get(state.as_usize()) {
            Some(known) if *known != UNKNOWN_KINDS => *known,
            _ => self.find_loops(state),
        }
    }

    #[cold]
    fn find_loops(&mut self, state: StateID) -> Kinds {
        let mut stays = |is_of: IsOf| {
            (b'A'..=b'z').filter(is_of).all(|byte| self.advance(state, byte) == Move::To(state))
        };
        let found = KINDS.iter().filter(|(_, is_of)| stays(*is_of)).map(|(kind, _)| kind).sum();
        if self.loops.len() <= state.as_usize() {
            self.loops.resize(state.as_usize() + 1, UNKNOWN_KINDS);
        }
        self.loops[state.as_usize()] = found;
        found
    }

    /// The class of a byte: no lexeme tells bytes of one class apart.
    pub fn byte_class(&self, byte: u8) -> usize {
        self.automaton.alpha().map(byte)
    }

    /// Lets one byte stand for all that the lexemes of a state do not tell apart.
    pub fn find_alphabet(&mut self, state: StateID) {
        let lexemes = self.automaton.state_desc(state).possible.iter().map(|lexeme| lexeme.0).collect();
        self.alphabets.find(self.grammar.lexer_spec(), &self.limits, state.as_usize(), lexemes);
    }

    /// The state after the first byte of a lexeme.
    #[inline]
    pub fn transition(&mut self, start: StateID, byte: u8) -> StateID {
        self.automaton.transition(start, byte)
    }

    /// The lexemes that are whole in a state; 0 if none is.
    #[inline]
    pub fn ended(&mut self, state: StateID) -> SetId {
        self.sets_of(state)[0]
    }

    fn ends_with(&mut self, state: StateID) -> SetId {
        self.sets_of(state)[1]
    }

    #[inline]
    fn sets_of(&mut self, state: StateID) -> [SetId; 2] {
        match self.ended.get(state.as_usize()) {
            Some(sets) if sets[0] != UNKNOWN => *sets,
            _ => self.look(state),
        }
    }

    #[cold]
    fn look(&mut self, state: StateID) -> [SetId; 2] {
        let about = self.automaton.state_desc(state);
        let numbers = |lexemes: &[LexemeIdx]| lexemes.iter().map(|lexeme| lexeme.0).collect::<Vec<u32>>();
        let (ended, with) =
            (numbers(about.greedy_accepting.as_slice()), numbers(about.lazy_accepting.as_slice()));
        let sets = [self.intern(&ended), self.intern(&with)];
        if self.ended.len() <= state.as_usize() {
            self.ended.resize(state.as_usize() + 1, [UNKNOWN; 2]);
        }
        self.ended[state.as_usize()] = sets;
        sets
    }

    /// The number of a set of lexemes.
    pub fn intern(&mut self, lexemes: &[u32]) -> SetId {
        let next = self.sets.len() as SetId;
        let set = match lexemes {
            [] => return NO_SET,
            [lexeme] => &mut self.single[*lexeme as usize],
            several => match self.known.get_mut(several) {
                Some(known) => known,
                None => self.known.entry(several.into()).or_insert(UNKNOWN),
            },
        };
        if *set == UNKNOWN {
            *set = next;
            self.sets.push(lexemes.into());
        }
        *set
    }

    pub fn set(&self, set: SetId) -> &[u32] {
        &self.sets[set as usize]
    }

    /// Whether nothing can follow in the lexeme.
    pub fn is_at_end(&mut self, state: StateID) -> bool {
        self.automaton.next_byte(state) == NextByte::ForcedEOI
    }

    /// The bytes that may come within the lexeme, as far as they are known without trying: one that must come, or some.
    pub fn hint(&mut self, state: StateID) -> NextByte {
        let hint = self.automaton.next_byte(state);
        if self.ended(state) == NO_SET { hint } else { hint.make_fuzzy() }
    }

    /// The byte that must come, within the lexeme and beyond it, as far as that is known without trying.
    #[inline]
    pub fn forced(&mut self, state: StateID) -> Option<u8> {
        match self.hint(state) {
            NextByte::ForcedByte(byte) => Some(byte),
            _ => None,
        }
    }

    /// The first lexeme that may come in a state and is this special token.
    pub fn special(&self, state: StateID, token: u32) -> Option<u32> {
        let possible = &self.automaton.state_desc(state).possible;
        let is = |lexeme: &LexemeIdx| self.spec().lexeme_spec(*lexeme).contains_token(token);
        possible.iter().find(is).map(|lexeme| lexeme.0)
    }

    /// The special tokens that may come in a state, below `vocab_size`.
    pub fn special_tokens(&mut self, state: StateID, vocab_size: usize) -> Vec<u32> {
        let mut found = Vec::new();
        for lexeme in self.automaton.state_desc(state).possible.iter() {
            let Some(tokens) = self.special.get_mut(&lexeme.0) else { continue };
            let spec = self.grammar.lexer_spec().lexeme_spec(lexeme);
            let all = 0..vocab_size as u32;
            found.extend_from_slice(
                tokens.get_or_insert_with(|| all.filter(|id| spec.contains_token(*id)).collect()),
            );
        }
        found
    }

    /// Whether a special token may come in a state.
    pub fn special_possible(&self, state: StateID) -> bool {
        self.automaton.state_desc(state).possible.iter().any(|lexeme| self.special.contains_key(&lexeme.0))
    }

    /// The states before each lexeme of more than this weight.
    pub fn heavy(&mut self, weight: u32) -> Vec<StateID> {
        let lexemes = (0..self.spec().lexemes.len()).map(LexemeIdx::new);
        let heavy: Vec<_> = lexemes.filter(|lexeme| self.automaton.lexeme_weight(*lexeme) > weight).collect();
        heavy.into_iter().map(|lexeme| self.beginning(lexeme.0)).collect()
    }

    /// The state before a lexeme.
    pub fn beginning(&mut self, lexeme: u32) -> StateID {
        let mut only = self.no_lexemes();
        only.add(LexemeIdx(lexeme));
        self.start(&only)
    }

    /// How many lexemes a state may belong to.
    pub fn possible(&self, state: StateID) -> usize {
        self.automaton.state_desc(state).possible.iter().count()
    }

    /// A special token that a lexeme is, below `vocab_size`.
    pub fn special_token(&self, lexeme: u32, vocab_size: usize) -> Option<u32> {
        let spec =
            self.special.get(&lexeme).map(|_| self.spec().lexeme_spec(LexemeIdx::new(lexeme as usize)))?;
        (0..vocab_size as u32).find(|token| spec.contains_token(*token))
    }

    /// Whether some lexeme is a special token.
    pub fn has_special(&self) -> bool {
        !self.special.is_empty()
    }

    pub fn no_lexemes(&self) -> LexemeSet {
        self.spec().alloc_lexeme_set()
    }

    pub fn class(&self, lexeme: LexemeIdx) -> usize {
        self.spec().lexeme_spec(lexeme).class().as_usize()
    }

    /// The white space of a class.
    pub fn skip(&self, class: usize) -> LexemeIdx {
        self.spec().skip_id(LexemeClass::new(class))
    }

    pub fn has_class(&self, set: SetId, class: usize) -> bool {
        self.set(set).iter().any(|lexeme| self.class(LexemeIdx(*lexeme)) == class)
    }

    /// Whether a set is of skipped text, and that comes once.
    pub fn skipped(&self, set: SetId) -> Option<bool> {
        self.set(set).iter().find_map(|lexeme| {
            let class = self.spec().skip_by_class.iter().position(|skip| skip.0 == *lexeme)?;
            Some(self.once[class])
        })
    }
}

/// One byte of each class, the plain ones first, and how many these are. 0xff stands for special tokens.
fn representatives(class: impl Fn(u8) -> usize) -> (Vec<u8>, usize) {
    let mut known = FxHashSet::default();
    let (plain, others): (Vec<u8>, Vec<u8>) =
        (0..0xff).partition(|byte| (b' '..=b'~').contains(byte) && *byte != b'\\');
    let mut bytes: Vec<u8> = plain.into_iter().filter(|byte| known.insert(class(*byte))).collect();
    let count = bytes.len();
    bytes.extend(others.into_iter().filter(|byte| known.insert(class(*byte))));
    (bytes, count)
}

/// Which classes skip their white space once.
fn skipped_once(spec: &LexerSpec, once: &SkippedOnce) -> Result<Vec<bool>> {
    let classes = spec.skip_by_class.len();
    let mut out = vec![false; classes];
    out[0] = once.own;
    if !once.patterns.is_empty() {
        // A class that is there already is found again.
        let mut probe = spec.clone();
        for pattern in &once.patterns {
            let skip = SkipSpec::once(RegexAst::Regex(pattern.clone()));
            let class = probe.setup_lexeme_class_with_skip(skip).map_err(|error| anyhow!(error))?;
            if let Some(found) = out.get_mut(class.as_usize()) {
                *found = true;
            }
        }
    }
    Ok(out)
}
