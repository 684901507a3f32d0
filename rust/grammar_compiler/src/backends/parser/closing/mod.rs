//! How a text ends soonest: a search from place to place, led by the costs of rows, distances of rules and ends of lexemes.

pub(super) mod costs;
mod distances;
pub(super) mod ends;
mod search;
