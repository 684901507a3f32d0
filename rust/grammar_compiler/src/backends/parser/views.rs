//! Masks by what a row shows: a row is new for each element of an array, but shows what the last one did.
//!
//! ```text
//!  row, verdict ─► its ways out ─► row behind ─► what its lexer's state says of the tokens behind the way out ─► ...
//!
//!  view = verdict, all that is said on the way      rows of equal views have one mask
//! ```
//!
//! A view is O(ways out); the mask of a known view is a look-up.

use std::sync::{Arc, Weak};

use llguidance::derivre::StateID;
use rustc_hash::FxHashMap;

use super::lexer::verdicts::{BehindId, VerdictId};
use pyengine_grammar::masks::Mask;

/// What a mask depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub verdict: VerdictId,
    /// What is said of tokens that go on behind the lexeme.
    pub behind: Vec<BehindId>,
    /// The text may end.
    pub ends: bool,
    /// The state of the lexer before special tokens, where some lexeme is one.
    pub special: Option<StateID>,
}

impl View {
    /// Only tokens that stay in the lexeme may come.
    pub fn is_inside(&self) -> bool {
        self.behind.is_empty() && !self.ends && self.special.is_none()
    }
}

/// The masks of the views so far.
#[derive(Default)]
pub(super) struct Views {
    masks: FxHashMap<View, Weak<Mask>>,
    memory: usize,
}

impl Views {
    /// The mask of a view, as long as any place has it.
    pub fn mask(&self, view: &View) -> Option<Arc<Mask>> {
        self.masks.get(view).and_then(Weak::upgrade)
    }

    pub fn insert(&mut self, view: View, mask: &Arc<Mask>) {
        self.memory += 64 + 4 * view.behind.len();
        self.masks.insert(view, Arc::downgrade(mask));
    }

    /// About how many bytes they hold.
    pub fn memory(&self) -> usize {
        self.memory
    }
}
