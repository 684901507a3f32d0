//! Transitions of an automaton beyond the first of each state: a hash table that can also list those of a state.
//!
//! ```text
//!  heads  [•][ ][•][•]...          bucket = hash(state, token)
//!          │     └─► edge ─► edge  chained through the pool; the edges of one state are chained apart
//!          └─► edge
//! ```
//!
//! Linear hashing (Litwin, 1980): the table grows by one bucket at a time, so that no insertion is ever slow.
//! Finding and inserting are O(1) on average; 24 bytes an edge.

use super::chunks::Chunks;

/// No edge, no state.
pub(super) const NONE: u32 = u32::MAX;

/// A transition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    pub state: u32,
    pub token: u32,
    pub target: u32,
    /// The next edge of the same state.
    pub sibling: u32,
    next: u32,
}

/// All edges of an automaton.
#[derive(Debug)]
pub(super) struct Edges {
    pool: Chunks<Edge>,
    heads: Chunks<u32>,
    /// Buckets up to `1 << level` are there; those below `split` have been divided once more.
    level: u32,
    split: u32,
}

fn hash(state: u32, token: u32) -> u32 {
    let key = (u64::from(state) << 32 | u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((key ^ key >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) as u32
}

impl Default for Edges {
    fn default() -> Self {
        let mut edges = Self { pool: Chunks::default(), heads: Chunks::default(), level: 0, split: 0 };
        edges.heads.push(NONE);
        edges
    }
}

impl Edges {
    fn bucket(&self, state: u32, token: u32) -> u32 {
        let hash = hash(state, token);
        let bucket = hash & ((1 << self.level) - 1);
        if bucket < self.split { hash & ((2 << self.level) - 1) } else { bucket }
    }

    /// The edge of a state for a token.
    pub fn find(&self, state: u32, token: u32) -> Option<u32> {
        let mut at = self.heads[self.bucket(state, token)];
        while at != NONE {
            let edge = &self.pool[at];
            if edge.state == state && edge.token == token {
                return Some(at);
            }
            at = edge.next;
        }
        None
    }

    /// Adds an edge that is not there yet, before `sibling`.
    pub fn insert(&mut self, state: u32, token: u32, target: u32, sibling: u32) -> u32 {
        let at = self.pool.len() as u32;
        self.pool.push(Edge { state, token, target, sibling, next: NONE });
        self.link(at);
        if self.pool.len() > self.heads.len() {
            self.grow();
        }
        at
    }

    /// Makes an edge one for another token.
    pub fn rename(&mut self, at: u32, token: u32, target: u32) {
        let edge = self.pool[at];
        let bucket = self.bucket(edge.state, edge.token);
        if self.heads[bucket] == at {
            self.heads[bucket] = edge.next;
        } else {
            let mut before = self.heads[bucket];
            while self.pool[before].next != at {
                before = self.pool[before].next;
            }
            self.pool[before].next = edge.next;
        }
        let edge = &mut self.pool[at];
        (edge.token, edge.target) = (token, target);
        self.link(at);
    }

    fn link(&mut self, at: u32) {
        let edge = self.pool[at];
        let bucket = self.bucket(edge.state, edge.token);
        self.pool[at].next = std::mem::replace(&mut self.heads[bucket], at);
    }

    /// Divides one bucket in two.
    fn grow(&mut self) {
        let mut at = std::mem::replace(&mut self.heads[self.split], NONE);
        self.heads.push(NONE);
        self.split += 1;
        if self.split == 1 << self.level {
            (self.level, self.split) = (self.level + 1, 0);
        }
        while at != NONE {
            let next = self.pool[at].next;
            self.link(at);
            at = next;
        }
    }

    pub fn bytes(&self) -> usize {
        self.pool.bytes() + self.heads.bytes()
    }

    pub fn clear(&mut self, kept: usize) {
        self.pool.clear(kept);
        self.heads.clear(kept);
        self.heads.push(NONE);
        (self.level, self.split) = (0, 0);
    }

    /// Frees a little; whether there was something left. Nothing else may be asked of it afterwards.
    pub fn drop_chunk(&mut self) -> bool {
        self.pool.drop_chunk() || self.heads.drop_chunk()
    }
}

impl std::ops::Index<u32> for Edges {
    type Output = Edge;

    fn index(&self, at: u32) -> &Edge {
        &self.pool[at]
    }
}

impl Edges {
    /// Leads an edge elsewhere.
    pub fn redirect(&mut self, at: u32, target: u32) {
        self.pool[at].target = target;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_a_map(operations in prop::collection::vec((0u32..20, 0u32..50, 0u32..50), 0..600)) {
            let (mut edges, mut map) = (Edges::default(), HashMap::new());
            for (target, (state, token, renamed)) in (0..).zip(operations) {
                match edges.find(state, token) {
                    None => {
                        edges.insert(state, token, target, NONE);
                        map.insert((state, token), target);
                    }
                    Some(at) if !map.contains_key(&(state, renamed)) => {
                        edges.rename(at, renamed, target);
                        map.remove(&(state, token));
                        map.insert((state, renamed), target);
                    }
                    Some(at) => {
                        edges.redirect(at, target);
                        map.insert((state, token), target);
                    }
                }
            }
            for state in 0..20 {
                for token in 0..50 {
                    let found = edges.find(state, token).map(|at| edges[at].target);
                    prop_assert_eq!(found, map.get(&(state, token)).copied());
                }
            }
            edges.clear(0);
            prop_assert!((0..20).all(|state| edges.find(state, 1).is_none()));
        }
    }
}
