//! The parser of grammars that llguidance has compiled: all requests of a grammar share its states.
//!
//! ```text
//!  Automaton (one a grammar, locked)                      Parser (one a request)
//!    lexer     llguidance's, built as it is used            places, one after each token:
//!    rows      Earley's, each made once         ◄────────     row, state of the lexer,
//!    memories  of arrays of different items     ◄────────     what is remembered
//!    verdicts  of the lexer's states
//!    views     what a row's mask depends on, and its mask
//!    costs     of the shortest completions
//! ```
//!
//! llguidance's own parser keeps its rows to itself, so that nothing tells that two requests are in the same state. This
//! one follows the same rules byte by byte, on llguidance's grammars and lexer, and gives the same masks: the tests
//! compare them. A place is canonical: requests at equal places may write the same texts, however they came there, and
//! [`MaskCache`](pyengine_grammar::masks::MaskCache) keeps one mask for all of them.
//!
//! A token is O(its bytes), a mask that is kept a look-up. Another costs the ways out of the lexer's state.
//!
//! Its modules, each of which imports only those below it:
//!
//! ```text
//!  text                      one request's text
//!  warm     ahead            masks, and states, that are made before a request comes
//!     automaton              the lock that requests share
//!
//!  mask     closing          what may come at a place      how a text ends soonest
//!     different              what items that must differ can still be, and what is remembered of them
//!     moves                  how a text goes on from one place to the next
//!     states                 all parts of a grammar's states
//!
//!  place                     where a text has come to
//!  views                     of rows: what their masks depend on
//!  rows                      Earley's
//!  lexer                     its states, and what they say of all tokens
//!  rules                     the grammar as llguidance has compiled it
//! ```

mod ahead;
mod automaton;
mod closing;
mod different;
mod lexer;
mod mask;
mod moves;
mod place;
mod rows;
mod rules;
mod states;
mod text;
mod views;
mod warm;

pub(crate) use automaton::Automaton;
pub(crate) use lexer::SkippedOnce;
pub(crate) use text::Parser;

#[cfg(test)]
mod tests;
