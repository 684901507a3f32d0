pub(super) mod automaton;
pub(super) mod chunks;
pub(super) mod edges;
pub(super) mod history;
pub(super) mod ngram;
pub(super) mod prediction;
pub(super) mod suffix;
