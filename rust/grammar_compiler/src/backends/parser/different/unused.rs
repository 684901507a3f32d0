//! The shortest item that may still come in an array of different ones.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::memory::Stage;
use super::texts::TextsByLength;
use super::values::Json;
use crate::backends::parser::lexer::SetId;
use crate::backends::parser::place::Place;
use crate::backends::parser::states::States;

/// Texts that are tried for an item, besides those that have come.
const MAX_OTHERS: usize = 1_000;

impl States {
    /// The shortest item of one lexeme that has not come, and the lexemes that it is; None where no item begins.
    /// O(items that have come).
    pub(crate) fn unused_item(&mut self, place: Place) -> Option<(Vec<u8>, SetId)> {
        if !matches!(self.memories.stage(place.memory), Stage::Before) {
            return None;
        }
        let come: FxHashSet<Arc<Json>> = self.memories.come(place.memory).cloned().collect();
        let mut texts =
            self.costs.texts.remove(&place.state).unwrap_or_else(|| TextsByLength::new(place.state));
        let mut found = None;
        for at in 0..come.len() + MAX_OTHERS {
            let Some(text) = texts.get(at, &mut self.lexer, &mut self.costs.ends) else { break };
            let row = if come.contains(&text.value) { None } else { self.after(place.row, text.set) };
            if row.is_some_and(|row| self.rows.get(row).ended_item) {
                found = Some((text.bytes.to_vec(), text.set));
                break;
            }
        }
        self.costs.texts.insert(place.state, texts);
        found
    }
}
