//! How a text ends soonest: what an answer is closed with. A search goes from place to place, led by the costs of rows. Those
//! know the distances of rules, and the nearest ends of lexemes.

pub(super) mod costs;
mod distances;
pub(super) mod ends;
mod search;
