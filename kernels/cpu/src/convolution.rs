//! The short causal convolution before a recurrence: each channel by itself, over the last few tokens.
//!
//! ```text
//! token t of a channel   bias + w[0] x[t-3] + w[1] x[t-2] + w[2] x[t-1] + w[3] x[t]         kernel 4
//! state                         x[t-3..t], of the tokens before the row's first one; zeros before the sequence
//! ```
//!
//! The state is \[kernel - 1, channels\], the oldest inputs first; a draft keeps its inputs, \[channels\]. Each number is
//! one chain of additions from the oldest input on. O(tokens * channels * kernel).

use std::cell::RefCell;

use crate::activation::silu;
use crate::columns::Columns;
use crate::element::Element;
use crate::math::mul_add;
use crate::states::{Place, Pool, Row, States};
use crate::threads::{Shared, Threads};

/// Channels that a thread takes at a time.
const BLOCK: usize = 256;

/// The weights of one layer's convolution.
#[derive(Debug, Clone)]
pub struct Convolution {
    channels: usize,
    /// \[kernel, channels\].
    taps: Vec<f32>,
    /// \[channels\], or nothing.
    bias: Vec<f32>,
    silu: bool,
}

impl Convolution {
    /// From `weight`, \[channels, kernel\], and `bias`, \[channels\] or nothing; with or without a SiLU behind it.
    ///
    /// # Panics
    /// The weight does not have whole channels, or the bias not as many.
    pub fn new<T: Element>(weight: &[T], channels: usize, bias: &[T], silu: bool) -> Self {
        assert!(
            channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels),
            "whole channels"
        );
        assert!(bias.is_empty() || bias.len() == channels, "a bias for each channel");
        let kernel = weight.len() / channels;
        let tap = |tap: usize| weight.iter().skip(tap).step_by(kernel).map(|weight| weight.to_f32());
        let taps = (0..kernel).flat_map(tap).collect();
        Self { channels, taps, bias: bias.iter().map(|bias| bias.to_f32()).collect(), silu }
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Numbers of a state.
    pub fn state_size(&self) -> usize {
        self.taps.len() - self.channels
    }

    /// The convolution of every token of the step, from `x`, \[tokens, channels\], into `out`, the same.
    ///
    /// Rounds as a model in `T` does: behind the convolution and behind the activation.
    ///
    /// # Panics
    /// A slice is shorter than the step needs; see [`States::check`] and [`Place::fits`].
    pub fn run<T: Element>(
        &self,
        threads: &Threads,
        states: &States<'_>,
        pool: &Pool<'_>,
        place: Place,
        x: Columns<'_, T>,
        out: &mut [T],
    ) {
        assert!(x.width() == self.channels, "a column for each channel");
        let blocks = self.channels.div_ceil(BLOCK);
        let operations = states.num_tokens * self.taps.len() * 2;
        let out = Shared::new(&mut out[..states.num_tokens * self.channels]);
        threads.share(states.num_rows * blocks, operations, |piece| {
            let Some(row) = states.row(piece / blocks) else { return };
            let first = piece % blocks * BLOCK;
            let count = BLOCK.min(self.channels - first);
            let block = Block { of: self, place, row, x, first, count };
            SCRATCH.with_borrow_mut(|Scratch { history, sums }| {
                // SAFETY: a row's slots are read and written by its pieces alone, each of which has its channels.
                unsafe { block.remember(pool, history) };
                sums.resize(count, 0.0);
                for token in 0..block.row.tokens.len() {
                    let start = (block.row.tokens.start + token) * self.channels + first;
                    // SAFETY: a token and channel is in one piece only.
                    convolve(&block, history, token, sums, unsafe { out.part(start, count) });
                }
                // SAFETY: as above.
                unsafe { block.keep(pool, history) };
            });
        });
    }
}

#[derive(Default)]
struct Scratch {
    history: Vec<f32>,
    sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Some channels of a row.
struct Block<'a, T> {
    of: &'a Convolution,
    place: Place,
    row: Row,
    x: Columns<'a, T>,
    first: usize,
    count: usize,
}

impl<T: Element> Block<'_, T> {
    /// Inputs before the row's tokens.
    fn before(&self) -> usize {
        self.of.state_size() / self.of.channels
    }

    /// The inputs of a token of the row.
    #[inline(always)]
    fn inputs(&self, token: usize) -> &[T] {
        &self.x.row(self.row.tokens.start + token)[self.first..][..self.count]
    }

    /// Where the inputs of this block lie in a state or in drafts that begin at `start`.
    fn at(&self, start: usize, inputs: usize) -> usize {
        start + inputs * self.of.channels + self.first
    }

    /// Fills `history`, \[kernel - 1, count\], with the inputs before the row's tokens: the last ones of the state and of
    /// the accepted drafts.
    ///
    /// # Safety
    /// No other thread writes this block of the row's slots.
    unsafe fn remember(&self, pool: &Pool<'_>, history: &mut Vec<f32>) {
        history.clear();
        for index in self.row.accepted..self.row.accepted + self.before() {
            // SAFETY: as the caller says.
            unsafe {
                match (index.checked_sub(self.before()), self.row.source) {
                    (Some(draft), _) => history.extend_from_slice(pool.read(
                        self.row.slot,
                        self.at(self.place.drafts, draft),
                        self.count,
                    )),
                    (None, Some(source)) => history.extend_from_slice(pool.read(
                        source,
                        self.at(self.place.state, index),
                        self.count,
                    )),
                    (None, None) => history.resize(history.len() + self.count, 0.0),
                }
            }
        }
    }

    /// Writes the state behind the certain tokens, the snapshot and the drafts.
    ///
    /// # Safety
    /// No other thread reads or writes this block of the row's slots.
    unsafe fn keep(&self, pool: &Pool<'_>, history: &[f32]) {
        for (slot, tokens) in self.row.snapshot.into_iter().chain([(self.row.slot, self.row.certain)]) {
            for index in 0..self.before() {
                // SAFETY: as the caller says.
                let to = unsafe { pool.write(slot, self.at(self.place.state, index), self.count) };
                match (tokens + index).checked_sub(self.before()) {
                    Some(token) => copy(self.inputs(token), to),
                    None => to.copy_from_slice(&history[(tokens + index) * self.count..][..self.count]),
                }
            }
        }
        for (draft, token) in (self.row.certain..self.row.tokens.len()).enumerate() {
            // SAFETY: as the caller says.
            let to = unsafe { pool.write(self.row.slot, self.at(self.place.drafts, draft), self.count) };
            copy(self.inputs(token), to);
        }
    }
}

fn copy<T: Element>(from: &[T], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
}

#[inline(always)]
fn convolve_body<T: Element, const FMA: bool>(
    block: &Block<'_, T>,
    history: &[f32],
    token: usize,
    sums: &mut [f32],
    out: &mut [T],
) {
    let &Block { of, first, count, .. } = block;
    match of.bias.is_empty() {
        true => sums.fill(0.0),
        false => sums.copy_from_slice(&of.bias[first..][..count]),
    }
    for (tap, weights) in of.taps.chunks_exact(of.channels).enumerate() {
        let weights = &weights[first..][..count];
        match (token + tap).checked_sub(block.before()) {
            Some(token) => add::<T, FMA>(sums, weights, block.inputs(token)),
            None => add::<f32, FMA>(sums, weights, &history[(token + tap) * count..][..count]),
        }
    }
    for (to, &sum) in out.iter_mut().zip(sums.iter()) {
        let sum = T::from_f32(sum);
        *to = if of.silu { T::from_f32(silu::<FMA>(sum.to_f32())) } else { sum };
    }
}

#[inline(always)]
fn add<T: Element, const FMA: bool>(sums: &mut [f32], weights: &[f32], inputs: &[T]) {
    for ((sum, &weight), input) in sums.iter_mut().zip(weights).zip(inputs) {
        *sum = mul_add::<FMA>(weight, input.to_f32(), *sum);
    }
}

crate::multiversion!(
    fn convolve<T: Element>(
        block: &Block<'_, T>, history: &[f32], token: usize, sums: &mut [f32], out: &mut [T],
    ) = convolve_body
);

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::states::simulation::{Layer, Numbers, alone, check_company};

    /// Inputs lie among other columns.
    struct Test<T>(Convolution, std::marker::PhantomData<T>);

    impl<T: Element> Test<T> {
        fn new(channels: usize, kernel: usize, bias: bool, silu: bool) -> Self {
            let mut numbers = Numbers(channels as u64);
            let weight = numbers.floats(channels * kernel);
            let bias = numbers.floats(if bias { channels } else { 0 });
            Self(Convolution::new(&weight, channels, &bias, silu), std::marker::PhantomData)
        }

        fn inputs(&self, token: u64) -> Vec<f32> {
            let mut numbers = Numbers(token);
            (0..self.0.channels()).map(|_| T::from_f32(numbers.float()).to_f32()).collect()
        }
    }

    impl<T: Element> Layer for Test<T> {
        fn sizes(&self) -> (usize, usize, usize) {
            (self.0.state_size(), self.0.channels(), self.0.channels())
        }

        fn run(
            &self,
            threads: &Threads,
            states: &States<'_>,
            pool: &Pool<'_>,
            place: Place,
            tokens: &[u64],
        ) -> Vec<f32> {
            let (channels, stride) = (self.0.channels(), self.0.channels() + 3);
            let mut x = vec![T::from_f32(f32::NAN); 2 + tokens.len() * stride];
            for (row, &token) in x[2..].chunks_mut(stride).zip(tokens) {
                row.iter_mut().zip(self.inputs(token)).for_each(|(to, from)| *to = T::from_f32(from));
            }
            let mut out = vec![T::ZERO; tokens.len() * channels];
            self.0.run(threads, states, pool, place, Columns::new(&x[2..], channels, stride), &mut out);
            out.iter().map(|number| number.to_f32()).collect()
        }
    }

    #[test]
    fn a_sum_over_the_last_tokens() {
        for (channels, kernel, bias, silu) in
            [(300, 4, true, true), (17, 3, false, false), (5, 1, true, false)]
        {
            let layer = Test::<f32>::new(channels, kernel, bias, silu);
            let tokens: Vec<u64> = (100..109).collect();
            let (outputs, _) = alone(&layer, &tokens);
            let inputs: Vec<_> = tokens.iter().map(|&token| layer.inputs(token)).collect();
            for (token, outputs) in outputs.chunks(channels).enumerate() {
                for (channel, &got) in outputs.iter().enumerate() {
                    let mut sum = layer.0.bias.get(channel).map_or(0.0, |&bias| f64::from(bias));
                    for tap in 0..kernel {
                        if let Some(at) = (token + tap).checked_sub(kernel - 1) {
                            let weight = layer.0.taps[tap * channels + channel];
                            sum += f64::from(weight) * f64::from(inputs[at][channel]);
                        }
                    }
                    let expected = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
                    assert!((f64::from(got) - expected).abs() < 1e-6, "{got}, exactly {expected}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn bits_do_not_depend_on_company(seed: u64, channels in 1usize..600, kernel in 1usize..6, bias: bool) {
            check_company(&Test::<f32>::new(channels, kernel, bias, !bias), seed);
            check_company(&Test::<bf16>::new(channels, kernel, bias, bias), seed);
        }
    }
}
