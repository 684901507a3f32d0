//! A grammar that a reader can check at a glance, and a compiler that takes several calls.

use std::sync::Arc;

use super::model::{STOP_TOKEN, VOCABULARY};
use pyengine_grammar::masks::Mask;
use pyengine_grammar::refusal;
use pyengine_grammar::{Compiled, Compiler, Grammar, Verdict};
use pyengine_messages::RequestKey;
use pyengine_telemetry::Histogram;

/// An answer has `length` tokens, the one at place `p` being `p` modulo 3; the stop token may come where it is such. Two
/// of six in a row are the least such token, and no other.
#[derive(Debug, Clone)]
pub(super) struct Threes {
    pub(super) length: usize,
    pub(super) taken: Vec<u32>,
}

impl Threes {
    pub(super) fn new(length: usize) -> Self {
        Self { length, taken: Vec::new() }
    }

    pub(super) fn allows(&self, token: u32) -> bool {
        let place = self.taken.len();
        let follows = u64::from(token) < VOCABULARY && token as usize % 3 == place % 3;
        !self.is_terminated() && follows && (token < 3 || !matches!(place % 6, 4 | 5))
    }
}

impl Grammar for Threes {
    fn mask(&mut self) -> Arc<Mask> {
        let tokens: Vec<u32> = (0..VOCABULARY as u32).filter(|token| self.allows(*token)).collect();
        assert!(!tokens.is_empty());
        Arc::new(Mask::of(tokens))
    }

    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        // As if most were.
        (self.taken.len() % 4 != 1).then(|| self.mask())
    }

    fn advance(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        if allowed {
            self.taken.push(token);
        }
        allowed
    }

    fn roll_back(&mut self, tokens: usize) {
        self.taken.truncate(self.taken.len() - tokens);
    }

    fn is_terminated(&self) -> bool {
        self.taken.len() == self.length || self.taken.last() == Some(&STOP_TOKEN)
    }

    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>) {
        out.extend((limit > 0).then(|| self.taken.len() as u32 % 3 + 3));
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        let to_go = (3 - self.taken.len() % 3) % 3;
        let start = self.taken.len();
        let tokens = (start..start + to_go).map(|place| place as u32 % 3).chain([STOP_TOKEN]);
        Some(tokens.take(self.length - start).collect()).filter(|tokens: &Vec<u32>| tokens.len() <= limit)
    }

    fn closes_within(&mut self, limit: usize) -> bool {
        self.closing_tokens(limit).is_some()
    }
}

struct Compilation(usize);

impl Compiled for Compilation {
    fn start(&self) -> Box<dyn Grammar> {
        Box::new(Threes::new(self.0))
    }

    fn memory(&self) -> usize {
        1
    }

    fn backend(&self) -> &'static str {
        "threes"
    }

    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// Compiles a description of one byte, the length; at once if it is even, 0 is refused.
#[derive(Default)]
pub(super) struct Slow {
    pending: Vec<(RequestKey, u8)>,
}

fn verdict(length: u8) -> Verdict {
    match length {
        0 => Err(refusal("no length")),
        length => Ok(Arc::new(Compilation(length.into()))),
    }
}

impl Compiler for Slow {
    fn ask(&mut self, key: RequestKey, _tenant: u64, description: &[u8]) -> Option<Verdict> {
        if description[0].is_multiple_of(2) {
            return Some(verdict(description[0]));
        }
        self.pending.push((key, description[0]));
        None
    }

    fn cancel(&mut self, key: RequestKey) {
        self.pending.retain(|(pending, _)| *pending != key);
    }

    fn collect(&mut self, verdicts: &mut Vec<(RequestKey, Verdict)>) {
        verdicts.extend(self.pending.pop().map(|(key, length)| (key, verdict(length))));
    }

    fn metrics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn compile_times(&self) -> Option<Histogram> {
        None
    }
}
