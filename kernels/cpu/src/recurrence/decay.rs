//! The decaying sum: the state space of Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024), and lightning attention
//! (Qin et al., "Lightning Attention-2", 2024), whose decay is a constant of the head. Mamba (Gu and Dao, 2023) has a
//! rate for each row of a matrix.
//!
//! ```text
//! Mamba, 2      q, k = C, B   a = e^-(rate * b)   b = softplus(step + bias), within limits   o = S^T q + skip * v
//! lightning     q, k          a = e^-rate         b = 1                                      o = S^T q
//! ```

use super::gates::{left, softplus};
use super::shape::Shape;
use super::token::Token;
use super::{Recurrence, tiles};
use crate::columns::Columns;
use crate::element::Element;
use crate::isa::InstructionSet;
use crate::states::{Place, Pool, States};
use crate::threads::{Shared, Threads};

/// A layer's decaying sum.
#[derive(Debug, Clone, Copy)]
pub struct DecaySum<'a> {
    /// Of its matrices.
    pub shape: Shape,
    /// \[heads, decays\]: how fast each forgets.
    pub rates: &'a [f32],
    /// \[heads\]: added to the steps; empty is 0.
    pub bias: &'a [f32],
    /// The smallest and the largest step.
    pub limits: [f32; 2],
    /// \[heads\]: how much of a value is added to what is read; empty is 0.
    pub skip: &'a [f32],
    /// Multiplies the queries.
    pub scale: f32,
}

/// What a step gives it.
#[derive(Debug, Clone, Copy)]
pub struct DecaySumInputs<'a, T> {
    /// \[tokens, key heads * key dim\].
    pub queries: Columns<'a, T>,
    /// \[tokens, key heads * key dim\].
    pub keys: Columns<'a, T>,
    /// \[tokens, heads * value dim\].
    pub values: Columns<'a, T>,
    /// \[tokens, heads\]; None: every step is 1.
    pub steps: Option<Columns<'a, T>>,
}

impl DecaySum<'_> {
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
        inputs: &DecaySumInputs<'_, T>,
        out: &mut [T],
    ) {
        let shape = self.shape;
        assert!(self.rates.len() == shape.heads * shape.decays, "one rate a decay");
        assert!(
            [self.bias, self.skip].iter().all(|of| of.is_empty() || of.len() == shape.heads),
            "one a head"
        );
        let out = Shared::new(&mut out[..states.num_tokens * shape.heads * shape.value_dim]);
        let prepare = |token: usize, head: usize, to: &mut Token| prepare(self, inputs, token, head, to);
        Recurrence { states, pool, place, shape, tiles: tiles::tiles(set, false), prepare, out }.run(threads);
    }
}

#[inline(always)]
fn prepare_body<T: Element, const FMA: bool>(
    of: &DecaySum<'_>,
    inputs: &DecaySumInputs<'_, T>,
    token: usize,
    head: usize,
    to: &mut Token,
) {
    let Shape { key_dim, value_dim, decays, .. } = of.shape;
    let key_start = of.shape.key_head(head) * key_dim;
    let query = &inputs.queries.row(token)[key_start..][..key_dim];
    to.query.iter_mut().zip(query).for_each(|(to, query)| *to = query.to_f32() * of.scale);
    let key = &inputs.keys.row(token)[key_start..][..key_dim];
    to.key.iter_mut().zip(key).for_each(|(to, key)| *to = key.to_f32());
    let values = &inputs.values.row(token)[head * value_dim..][..value_dim];
    to.value.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_f32());

    to.rate = inputs.steps.map_or(1.0, |steps| {
        let bias = of.bias.get(head).copied().unwrap_or(0.0);
        let step = softplus::<FMA>(steps.row(token)[head].to_f32() + bias);
        step.clamp(of.limits[0], of.limits[1])
    });
    for (decay, rate) in to.decay.iter_mut().zip(&of.rates[head * decays..][..decays]) {
        *decay = left::<FMA>(rate * to.rate);
    }
    to.share_decay(decays);
    to.skip = of.skip.get(head).copied().unwrap_or(0.0);
}

crate::multiversion!(
    fn prepare<T: Element>(
        of: &DecaySum<'_>, inputs: &DecaySumInputs<'_, T>, token: usize, head: usize, to: &mut Token,
    ) = prepare_body
);
