//! The gated delta rule (Yang et al., "Gated Delta Networks", 2024), with a decay for each head, or for each channel of
//! the key (Kimi Team, "Kimi Linear", 2025).
//!
//! ```text
//! q, k   of length 1 each; q times a scale
//! a      e^-(rate * softplus(gate + bias)), or e^(bound * sigmoid(rate * (gate + bias)))
//! b      sigmoid(beta) * strength
//! ```

use super::gates::{left, sigmoid, softplus};
use super::shape::Shape;
use super::token::Token;
use super::{Recurrence, tiles};
use crate::columns::Columns;
use crate::element::Element;
use crate::isa::InstructionSet;
use crate::math::mul_add;
use crate::norm::in_chains;
use crate::states::{Place, Pool, States};
use crate::threads::{Shared, Threads};

/// Added to the sum of squares of a query or a key.
const EPSILON: f32 = 1e-6;

/// A layer's delta rule.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'a> {
    /// Of its matrices.
    pub shape: Shape,
    /// \[heads\]: how fast each forgets.
    pub rates: &'a [f32],
    /// \[heads, decays\]: added to the gates.
    pub bias: &'a [f32],
    /// The least logarithm of a decay, below 0; None: there is no bound.
    pub bound: Option<f32>,
    /// Multiplies the queries.
    pub scale: f32,
    /// The largest rate that a value is taken in with: 1, or 2 where a state may change its sign.
    pub strength: f32,
}

/// What a step gives it.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRuleInputs<'a, T> {
    /// \[tokens, key heads * key dim\].
    pub queries: Columns<'a, T>,
    /// \[tokens, key heads * key dim\].
    pub keys: Columns<'a, T>,
    /// \[tokens, heads * value dim\].
    pub values: Columns<'a, T>,
    /// \[tokens, heads * decays\].
    pub gates: Columns<'a, T>,
    /// \[tokens, heads\].
    pub betas: Columns<'a, T>,
}

impl DeltaRule<'_> {
    /// Takes every token of the step into its row's state, and writes what it reads to `out`,
    /// \[tokens, heads * value dim\], by the kernels of an instruction set.
    ///
    /// # Panics
    /// A slice is shorter than the step needs; see [`States::check`] and [`Place::fits`].
    #[allow(clippy::too_many_arguments)]
    pub fn run<T: Element>(
        &self,
        set: InstructionSet,
        threads: &Threads,
        states: &States<'_>,
        pool: &Pool<'_>,
        place: Place,
        inputs: &DeltaRuleInputs<'_, T>,
        out: &mut [T],
    ) {
        let shape = self.shape;
        assert!(self.rates.len() == shape.heads && self.bias.len() == shape.heads * shape.decays, "gates");
        let out = Shared::new(&mut out[..states.num_tokens * shape.heads * shape.value_dim]);
        let prepare = |token: usize, head: usize, to: &mut Token| prepare(self, inputs, token, head, to);
        Recurrence { states, pool, place, shape, tiles: tiles::tiles(set, true), prepare, out }.run(threads);
    }
}

#[inline(always)]
fn prepare_body<T: Element, const FMA: bool>(
    of: &DeltaRule<'_>,
    inputs: &DeltaRuleInputs<'_, T>,
    token: usize,
    head: usize,
    to: &mut Token,
) {
    let Shape { key_dim, value_dim, decays, .. } = of.shape;
    let key_start = of.shape.key_head(head) * key_dim;
    let query = &inputs.queries.row(token)[key_start..][..key_dim];
    unit::<T, FMA>(query, of.scale, &mut to.query);
    unit::<T, FMA>(&inputs.keys.row(token)[key_start..][..key_dim], 1.0, &mut to.key);
    let values = &inputs.values.row(token)[head * value_dim..][..value_dim];
    to.value.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_f32());

    let gates = inputs.gates.row(token)[head * decays..][..decays].iter();
    let gates = gates.zip(&of.bias[head * decays..][..decays]).map(|(gate, bias)| gate.to_f32() + bias);
    let rate = of.rates[head];
    for (decay, gate) in to.decay.iter_mut().zip(gates) {
        *decay = left::<FMA>(match of.bound {
            None => rate * softplus::<FMA>(gate),
            Some(bound) => -bound * sigmoid::<FMA>(rate * gate),
        });
    }
    to.share_decay(decays);
    to.decay_key();
    let beta = T::from_f32(sigmoid::<FMA>(inputs.betas.row(token)[head].to_f32()));
    to.rate = beta.to_f32() * of.strength;
}

/// `numbers` times `scale`, over their length.
#[inline(always)]
fn unit<T: Element, const FMA: bool>(numbers: &[T], scale: f32, to: &mut [f32]) {
    let squares = in_chains(numbers, |sum, value| mul_add::<FMA>(value, value, sum));
    let factor = 1.0 / (squares + EPSILON).sqrt();
    to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_f32() * factor * scale);
}

crate::multiversion!(
    fn prepare<T: Element>(
        of: &DeltaRule<'_>, inputs: &DeltaRuleInputs<'_, T>, token: usize, head: usize, to: &mut Token,
    ) = prepare_body
);
