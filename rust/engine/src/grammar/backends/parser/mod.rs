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
//! [`MaskCache`](crate::grammar::masks::MaskCache) keeps one mask for all of them.
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
//!  mask     shortest         what may come at a place      how a text ends soonest
//!              nearest                                     the same, place by place
//!     unlike   unused        arrays of different items     what their items can still be
//!     moves                  places, and how a text goes on from one to the next
//!     states                 all parts of a grammar's states
//!
//!  views                     of rows: what their masks depend on
//!  costs, distances, paths           how far they are from an end
//!     ends                           how far lexemes are
//!  verdicts, search, ways    of the lexer's states: what they say of all tokens
//!  plain                             where plain characters lead
//!  rows     memory, values   Earley's rows                 what is remembered of arrays
//!  rules    lexer, alphabet  the grammar as llguidance has compiled it
//! ```

mod ahead;
mod alphabet;
mod automaton;
mod costs;
mod distances;
mod ends;
mod lexer;
mod mask;
mod memory;
mod moves;
mod nearest;
mod paths;
mod plain;
mod rows;
mod rules;
mod search;
mod shortest;
mod states;
mod text;
mod unlike;
mod unused;
mod values;
mod verdicts;
mod views;
mod warm;
mod ways;

pub(crate) use automaton::Automaton;
pub(crate) use lexer::SkippedOnce;
pub(crate) use text::Parser;

#[cfg(test)]
mod tests;
