//! The mask of a place.
//!
//! ```text
//!  only inside ─► the verdict's own: the rest of a literal, whatever the row
//!  key known ─► the mask that is kept for all requests at equal places
//!  view known ─► that of its view, without what repeats an item of this array
//!  else ─► what the verdict says, and the tokens behind its ways out
//! ```
//!
//! O(ways out) where the view is known, else O(tokens that may come).

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::different::memory::{MemoryId, NOTHING};
use super::lexer::NO_SET;
use super::lexer::verdicts::{BehindId, VerdictId};
use super::lexer::ways::WayOut;
use super::place::Place;
use super::rows::RowId;
use super::states::States;
use super::views::View;
use crate::context::Tokens;
use pyengine_grammar::masks::{Mask, State};

/// No text is pending, in the key of a mask.
const NOTHING_PENDING: u32 = u32::MAX;
/// No place: in the key of a view's mask before repeated items are left out.
const NO_PLACE: MemoryId = MemoryId::MAX;

impl States {
    /// The key of a place's mask, by the verdict of its lexer's state.
    fn key(&mut self, place: Place, verdict: VerdictId, automaton: u64) -> State {
        let end = if place.pending { self.lexer.ended(place.state) } else { NOTHING_PENDING };
        State { automaton, row: place.row, verdict, end, memory: place.memory }
    }

    /// The mask where tokens can only stay in the lexeme, whatever the row: the verdict's own.
    fn inside(&mut self, place: Place, verdict: VerdictId) -> Option<&Arc<Mask>> {
        let may_end = !place.pending || self.lexer.ended(place.state) != NO_SET;
        let said = self.verdicts.get(verdict);
        let is_own = said.ways_out.is_empty() && !may_end && !self.rules.remembers && !said.inside.is_empty();
        is_own.then_some(&said.inside)
    }

    /// The tokens that may come, if that is a look-up.
    pub(super) fn known_mask(&mut self, tokens: &Tokens, place: Place, automaton: u64) -> Option<Arc<Mask>> {
        let verdict = self.verdicts.known(place.state)?;
        if let Some(inside) = self.inside(place, verdict) {
            return Some(inside.clone());
        }
        tokens.masks().get(&self.key(place, verdict, automaton))
    }

    /// The tokens that may come, end tokens too.
    ///
    /// # Errors
    /// The parser has given up, or nothing may come.
    pub(super) fn mask(&mut self, tokens: &Tokens, place: Place, automaton: u64) -> Result<Arc<Mask>> {
        let verdict = self.verdicts.of(tokens, &mut self.lexer, place.state);
        let cache = tokens.masks();
        if let Some(inside) = self.inside(place, verdict) {
            return Ok(inside.clone());
        }
        let key = self.key(place, verdict, automaton);
        if let Some(mask) = cache.get(&key) {
            return Ok(mask);
        }
        let shared = State { memory: if self.rules.remembers { NO_PLACE } else { NOTHING }, ..key };
        let view = self.view(tokens, place, verdict);
        // Beyond a limit rows look as if nothing followed.
        self.check()?;
        if view.is_inside() {
            let inside = self.verdicts.get(verdict).inside.clone();
            ensure!(!inside.is_empty(), "no text matches it");
            let inside = cache.insert(shared, inside);
            return self.remembering(tokens, place, key, inside);
        }
        if let Some(mask) = self.views.mask(&view) {
            if !self.rules.remembers {
                cache.insert_known(key, &mask);
            }
            return self.remembering(tokens, place, key, mask);
        }
        let mask = self.allowed(tokens, &view);
        ensure!(!mask.is_empty(), "no text matches it");
        let mask = cache.insert(shared, mask);
        self.views.insert(view, &mask);
        self.remembering(tokens, place, key, mask)
    }

    /// The mask of a view without what repeats an item at this place.
    fn remembering(
        &mut self,
        tokens: &Tokens,
        place: Place,
        key: State,
        mask: Arc<Mask>,
    ) -> Result<Arc<Mask>> {
        if !self.rules.remembers {
            return Ok(mask);
        }
        let unlike = self.unlike(tokens, place, mask.clone());
        self.check()?;
        ensure!(!unlike.is_empty(), "no text matches it");
        if Arc::ptr_eq(&unlike, &mask) {
            tokens.masks().insert_known(key, &mask);
            return Ok(mask);
        }
        Ok(tokens.masks().insert(key, unlike))
    }

    fn view(&mut self, tokens: &Tokens, place: Place, verdict: VerdictId) -> View {
        let mut behind = Vec::new();
        let ways_out = self.verdicts.get(verdict).ways_out.clone();
        self.look_behind(tokens, place.row, &ways_out, &mut behind);
        let flushed = self.flushed(place);
        let special = flushed.filter(|_| self.lexer.has_special()).map(|place| place.state);
        let ends = flushed.is_some_and(|place| self.rows.get(place.row).accepting);
        View { verdict, behind, ends, special }
    }

    /// Appends what is said behind the ways out that may be taken from a row.
    fn look_behind(
        &mut self,
        tokens: &Tokens,
        row: RowId,
        ways_out: &Arc<[WayOut]>,
        behind: &mut Vec<BehindId>,
    ) {
        for way in ways_out.iter() {
            let Some(place) = self.leave(row, NOTHING, way.set, way.byte) else { continue };
            let said = self.verdicts.behind(tokens, &mut self.lexer, way, place.state);
            behind.push(said);
            let further = self.verdicts.get_behind(said).ways_out.clone();
            if !further.is_empty() {
                self.look_behind(tokens, place.row, &further, behind);
            }
        }
    }

    fn allowed(&mut self, tokens: &Tokens, view: &View) -> Arc<Mask> {
        let mut more = Vec::new();
        for behind in &view.behind {
            more.extend_from_slice(&self.verdicts.get_behind(*behind).tokens);
        }
        let size = tokens.vocab_size();
        if let Some(state) = view.special {
            more.extend(self.lexer.special_tokens(state, size));
        }
        if view.ends {
            more.extend_from_slice(tokens.end_tokens());
        }
        self.verdicts.get(view.verdict).inside.with(more, size.div_ceil(32))
    }
}
