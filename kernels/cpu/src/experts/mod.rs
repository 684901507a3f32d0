//! Mixtures of experts (Shazeer et al., "Outrageously Large Neural Networks", 2017): each token goes through a few of
//! many feed-forward layers.
//!
//! ```text
//!  rows    0: experts 1, 4      sorted by expert     1: rows 0, 2     a product a piece, on the rows of one expert
//!          1: experts 0, 4      ───────────────►     4: rows 0, 1     ───────────────► weighted, summed by row
//! ```
//!
//! Experts that no row chose are not read. A row's sum goes by the number of its experts, so that it is the same
//! bits whatever other rows there are.

mod router;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::activation::{self, Activation};
use crate::element::Element;
use crate::linear::{Linear, linear};
use crate::threads::Threads;
pub use router::Router;

/// The feed-forward layers of experts.
pub struct Layers<'a> {
    /// The number of the first one: others may be elsewhere.
    pub first: usize,
    /// Gates, then ups of each expert: \[2 * inner, hidden\]; or ups alone, \[inner, hidden\].
    pub gate_up: Vec<&'a Linear>,
    /// \[hidden, inner\].
    pub down: Vec<&'a Linear>,
    /// The activation of gates, or of ups alone.
    pub activation: Activation,
    /// Weights multiply what goes into an expert, in place of what comes out (Meta, "Llama 4", 2025).
    pub weighs_inputs: bool,
}

/// `x` \[rows, hidden\] through those of the experts that `logits` \[rows, experts\] choose which have layers here, into
/// `out` \[rows, hidden\]. `routed` has a number for each expert, here or elsewhere, to which its rows are added.
///
/// O(rows * chosen * hidden * inner).
///
/// # Panics
/// The slices do not have the same number of whole rows, or there are layers of experts that are not.
pub fn experts<T: Element>(
    threads: &Threads,
    layers: &Layers<'_>,
    router: &Router,
    logits: &[T],
    x: &[T],
    out: &mut [T],
    routed: &[AtomicU64],
) {
    let (count, hidden) = (routed.len(), layers.gate_up[0].inputs());
    let rows = x.len() / hidden;
    assert!(logits.len() == rows * count && out.len() == x.len(), "whole rows");
    let here = layers.first..layers.first + layers.gate_up.len();
    assert!(here.end <= count, "layers of experts that there are");
    let mut routes: Vec<Vec<(usize, f32)>> = vec![Vec::new(); count];
    let (mut scores, mut chosen) = (Vec::new(), Vec::new());
    for row in 0..rows {
        scores.clear();
        scores.extend(logits[row * count..][..count].iter().map(|score| score.to_f32()));
        router.choose(&mut scores, &mut chosen);
        for &(expert, weight) in &chosen {
            routes[expert].push((row, weight));
        }
    }
    let mut sums = vec![0.0f32; x.len()];
    let (mut given, mut gates, mut inner, mut results) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (expert, routes) in routes.iter().enumerate().filter(|(_, routes)| !routes.is_empty()) {
        // Others only read the number, at any time.
        routed[expert].fetch_add(routes.len() as u64, Ordering::Relaxed);
        if !here.contains(&expert) {
            continue;
        }
        let at = expert - here.start;
        let (gate_up, down) = (layers.gate_up[at], layers.down[at]);
        given.clear();
        for &(row, weight) in routes {
            let x = &x[row * hidden..][..hidden];
            if layers.weighs_inputs {
                given.extend(x.iter().map(|x| T::from_f32(x.to_f32() * weight)));
            } else {
                given.extend_from_slice(x);
            }
        }
        gates.resize(routes.len() * gate_up.outputs(), T::ZERO);
        inner.resize(routes.len() * down.inputs(), T::ZERO);
        results.resize(given.len(), 0.0f32);
        linear(threads, gate_up, &given, &mut gates);
        let activate = if gate_up.outputs() == down.inputs() { activation::plain } else { activation::gated };
        activate(threads, layers.activation, &gates, down.inputs(), &mut inner);
        linear(threads, down, &inner, &mut results);
        for (&(row, weight), result) in routes.iter().zip(results.chunks_exact(hidden)) {
            let weight = if layers.weighs_inputs { 1.0 } else { weight };
            for (sum, result) in sums[row * hidden..][..hidden].iter_mut().zip(result) {
                *sum += weight * result;
            }
        }
    }
    for (to, sum) in out.iter_mut().zip(sums) {
        *to = T::from_f32(sum);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::element::Rows;

    const HIDDEN: usize = 12;
    const INNER: usize = 9;
    const EXPERTS: usize = 5;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 101) % 97) as f32 / 50.0 - 0.9).collect()
    }

    fn made() -> (Vec<Linear>, Vec<Linear>) {
        let dense =
            |weight: Vec<f32>, inputs, outputs| Linear::dense(Rows::Floats(&weight), &[], inputs, outputs);
        let gate_up = (0..EXPERTS).map(|e| dense(numbers(2 * INNER * HIDDEN, e), HIDDEN, 2 * INNER));
        let down = (0..EXPERTS).map(|e| dense(numbers(HIDDEN * INNER, e + 7), INNER, HIDDEN));
        (gate_up.collect(), down.collect())
    }

    /// By the experts of each range, whose results are added; and the rows of each expert.
    fn run_apart(ranges: &[Range<usize>], logits: &[f32], x: &[f32]) -> (Vec<f32>, Vec<u64>) {
        let mut sums = vec![0.0; x.len()];
        let mut counts = Vec::new();
        for range in ranges {
            let (out, routed) = run_some(range.clone(), logits, x);
            sums.iter_mut().zip(out).for_each(|(sum, out)| *sum += out);
            counts.push(routed);
        }
        assert!(counts.iter().all(|count| *count == counts[0]), "all of them count all experts");
        (sums, counts.remove(0))
    }

    fn run(logits: &[f32], x: &[f32]) -> Vec<f32> {
        run_some(0..EXPERTS, logits, x).0
    }

    fn run_some(range: Range<usize>, logits: &[f32], x: &[f32]) -> (Vec<f32>, Vec<u64>) {
        let (gate_up, down) = made();
        let layers = Layers {
            first: range.start,
            gate_up: gate_up[range.clone()].iter().collect(),
            down: down[range].iter().collect(),
            activation: Activation::Silu,
            weighs_inputs: false,
        };
        let router = Router { chosen: 2, scale: 1.0, normalized: true, ..Router::default() };
        let mut out = vec![0.0; x.len()];
        let routed: Vec<AtomicU64> = (0..EXPERTS).map(|_| AtomicU64::new(0)).collect();
        experts(&Threads::new(2).unwrap(), &layers, &router, logits, x, &mut out, &routed);
        (out, routed.into_iter().map(AtomicU64::into_inner).collect())
    }

    #[test]
    fn experts_here_and_elsewhere_are_all_together() {
        let (x, logits) = (numbers(40 * HIDDEN, 5), numbers(40 * EXPERTS, 11));
        let (whole, counts) = run_some(0..EXPERTS, &logits, &x);
        assert_eq!(counts.iter().sum::<u64>(), 40 * 2);
        for ranges in [[0..2, 2..EXPERTS], [0..4, 4..EXPERTS]] {
            let (apart, counts_apart) = run_apart(&ranges, &logits, &x);
            assert_eq!(counts_apart, counts);
            assert!(apart.iter().zip(&whole).all(|(apart, whole)| (apart - whole).abs() < 1e-5));
        }
    }

    #[test]
    fn a_row_is_the_weighted_sum_of_its_experts() {
        let (x, logits) = (numbers(HIDDEN, 3), [0.0, 3.0, -1.0, 2.0, 1.0]);
        let got = run(&logits, &x);
        let (gate_up, down) = made();
        let threads = Threads::new(1).unwrap();
        let weight = 1.0 / (1.0 + (2.0f32 - 3.0).exp());
        let mut expected = [0.0f32; HIDDEN];
        for (expert, weight) in [(1, weight), (3, 1.0 - weight)] {
            let (mut gates, mut inner, mut out) = ([0.0; 2 * INNER], [0.0f32; INNER], [0.0f32; HIDDEN]);
            linear(&threads, &gate_up[expert], &x, &mut gates);
            activation::gated(&threads, Activation::Silu, &gates, INNER, &mut inner);
            linear(&threads, &down[expert], &inner, &mut out);
            expected.iter_mut().zip(out).for_each(|(sum, out)| *sum += weight * out);
        }
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-5);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company() {
        let (x, logits) = (numbers(40 * HIDDEN, 5), numbers(40 * EXPERTS, 11));
        let together = run(&logits, &x);
        for row in 0..40 {
            let alone = run(&logits[row * EXPERTS..][..EXPERTS], &x[row * HIDDEN..][..HIDDEN]);
            assert_eq!(alone, together[row * HIDDEN..][..HIDDEN]);
        }
    }
}
