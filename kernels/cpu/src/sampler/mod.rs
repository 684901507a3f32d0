//! From logits to tokens: one file a rule, applied in the order of the files' use in `choose`.
//!
//! Each row is chosen alone from its own logits, rules, seed and position. A NaN counts as minus
//! infinity; where logits are plus infinity, those tokens alone share the probability; where nothing
//! is possible there is no token, which is said by -1. O(vocabulary) per row, and O(n log n) for the n tokens that
//! top-k or top-p sorts.

pub mod categorical;
pub mod greedy;
pub mod min_p;
pub mod temperature;
pub mod top_k;
pub mod top_p;

use std::cell::RefCell;

use crate::element::Element;
use crate::random::uniform;
use crate::threads::{Shared, Threads};

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its probability over that of the most likely token.
    pub weight: f32,
    /// Its id.
    pub token: u32,
}

impl Candidate {
    /// More likely first, and the lower id first of two that are equally likely.
    #[inline]
    pub fn before(&self, other: &Self) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

/// The rules of every row that is sampled; each slice is at least as long as there are rows.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// Divides the logits; 0 is greedy.
    pub temperature: &'a [f32],
    /// Keeps this many; 0 keeps all.
    pub top_k: &'a [i32],
    /// Keeps the fewest that reach this probability; 1 keeps all.
    pub top_p: &'a [f32],
    /// Keeps what is at least this likely beside the most likely; 0 keeps all.
    pub min_p: &'a [f32],
    /// Key of the random numbers.
    pub seed: &'a [u64],
    /// Position of the token that is chosen.
    pub position: &'a [i64],
}

thread_local! {
    /// Logits and candidates of the row that this thread works on.
    static SCRATCH: RefCell<(Vec<f32>, Vec<Candidate>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Chooses a token for each row of `logits`, \[out.len(), vocabulary\].
///
/// # Panics
/// `vocabulary` is 0, or a slice is too short.
pub fn sample<T: Element>(
    threads: &Threads,
    logits: &[T],
    vocabulary: usize,
    rules: &Rules<'_>,
    out: &mut [i32],
) {
    let rows = out.len();
    let out = Shared::new(out);
    threads.share(rows, rows * vocabulary * 4, |row| {
        let logits = &logits[row * vocabulary..][..vocabulary];
        let token = SCRATCH.with_borrow_mut(|(scaled, candidates)| {
            scaled.clear();
            scaled.extend(logits.iter().map(|logit| logit.to_f32()));
            choose(scaled, rules, row, candidates)
        });
        // SAFETY: each row is one piece.
        unsafe { out.part(row, 1)[0] = token };
    });
}

fn choose(logits: &mut [f32], rules: &Rules<'_>, row: usize, candidates: &mut Vec<Candidate>) -> i32 {
    let best = greedy::most_likely(logits);
    let temperature = rules.temperature[row];
    let highest = logits[best as usize];
    if highest.is_nan() || highest == f32::NEG_INFINITY {
        return -1;
    }
    if temperature.is_nan() || temperature <= 0.0 {
        return best as i32;
    }
    temperature::weigh(logits, highest, temperature, candidates);
    top_k::keep(candidates, rules.top_k[row]);
    top_p::keep(candidates, rules.top_p[row]);
    min_p::keep(candidates, rules.min_p[row]);
    categorical::draw(candidates, uniform(rules.seed[row], rules.position[row] as u64)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(logits: &[f32], temperature: f32, threads: usize) -> Vec<i32> {
        let vocabulary = 5;
        let rows = logits.len() / vocabulary;
        let mut out = vec![-1; rows];
        let seed: Vec<u64> = (0..rows as u64).collect();
        let rules = Rules {
            temperature: &vec![temperature; rows],
            top_k: &vec![0; rows],
            top_p: &vec![1.0; rows],
            min_p: &vec![0.0; rows],
            seed: &seed,
            position: &vec![3; rows],
        };
        sample(&Threads::new(threads).unwrap(), logits, vocabulary, &rules, &mut out);
        out
    }

    #[test]
    fn what_is_no_number_has_a_defined_result() {
        const N: f32 = f32::NAN;
        const I: f32 = f32::INFINITY;
        for temperature in [0.0, f32::NAN, 1.0, 1e-30] {
            assert_eq!(run(&[N, N, N, N, N], temperature, 1), [-1]);
            assert_eq!(run(&[-I, -I, -I, -I, -I], temperature, 1), [-1]);
            assert_eq!(run(&[N, -I, 2.0, -I, N], temperature, 1), [2]);
            assert_eq!(run(&[N, 5.0, 2.0, I, -I], temperature, 1), [3]);
        }
        assert_eq!(run(&[1.0, I, I, 0.0, 0.0], 0.0, 1), [1]);
        let both: Vec<i32> = run(&[1.0, I, I, 0.0, 0.0].repeat(64), 1.0, 1);
        assert!(both.contains(&1) && both.contains(&2) && both.iter().all(|t| [1, 2].contains(t)));
    }

    #[test]
    fn greedy_takes_the_first_of_ties() {
        assert_eq!(run(&[1.0, 3.0, 2.0, 3.0, 0.0], 0.0, 1), [1]);
    }

    #[test]
    fn a_row_does_not_depend_on_the_others_nor_on_the_threads() {
        let logits: Vec<f32> = (0..5 * 20_000).map(|i| (i * 31 % 17) as f32 / 4.0).collect();
        let together = run(&logits, 0.9, 1);
        assert_eq!(together, run(&logits, 0.9, 4));
        assert_eq!(together[..10], run(&logits[..50], 0.9, 1));
    }
}
