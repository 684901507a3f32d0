//! How a text ends soonest: what an answer is closed with.
//!
//! ```text
//!  shortest   nearest     written from costs       searched, place by place, where lexemes are in each other's way
//!  costs      items       of what follows a row       the shortest items, where they must differ
//!  piece                  the shortest text of a lexeme
//!     distances   ends    of symbols and rules     of lexemes
//!     bounds              of distances where rules have parameters
//! ```

mod bounds;
pub(super) mod costs;
mod distances;
pub(super) mod ends;
mod items;
mod nearest;
mod piece;
mod shortest;
