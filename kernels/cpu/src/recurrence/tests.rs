//! Recurrences against models in f64, and their bits in random steps.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::columns::Columns;
use crate::isa::InstructionSet;
use crate::states::simulation::{Layer, Numbers, alone, check_company};

/// What is left of each row of a matrix.
type Decay<'a> = Box<dyn Fn(usize) -> f64 + 'a>;

/// What a layer does.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Delta { bound: Option<f32> },
    StateSpace,
    Lightning,
}

/// A layer with parameters that look random, and inputs in one buffer.
struct Test<T> {
    kind: Kind,
    shape: Shape,
    set: InstructionSet,
    rates: Vec<f32>,
    bias: Vec<f32>,
    skip: Vec<f32>,
    _type: std::marker::PhantomData<T>,
}

const SCALE: f32 = 0.3;
const LIMITS: [f32; 2] = [0.1, 1.5];

impl<T: Element> Test<T> {
    fn new(kind: Kind, shape: Shape) -> Self {
        let mut numbers = Numbers(shape.matrix() as u64);
        Self {
            kind,
            shape,
            set: InstructionSet::best(),
            rates: (0..shape.heads * shape.decays).map(|_| 1.5 + numbers.float()).collect(),
            bias: numbers.floats(shape.heads * shape.decays),
            skip: numbers.floats(shape.heads),
            _type: std::marker::PhantomData,
        }
    }

    /// Widths of queries, keys, values, gates and betas.
    fn widths(&self) -> [usize; 5] {
        let Shape { heads, key_heads, key_dim, value_dim, decays } = self.shape;
        [key_heads * key_dim, key_heads * key_dim, heads * value_dim, heads * decays, heads]
    }

    fn inputs(&self, token: u64) -> [Vec<f32>; 5] {
        let mut numbers = Numbers(token);
        self.widths().map(|width| (0..width).map(|_| T::from_f32(2.0 * numbers.float()).to_f32()).collect())
    }

    /// All tokens of a sequence in f64.
    fn exact(&self, tokens: &[u64]) -> Vec<f64> {
        let Shape { heads, key_dim, value_dim, decays, .. } = self.shape;
        let mut states = vec![vec![0.0f64; key_dim * value_dim]; heads];
        let mut outputs = Vec::new();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for &token in tokens {
            let [queries, keys, values, gates, betas] =
                self.inputs(token).map(|numbers| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
            for (head, state) in states.iter_mut().enumerate() {
                let start = self.shape.key_head(head) * key_dim;
                let (query, key) = (&queries[start..][..key_dim], &keys[start..][..key_dim]);
                let value = &values[head * value_dim..][..value_dim];
                let length = |of: &[f64]| (of.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                let rate = f64::from(self.rates[head]);
                let gate = |row: usize| {
                    let at = head * decays + row % decays;
                    gates[at] + f64::from(self.bias[at])
                };
                let (lengths, taken, decay): (_, f64, Decay<'_>) = match self.kind {
                    Kind::Delta { bound: None } => (
                        [length(query), length(key)],
                        2.0 * sigmoid(betas[head]),
                        Box::new(move |row| (-rate * gate(row).exp().ln_1p()).exp()),
                    ),
                    Kind::Delta { bound: Some(bound) } => (
                        [length(query), length(key)],
                        2.0 * sigmoid(betas[head]),
                        Box::new(move |row| (f64::from(bound) * sigmoid(rate * gate(row))).exp()),
                    ),
                    Kind::StateSpace => {
                        let step = (betas[head] + f64::from(self.bias[head])).exp().ln_1p();
                        let step = step.clamp(LIMITS[0].into(), LIMITS[1].into());
                        let rates = &self.rates[head * decays..];
                        (
                            [1.0, 1.0],
                            step,
                            Box::new(move |row| (-f64::from(rates[row % decays]) * step).exp()),
                        )
                    }
                    Kind::Lightning => ([1.0, 1.0], 1.0, Box::new(move |_| (-rate).exp())),
                };
                let delta = matches!(self.kind, Kind::Delta { .. });
                for (column, value) in value.iter().enumerate() {
                    let at = |row: usize| row * value_dim + column;
                    (0..key_dim).for_each(|row| state[at(row)] *= decay(row));
                    let known: f64 = (0..key_dim).map(|row| state[at(row)] * key[row] / lengths[1]).sum();
                    let new = taken * (if delta { value - known } else { *value });
                    (0..key_dim).for_each(|row| state[at(row)] += key[row] / lengths[1] * new);
                    let read: f64 = (0..key_dim).map(|row| state[at(row)] * query[row] / lengths[0]).sum();
                    let skip =
                        if matches!(self.kind, Kind::StateSpace) { self.skip[head].into() } else { 0.0 };
                    outputs.push(f64::from(SCALE) * read + skip * value);
                }
            }
        }
        outputs
    }
}

impl<T: Element> Layer for Test<T> {
    fn sizes(&self) -> (usize, usize, usize) {
        (self.shape.state_size(), self.shape.draft_size(), self.shape.heads * self.shape.value_dim)
    }

    fn run(
        &self,
        threads: &Threads,
        states: &States<'_>,
        pool: &Pool<'_>,
        place: Place,
        tokens: &[u64],
    ) -> Vec<f32> {
        let widths = self.widths();
        let stride = widths.iter().sum();
        let numbers: Vec<T> =
            tokens.iter().flat_map(|&token| self.inputs(token).concat()).map(T::from_f32).collect();
        let mut start = 0;
        let [queries, keys, values, gates, betas] = widths.map(|width| {
            start += width;
            Columns::new(numbers.get(start - width..).unwrap_or_default(), width, stride)
        });
        let Self { shape, set, rates, bias, skip, .. } = self;
        let mut out = vec![T::ZERO; tokens.len() * self.sizes().2];
        match self.kind {
            Kind::Delta { bound } => DeltaRule {
                shape: *shape,
                rates: &rates[..shape.heads],
                bias,
                bound,
                scale: SCALE,
                strength: 2.0,
            }
            .run(
                *set,
                threads,
                states,
                pool,
                place,
                &DeltaRuleInputs { queries, keys, values, gates, betas },
                &mut out,
            ),
            kind => {
                let space = matches!(kind, Kind::StateSpace);
                let (bias, skip) = if space { (&bias[..shape.heads], &skip[..]) } else { (&[][..], &[][..]) };
                DecaySum { shape: *shape, rates, bias, limits: LIMITS, skip, scale: SCALE }.run(
                    *set,
                    threads,
                    states,
                    pool,
                    place,
                    &DecaySumInputs { queries, keys, values, steps: space.then_some(betas) },
                    &mut out,
                );
            }
        }
        out.iter().map(|number| number.to_f32()).collect()
    }
}

const KINDS: [Kind; 4] =
    [Kind::Delta { bound: None }, Kind::Delta { bound: Some(-3.0) }, Kind::StateSpace, Kind::Lightning];

/// Shapes with whole tiles, with parts of them, and with an odd number of rows.
fn shapes(kind: Kind) -> Vec<Shape> {
    let sizes = [(4, 2, 32, 128), (2, 2, 16, 80), (3, 1, 7, 21), (1, 1, 5, 4)];
    let mut shapes: Vec<_> = sizes
        .map(|(heads, key_heads, key_dim, value_dim)| Shape {
            heads,
            key_heads,
            key_dim,
            value_dim,
            decays: 1,
        })
        .into();
    if !matches!(kind, Kind::Lightning) {
        shapes.extend(shapes.clone().into_iter().map(|shape| Shape { decays: shape.key_dim, ..shape }));
    }
    shapes
}

#[test]
fn numbers_are_close_to_exact_ones() {
    for kind in KINDS {
        for shape in shapes(kind) {
            let layer = Test::<f32>::new(kind, shape);
            let tokens: Vec<u64> = (0..40).map(|token| token * 977 + 5).collect();
            let (outputs, _) = alone(&layer, &tokens);
            for (got, expected) in outputs.iter().zip(layer.exact(&tokens)) {
                let error = (f64::from(*got) - expected).abs();
                assert!(
                    error <= 2e-5 * (1.0 + expected.abs()),
                    "{kind:?} {shape:?}: {got}, exactly {expected}"
                );
            }
        }
    }
}

#[test]
fn instruction_sets_that_fuse_give_the_same_bits() {
    let tokens: Vec<u64> = (0..9).map(|token| token * 977 + 5).collect();
    for kind in KINDS {
        for shape in shapes(kind) {
            let outputs = |set| alone(&Test::<f32> { set, ..Test::new(kind, shape) }, &tokens);
            let fused = InstructionSet::all_here().filter(|&set| set >= InstructionSet::Avx2);
            let all: Vec<_> = fused.map(outputs).collect();
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{kind:?} {shape:?}");
        }
    }
}

#[test]
fn the_portable_loops_do_the_same() {
    let tokens: Vec<u64> = (0..9).map(|token| token * 977 + 5).collect();
    for kind in KINDS {
        for shape in shapes(kind) {
            let layer = Test::<f32> { set: InstructionSet::Portable, ..Test::new(kind, shape) };
            for (got, expected) in alone(&layer, &tokens).0.iter().zip(layer.exact(&tokens)) {
                assert!((f64::from(*got) - expected).abs() <= 2e-5 * (1.0 + expected.abs()));
            }
        }
    }
}

#[test]
fn what_is_not_a_number_is_seen() {
    let shape = Shape { heads: 1, key_heads: 1, key_dim: 4, value_dim: 4, decays: 1 };
    for kind in KINDS {
        let mut layer = Test::<f32>::new(kind, shape);
        layer.rates[0] = f32::NAN;
        // The first token meets a state of zeros, which stay zeros whatever they are multiplied with but for NaN.
        assert!(alone(&layer, &[1, 2]).0.iter().all(|number| number.is_nan()), "{kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn bits_do_not_depend_on_company(seed: u64, kind in 0..KINDS.len(), shape in 0usize..8) {
        let kind = KINDS[kind];
        let shapes = shapes(kind);
        let shape = shapes[shape % shapes.len()];
        check_company(&Test::<f32>::new(kind, shape), seed);
        check_company(&Test::<bf16>::new(kind, shape), seed);
    }
}
