//! Attention over latents against a naive reference in f64, on random steps.

use half::bf16;
use proptest::prelude::*;

use super::super::*;
use crate::columns::Columns;
use crate::latents::{LatentNorm, append};
use crate::step::Step;

const EPSILON: f32 = 1e-6;
const SCALE: f32 = 0.3;

#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    rank: usize,
    turned: usize,
    block: usize,
    /// Numbers between the latents of two neighbouring blocks.
    beside: usize,
}

impl Sizes {
    fn heads(self) -> Heads {
        let dim = self.rank + self.turned;
        Heads {
            query: self.heads,
            kv: 1,
            dim,
            block_size: self.block,
            stride: self.block * dim + self.beside,
        }
    }
}

/// One sequence, all of whose tokens have queries, in scattered pages.
struct Case<T> {
    sizes: Sizes,
    tokens: usize,
    pages: Vec<i32>,
    absorbed: Vec<T>,
    rotating: Vec<T>,
    rows: Vec<T>,
    weight: Vec<T>,
    angles: Vec<f32>,
    temperatures: Vec<f32>,
}

impl<T: Element> Case<T> {
    fn new(sizes: Sizes, tokens: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut float = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let Sizes { heads, rank, turned, block, .. } = sizes;
        let mut numbers = |count: usize| -> Vec<T> { (0..count).map(|_| T::from_f32(float())).collect() };
        let angles = numbers(tokens * turned).iter().map(|angle| angle.to_f32()).collect();
        let count = tokens.div_ceil(block) as i32;
        Self {
            sizes,
            tokens,
            // Backwards, and the first page of the cache is nobody's.
            pages: (1..=count).rev().collect(),
            absorbed: numbers(tokens * heads * rank),
            rotating: numbers(tokens * heads * turned),
            rows: numbers(tokens * (rank + turned)),
            weight: numbers(rank),
            angles,
            temperatures: (0..tokens).map(|position| 1.0 + position as f32 / 100.0).collect(),
        }
    }

    /// The outputs of the last tokens, after a step for each of the `steps`, which say where theirs begin.
    fn run(&self, set: InstructionSet, threads: usize, steps: &[usize]) -> Vec<T> {
        let Sizes { heads, rank, turned, block, .. } = self.sizes;
        let (shape, dim) = (self.sizes.heads(), rank + turned);
        let threads = Threads::new(threads).unwrap();
        // Cells that no token has been written to are poison: reading one would show.
        let mut cache = vec![T::from_f32(f32::NAN); (self.pages.len() + 1) * shape.stride];
        let mut found = Vec::new();
        for (&first, end) in steps.iter().zip(steps[1..].iter().copied().chain([self.tokens])) {
            let slot = |at: usize| self.pages[at / block] * block as i32 + (at % block) as i32;
            let positions: Vec<i32> = (first as i32..end as i32).collect();
            let slots: Vec<i32> = (first..end).map(slot).collect();
            let step = Step {
                num_rows: 1,
                num_tokens: end - first,
                positions: &positions,
                slot_mapping: &slots,
                query_start: &[0, (end - first) as i32],
                kv_length: &[end as i32],
                page_indptr: &[0, end.div_ceil(block) as i32],
                page_indices: &self.pages,
            };
            step.check(block, self.pages.len() + 1, self.tokens).unwrap();
            let rows = Columns::new(&self.rows[first * dim..], dim, dim);
            let norm = LatentNorm { weight: &self.weight, epsilon: EPSILON };
            append(&threads, &step, shape, rows, norm, &self.angles, &Shared::new(&mut cache));
            let inputs = Inputs {
                step,
                heads: shape,
                scale: SCALE,
                mask: Mask { temperatures: &self.temperatures, ..Mask::default() },
                angles: &self.angles,
                source: Source::Latents(OfLatents {
                    absorbed: Columns::new(
                        &self.absorbed[first * heads * rank..],
                        heads * rank,
                        heads * rank,
                    ),
                    rotating: Columns::new(
                        &self.rotating[first * heads * turned..],
                        heads * turned,
                        heads * turned,
                    ),
                    latents: &cache,
                    rank,
                }),
            };
            let mut out = vec![T::from_f32(f32::NAN); (end - first) * heads * rank];
            attend_by(set, &threads, &inputs, &mut out);
            found.extend(out);
        }
        found
    }

    fn reference(&self) -> Vec<f64> {
        let Sizes { heads, rank, turned, .. } = self.sizes;
        let numbers = |of: &[T]| -> Vec<f64> { of.iter().map(|number| f64::from(number.to_f32())).collect() };
        let rotated = |of: &[T], position: usize| {
            let half = turned / 2;
            let (angles, of) = (&self.angles[position * turned..][..turned], numbers(of));
            let turn = |at: usize| (f64::from(angles[at % half]), f64::from(angles[half + at % half]));
            (0..turned)
                .map(|at| match (turn(at), at < half) {
                    ((cosine, sine), true) => of[at] * cosine - of[at + half] * sine,
                    ((cosine, sine), false) => of[at] * cosine + of[at - half] * sine,
                })
                .collect::<Vec<_>>()
        };
        let keys: Vec<Vec<f64>> = (0..self.tokens)
            .map(|token| {
                let row = &self.rows[token * (rank + turned)..][..rank + turned];
                let latent = numbers(&row[..rank]);
                let mean = latent.iter().map(|number| number * number).sum::<f64>() / rank as f64;
                let root = (mean + f64::from(EPSILON)).sqrt();
                let normed = latent.iter().zip(numbers(&self.weight)).map(|(number, by)| number / root * by);
                normed.chain(rotated(&row[rank..], token)).collect()
            })
            .collect();
        let mut out = Vec::new();
        for token in 0..self.tokens {
            for head in 0..heads {
                let place = token * heads + head;
                let mut query = numbers(&self.absorbed[place * rank..][..rank]);
                query.extend(rotated(&self.rotating[place * turned..][..turned], token));
                let scale = f64::from(SCALE) * f64::from(self.temperatures[token]);
                let scores: Vec<f64> = keys[..=token]
                    .iter()
                    .map(|key| key.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>() * scale)
                    .collect();
                let top = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..rank).map(|d| {
                    weights.iter().zip(&keys).map(|(weight, key)| weight * key[d]).sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

fn bits<T: Element>(of: Vec<T>) -> Vec<u32> {
    of.into_iter().map(|number| number.to_f32().to_bits()).collect()
}

fn cases() -> impl Strategy<Value = (Sizes, usize, u64)> {
    let sizes = (1usize..=20, 1usize..=6, 1usize..=4, 0u32..=5, 0usize..20).prop_map(
        |(heads, eighths, pairs, log, beside)| Sizes {
            heads,
            rank: 8 * eighths,
            turned: 2 * pairs,
            block: 1 << log,
            beside,
        },
    );
    (sizes, 1usize..180, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_reference((sizes, tokens, seed) in cases()) {
        let case = Case::<f32>::new(sizes, tokens, seed);
        let reference = case.reference();
        for set in InstructionSet::all_here() {
            for (got, expected) in case.run(set, 2, &[0]).iter().zip(&reference) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-4, "{:?}: {} {}", set, got, expected);
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_steps_and_threads((sizes, tokens, seed) in cases(), cut in 1usize..60) {
        let steps: Vec<usize> = (0..tokens).step_by(cut).collect();
        let floats = Case::<f32>::new(sizes, tokens, seed);
        let halves = Case::<bf16>::new(sizes, tokens, seed);
        for set in InstructionSet::all_here() {
            prop_assert!(bits(floats.run(set, 1, &[0])) == bits(floats.run(set, 3, &steps)), "{:?}", set);
            prop_assert!(bits(halves.run(set, 1, &[0])) == bits(halves.run(set, 3, &steps)), "{:?}", set);
        }
    }
}

#[test]
fn segments_side_by_side_are_the_same_as_one_after_the_other() {
    let sizes = Sizes { heads: 3, rank: 16, turned: 4, block: 16, beside: 0 };
    let case = Case::<bf16>::new(sizes, 2_300, 7);
    let last: Vec<usize> = vec![0, 2_299];
    for set in InstructionSet::all_here() {
        assert!(bits(case.run(set, 1, &last)) == bits(case.run(set, 8, &last)), "{set:?}");
    }
}
