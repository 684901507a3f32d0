//! Where a text has come to.

use llguidance::derivre::StateID;

use super::different::memory::MemoryId;
use super::rows::RowId;

/// Where a text has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub row: RowId,
    pub state: StateID,
    /// A lexeme has begun.
    pub pending: bool,
    /// What is remembered of an array of different items.
    pub memory: MemoryId,
}
