//! The kernels of layers with states on Python's buffers: what is checked before they run.

use pyengine_kernels_cpu::convolution::Convolution;
use pyengine_kernels_cpu::isa::InstructionSet;
use pyengine_kernels_cpu::recurrence::{DecaySum, DecaySumInputs, DeltaRule, DeltaRuleInputs, Shape};
use pyengine_kernels_cpu::states::Place;
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::states::CpuStates;
use super::tensor::{CpuTensor, by_element, floats, invalid};
use pyengine_base::error::Error;

/// The convolution of one layer.
pub(super) struct Convolve {
    pub states: Py<CpuStates>,
    pub place: Place,
    pub weights: Convolution,
    pub x: Py<CpuTensor>,
    pub out: Py<CpuTensor>,
}

/// The weights of a convolution: \[channels, kernel\], and a bias \[channels\] or none.
pub(super) fn convolution(
    weight: &CpuTensor,
    bias: Option<&CpuTensor>,
    silu: bool,
) -> Result<Convolution, Error> {
    let &[channels, kernel] = weight.buffer.shape() else {
        return invalid("weight must be [channels, kernel]".into());
    };
    if channels == 0 || kernel == 0 {
        return invalid("weight is empty".into());
    }
    by_element!(weight, T => {
        let bias = bias.map_or(Ok(&[][..]), |bias| bias.read::<T>("bias", channels))?;
        Ok(Convolution::new(weight.read_all::<T>("weight")?, channels, bias, silu))
    })
}

impl Convolve {
    pub(super) fn run(&self, threads: &Threads) -> Result<(), Error> {
        let (x, out) = (self.x.get(), self.out.get());
        let states = self.states.get().view()?;
        let channels = self.weights.channels();
        if x.width() != channels || out.width() != channels {
            return invalid(format!("x and out must have {channels} columns"));
        }
        let others = [x, out];
        let pool = self.states.get().pool(self.place, self.weights.state_size(), channels, &others)?;
        by_element!(out, T => {
            let inputs = x.columns::<T>("x", states.num_tokens)?;
            let outputs = out.write::<T>("out", states.num_tokens * channels, &[x])?;
            self.weights.run(threads, &states, &pool, self.place, inputs, outputs);
            Ok(())
        })
    }
}

/// What the recurrences have in common.
pub(super) struct Inputs {
    pub states: Py<CpuStates>,
    pub place: Place,
    pub queries: Py<CpuTensor>,
    pub keys: Py<CpuTensor>,
    pub values: Py<CpuTensor>,
    /// \[heads\], or one for each decay.
    pub rates: Py<CpuTensor>,
    pub out: Py<CpuTensor>,
    pub key_heads: usize,
    pub scale: f32,
}

impl Inputs {
    /// The matrices that inputs and outputs of these widths belong to.
    fn shape(&self, heads: usize, decays: usize) -> Result<Shape, Error> {
        let key_heads = self.key_heads;
        let (keys, values) = (self.keys.get().width(), self.values.get().width());
        let whole = |width: usize, heads: usize| width > 0 && heads > 0 && width.is_multiple_of(heads);
        if !whole(heads, key_heads) || !whole(keys, key_heads) || !whole(values, heads) {
            return invalid(format!(
                "{key_heads} heads of keys in {keys} columns do not go with {heads} of values in {values}"
            ));
        }
        let shape = Shape { heads, key_heads, key_dim: keys / key_heads, value_dim: values / heads, decays };
        if decays != 1 && decays != shape.key_dim {
            return invalid(format!("a head has 1 decay or {}, not {decays}", shape.key_dim));
        }
        if self.queries.get().width() != keys || self.out.get().width() != values {
            return invalid(format!("queries must have {keys} columns and out {values}"));
        }
        Ok(shape)
    }
}

/// The gated delta rule of one layer.
pub(super) struct DeltaRuleOp {
    pub inputs: Inputs,
    pub gates: Py<CpuTensor>,
    pub betas: Py<CpuTensor>,
    /// \[heads * decays\].
    pub bias: Py<CpuTensor>,
    pub bound: Option<f32>,
    pub strength: f32,
}

impl DeltaRuleOp {
    pub(super) fn run(&self, threads: &Threads) -> Result<(), Error> {
        let Inputs { states, place, queries, keys, values, rates, out, scale, .. } = &self.inputs;
        let [queries, keys, values, gates, betas] =
            [queries, keys, values, &self.gates, &self.betas].map(Py::get);
        let (heads, biases) = (rates.get().width(), self.bias.get().width());
        let shape = self.inputs.shape(heads, biases.checked_div(heads).unwrap_or(0))?;
        if biases != heads * shape.decays || gates.width() != biases || betas.width() != heads {
            return invalid(format!("gates and their bias must have {heads} columns or as many for each"));
        }
        if self.bound.is_some_and(|bound| bound.is_nan() || bound >= 0.0) {
            return invalid("the bound of decays is below 0".into());
        }
        let read = [queries, keys, values, gates, betas];
        let (size, draft) = (shape.state_size(), shape.draft_size());
        let step = states.get().view()?;
        let pool = states.get().pool(*place, size, draft, &[&read[..], &[out.get()]].concat())?;
        let rule = DeltaRule {
            shape,
            rates: rates.get().read("rates", heads)?,
            bias: self.bias.get().read("bias", biases)?,
            bound: self.bound,
            scale: *scale,
            strength: self.strength,
        };
        by_element!(out.get(), T => {
            let tokens = step.num_tokens;
            let inputs = DeltaRuleInputs {
                queries: queries.columns::<T>("queries", tokens)?,
                keys: keys.columns::<T>("keys", tokens)?,
                values: values.columns::<T>("values", tokens)?,
                gates: gates.columns::<T>("gates", tokens)?,
                betas: betas.columns::<T>("betas", tokens)?,
            };
            let outputs = out.get().write::<T>("out", tokens * values.width(), &read)?;
            rule.run(InstructionSet::best(), threads, &step, &pool, *place, &inputs, outputs);
            Ok(())
        })
    }
}

/// The decaying sum of one layer.
pub(super) struct DecaySumOp {
    pub inputs: Inputs,
    pub steps: Option<Py<CpuTensor>>,
    /// \[heads\].
    pub bias: Option<Py<CpuTensor>>,
    /// \[heads\].
    pub skip: Option<Py<CpuTensor>>,
    pub limits: [f32; 2],
}

impl DecaySumOp {
    pub(super) fn run(&self, threads: &Threads) -> Result<(), Error> {
        let Inputs { states, place, queries, keys, values, rates, out, scale, .. } = &self.inputs;
        let [queries, keys, values] = [queries, keys, values].map(Py::get);
        let steps = self.steps.as_ref().map(Py::get);
        let all_rates = rates.get().width();
        let heads = steps.map_or(all_rates, CpuTensor::width);
        let shape = self.inputs.shape(heads, all_rates.checked_div(heads).unwrap_or(0))?;
        if all_rates != heads * shape.decays {
            return invalid(format!("steps have {heads} columns, and there are {all_rates} rates"));
        }
        let [smallest, largest] = self.limits;
        if smallest.is_nan() || largest.is_nan() || smallest > largest {
            return invalid(format!("steps are not between {smallest} and {largest}"));
        }
        let mut read = vec![queries, keys, values];
        read.extend(steps);
        let (size, draft) = (shape.state_size(), shape.draft_size());
        let step = states.get().view()?;
        let pool = states.get().pool(*place, size, draft, &[&read[..], &[out.get()]].concat())?;
        let sum = DecaySum {
            shape,
            rates: rates.get().read("rates", all_rates)?,
            bias: floats(self.bias.as_ref(), "bias", heads)?,
            limits: self.limits,
            skip: floats(self.skip.as_ref(), "skip", heads)?,
            scale: *scale,
        };
        by_element!(out.get(), T => {
            let tokens = step.num_tokens;
            let inputs = DecaySumInputs {
                queries: queries.columns::<T>("queries", tokens)?,
                keys: keys.columns::<T>("keys", tokens)?,
                values: values.columns::<T>("values", tokens)?,
                steps: steps.map(|steps| steps.columns::<T>("steps", tokens)).transpose()?,
            };
            let outputs = out.get().write::<T>("out", tokens * values.width(), &read)?;
            sum.run(InstructionSet::best(), threads, &step, &pool, *place, &inputs, outputs);
            Ok(())
        })
    }
}
