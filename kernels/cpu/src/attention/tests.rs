//! Attention against a naive reference in f64, on random steps.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::paged::append;
use crate::rope::rotate;
use crate::step::Step;
use crate::threads::Shared;

mod latents;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn float(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0
    }
}

/// Sequences of (cached, new) tokens in a cache of scattered blocks.
struct Case<T> {
    heads: Heads,
    rows: Vec<(usize, usize)>,
    /// Rotated keys and values of each sequence, \[token\]\[kv head\]\[dim\].
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    key_cache: Vec<T>,
    value_cache: Vec<T>,
    qkv: Vec<T>,
    angles: Vec<f32>,
    positions: Vec<i32>,
    slot_mapping: Vec<i32>,
    query_start: Vec<i32>,
    kv_length: Vec<i32>,
    page_indptr: Vec<i32>,
    page_indices: Vec<i32>,
}

impl<T: Element> Case<T> {
    fn new(heads: Heads, rows: Vec<(usize, usize)>, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let one = Threads::new(1).unwrap();
        let pages: Vec<usize> = rows.iter().map(|(a, b)| (a + b).div_ceil(heads.block_size)).collect();
        let num_blocks = pages.iter().sum::<usize>() + 3;
        let mut blocks: Vec<i32> = (0..num_blocks as i32).collect();
        for i in (1..num_blocks).rev() {
            blocks.swap(i, numbers.below(i + 1));
        }
        // Cells that no token has been written to are poison: reading one would show.
        let poison = T::from_f32(f32::NAN);
        let context = rows.iter().map(|(a, b)| a + b).max().unwrap();
        let mut case = Self {
            heads,
            keys: Vec::new(),
            values: Vec::new(),
            key_cache: vec![poison; num_blocks * heads.stride],
            value_cache: vec![poison; num_blocks * heads.stride],
            qkv: Vec::new(),
            angles: (0..context * heads.dim).map(|_| numbers.float()).collect(),
            positions: Vec::new(),
            slot_mapping: Vec::new(),
            query_start: vec![0],
            kv_length: rows.iter().map(|(a, b)| (a + b) as i32).collect(),
            page_indptr: vec![0],
            page_indices: blocks[..num_blocks - 3].to_vec(),
            rows,
        };
        let mut first_page = 0;
        for (row, &(cached, new)) in case.rows.clone().iter().enumerate() {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for position in 0..cached + new {
                let token: Vec<T> =
                    (0..heads.qkv_width()).map(|_| T::from_f32(3.0 * numbers.float())).collect();
                let block = case.page_indices[first_page + position / heads.block_size] as usize;
                let slot = (block * heads.block_size + position % heads.block_size) as i32;
                let angles = &case.angles[position * heads.dim..][..heads.dim];
                for head in 0..heads.kv {
                    let mut rotated = vec![0.0; heads.dim];
                    let key = &token[(heads.query + head) * heads.dim..][..heads.dim];
                    rotate::<T, false>(key, angles, 1.0, &mut rotated);
                    keys.extend(rotated.iter().map(|&x| T::from_f32(x).to_f32()));
                    let value = &token[(heads.query + heads.kv + head) * heads.dim..][..heads.dim];
                    values.extend(value.iter().map(|x| x.to_f32()));
                }
                if position < cached {
                    let step = Step {
                        num_rows: 0,
                        num_tokens: 1,
                        positions: &[position as i32],
                        slot_mapping: &[slot],
                        ..case.step()
                    };
                    let (k, v) = (case.key_cache.clone(), case.value_cache.clone());
                    let (mut k, mut v) = (k, v);
                    append(
                        &one,
                        &step,
                        heads,
                        &token,
                        &case.angles,
                        &Shared::new(&mut k),
                        &Shared::new(&mut v),
                    );
                    (case.key_cache, case.value_cache) = (k, v);
                } else {
                    case.qkv.extend(token);
                    case.positions.push(position as i32);
                    case.slot_mapping.push(slot);
                }
            }
            case.keys.push(keys);
            case.values.push(values);
            case.query_start.push(case.positions.len() as i32);
            first_page += pages[row];
            case.page_indptr.push(first_page as i32);
        }
        case
    }

    fn step(&self) -> Step<'_> {
        Step {
            num_rows: self.rows.len(),
            num_tokens: self.positions.len(),
            positions: &self.positions,
            slot_mapping: &self.slot_mapping,
            query_start: &self.query_start,
            kv_length: &self.kv_length,
            page_indptr: &self.page_indptr,
            page_indices: &self.page_indices,
        }
    }

    fn run(&self, threads: usize) -> Vec<T> {
        self.run_masked(threads, Mask::default())
    }

    fn run_masked(&self, threads: usize, mask: Mask<'_>) -> Vec<T> {
        self.run_by(InstructionSet::best(), threads, mask)
    }

    fn run_by(&self, set: InstructionSet, threads: usize, mask: Mask<'_>) -> Vec<T> {
        let (mut keys, mut values) = (self.key_cache.clone(), self.value_cache.clone());
        let step = self.step();
        let blocks = keys.len() / self.heads.stride;
        step.check(self.heads.block_size, blocks, self.angles.len() / self.heads.dim).unwrap();
        let threads = Threads::new(threads).unwrap();
        append(
            &threads,
            &step,
            self.heads,
            &self.qkv,
            &self.angles,
            &Shared::new(&mut keys),
            &Shared::new(&mut values),
        );
        let mut out = vec![T::from_f32(f32::NAN); step.num_tokens * self.heads.query * self.heads.dim];
        let inputs = Inputs {
            step,
            heads: self.heads,
            scale: SCALE,
            mask,
            angles: &self.angles,
            source: Source::Heads(OfHeads {
                qkv: &self.qkv,
                width: self.heads.qkv_width(),
                keys: &keys,
                values: &values,
            }),
        };
        attend_by(set, &threads, &inputs, &mut out);
        out
    }

    fn reference(&self, mask: Mask<'_>) -> Vec<f64> {
        let Heads { query, kv, dim, .. } = self.heads;
        let mut out = Vec::new();
        for (row, &(cached, new)) in self.rows.iter().enumerate() {
            for i in 0..new {
                let token = self.query_start[row] as usize + i;
                let angles = &self.angles[(cached + i) * dim..][..dim];
                for head in 0..query {
                    let mut q = vec![0.0; dim];
                    let source = &self.qkv[token * self.heads.qkv_width() + head * dim..][..dim];
                    let temperature = mask.temperatures.get(cached + i).copied().unwrap_or(1.0);
                    rotate::<T, false>(source, angles, SCALE * temperature, &mut q);
                    let at = |x: &[f32], t: usize, d: usize| {
                        f64::from(x[(t * kv + head / (query / kv)) * dim + d])
                    };
                    let window = mask.window.map_or(0, |window| (cached + i + 1).saturating_sub(window));
                    let first = mask.chunk.map_or(window, |chunk| (cached + i) / chunk * chunk);
                    let score =
                        |t| (0..dim).map(|d| f64::from(q[d]) * at(&self.keys[row], t, d)).sum::<f64>();
                    let capped = |score: f64| match mask.soft_cap.map(f64::from) {
                        Some(cap) => cap * (score / cap).tanh(),
                        None => score,
                    };
                    let scores: Vec<f64> = (first..=cached + i).map(|t| capped(score(t))).collect();
                    let sink = mask.sinks.get(head).map(|&sink| f64::from(sink));
                    let top = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
                    out.extend((0..dim).map(|d| {
                        let pairs = weights.iter().zip(first..);
                        pairs.map(|(w, t)| w * at(&self.values[row], t, d)).sum::<f64>() / sum
                    }));
                }
            }
        }
        out
    }
}

const SCALE: f32 = 0.3;

fn shapes() -> impl Strategy<Value = (Heads, Vec<(usize, usize)>, u64)> {
    let heads = (1usize..=3, 1usize..=5, 1usize..=9, 0u32..=5, 0usize..40).prop_map(
        |(kv, group, eighths, log, beside)| {
            let (dim, block_size) = (8 * eighths, 1 << log);
            Heads { query: kv * group, kv, dim, block_size, stride: kv * dim * block_size + beside }
        },
    );
    let rows = prop::collection::vec((0usize..300, 1usize..40), 1..5);
    (heads, rows, any::<u64>())
}

/// A window or the size of chunks, a soft cap, and whether there are sinks and temperatures.
fn masks() -> impl Strategy<Value = (Reach, Option<f32>, bool)> {
    let some = || (1usize..300).prop_map(Some);
    let reach = prop_oneof![Just((None, None)), (some(), Just(None)), (Just(None), some())];
    (reach, prop::option::of(0.5f32..20.0), any::<bool>())
}

/// Tokens of a window, and of chunks.
type Reach = (Option<usize>, Option<usize>);

fn temperatures(some: bool) -> Vec<f32> {
    (0..340).filter(|_| some).map(|position| 1.0 + position as f32 / 200.0).collect()
}

fn sinks(heads: Heads, some: bool) -> Vec<f32> {
    (0..heads.query).filter(|_| some).map(|head| head as f32 - 2.5).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_reference((heads, rows, seed) in shapes(), ((window, chunk), soft_cap, some) in masks()) {
        let case = Case::<f32>::new(heads, rows, seed);
        let sinks = sinks(heads, some);
        let temperatures = temperatures(some);
        let mask = Mask { window, chunk, soft_cap, sinks: &sinks, temperatures: &temperatures };
        let reference = case.reference(mask);
        for set in InstructionSet::all_here() {
            for (got, expected) in case.run_by(set, 2, mask).iter().zip(&reference) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-4, "{:?}: {} {}", set, got, expected);
            }
        }
    }

    #[test]
    fn pages_behind_the_window_may_be_left_out(
        (heads, rows, seed) in shapes(),
        ((window, chunk), soft_cap, some) in masks(),
        extra in 0usize..3,
    ) {
        let whole = Case::<f32>::new(heads, rows, seed);
        let sinks = sinks(heads, some);
        let temperatures = temperatures(some);
        let mask = Mask { window, chunk, soft_cap, sinks: &sinks, temperatures: &temperatures };
        let mut cut = Case::<f32>::new(heads, whole.rows.clone(), seed);
        (cut.page_indices, cut.page_indptr) = (Vec::new(), vec![0]);
        for (row, &(cached, _)) in whole.rows.iter().enumerate() {
            let behind = (cached + 1).saturating_sub(window.or(chunk).unwrap_or(usize::MAX)) / heads.block_size;
            let gone = behind.saturating_sub(extra);
            cut.page_indices.extend(&whole.step().pages(row)[gone..]);
            cut.page_indptr.push(cut.page_indices.len() as i32);
            cut.kv_length[row] -= (gone * heads.block_size) as i32;
        }
        prop_assert_eq!(bits(cut.run_masked(1, mask)), bits(whole.run_masked(2, mask)));
    }

    #[test]
    fn equals_the_reference_in_bf16((heads, rows, seed) in shapes()) {
        let case = Case::<bf16>::new(heads, rows, seed);
        for (got, expected) in case.run(2).iter().zip(case.reference(Mask::default())) {
            prop_assert!((f64::from(got.to_f32()) - expected).abs() < 0.02, "{} {}", got, expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_the_same_alone_and_in_company(
        (heads, rows, seed) in shapes(),
        ((window, chunk), soft_cap, some) in masks(),
    ) {
        let sinks = sinks(heads, some);
        let temperatures = temperatures(some);
        let mask = Mask { window, chunk, soft_cap, sinks: &sinks, temperatures: &temperatures };
        let floats = Case::<f32>::new(heads, rows.clone(), seed);
        let halves = Case::<bf16>::new(heads, rows, seed);
        for set in InstructionSet::all_here() {
            prop_assert!(floats.alone(set, mask) == bits(floats.run_by(set, 3, mask)), "{:?}", set);
            prop_assert!(halves.alone(set, mask) == bits(halves.run_by(set, 3, mask)), "{:?}", set);
        }
    }
}

/// The bits of numbers of either type.
fn bits<T: Element>(of: Vec<T>) -> Vec<u32> {
    of.into_iter().map(|number| number.to_f32().to_bits()).collect()
}

impl<T: Element> Case<T> {
    /// The bits of every token's output when it is computed alone, after all tokens before it.
    fn alone(&self, set: InstructionSet, mask: Mask<'_>) -> Vec<u32> {
        let one = Threads::new(1).unwrap();
        let (mut keys, mut values) = (self.key_cache.clone(), self.value_cache.clone());
        append(
            &one,
            &self.step(),
            self.heads,
            &self.qkv,
            &self.angles,
            &Shared::new(&mut keys),
            &Shared::new(&mut values),
        );
        let mut found = Vec::new();
        for row in 0..self.rows.len() {
            let step = self.step();
            for token in step.tokens(row) {
                let length = self.positions[token] + 1;
                let pages = step.pages(row);
                let inputs = Inputs {
                    step: Step {
                        num_rows: 1,
                        num_tokens: 1,
                        positions: &self.positions[token..],
                        slot_mapping: &self.slot_mapping[token..],
                        query_start: &[0, 1],
                        kv_length: &[length],
                        page_indptr: &[0, pages.len() as i32],
                        page_indices: pages,
                    },
                    heads: self.heads,
                    scale: SCALE,
                    mask,
                    angles: &self.angles,
                    source: Source::Heads(OfHeads {
                        qkv: &self.qkv[token * self.heads.qkv_width()..],
                        width: self.heads.qkv_width(),
                        keys: &keys,
                        values: &values,
                    }),
                };
                let mut out = vec![T::ZERO; self.heads.query * self.heads.dim];
                attend_by(set, &one, &inputs, &mut out);
                found.extend(bits(out));
            }
        }
        found
    }
}

#[test]
fn segments_side_by_side_are_the_same_as_one_after_the_other() {
    let heads = Heads { query: 4, kv: 2, dim: 48, block_size: 16, stride: 2 * 48 * 16 };
    let case = Case::<bf16>::new(heads, vec![(2_300, 3), (40, 1)], 7);
    let sinks = sinks(heads, true);
    for window in [None, Some(1_500)] {
        let mask = Mask { window, sinks: &sinks, ..Mask::default() };
        for set in InstructionSet::all_here() {
            let one = bits(case.run_by(set, 1, mask));
            assert!(one == bits(case.run_by(set, 8, mask)) && one == case.alone(set, mask), "{set:?}");
        }
        for (got, expected) in case.run_masked(8, mask).iter().zip(case.reference(mask)) {
            assert!((f64::from(got.to_f32()) - expected).abs() < 0.02, "{got} {expected}");
        }
    }
}
