//! Kernels on tensors, one after the other: `pyengine._core.CpuProgram`.
//!
//! ```text
//!  recorded once   gather, norm, linear, attend, linear, norm, linear, silu, linear, ...
//!  run a step      all of it in one call, the GIL released once: Python costs nothing between kernels
//! ```
//!
//! Recording fixes a kernel's inputs and outputs; running gives the number of rows. O(kernels) to run,
//! besides what they do.

use std::sync::{Mutex, OnceLock, PoisonError};

use pyengine_kernels_cpu::activation::Activation;
use pyengine_kernels_cpu::states::Place;
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::adapters::CpuAdapters;
use super::attend::{Attend, LayerMask};
use super::elementwise::{self, GatedNormOf};
use super::experts::CpuExperts;
use super::kernels::CpuKernels;
use super::latents::AttendLatents;
use super::linear::CpuLinear;
use super::op::Op;
use super::recurrence::{self, Convolve, DecaySumOp, DeltaRuleOp, Inputs};
use super::states::CpuStates;
use super::step::CpuStep;
use super::tensor::{CpuTensor, invalid};
use crate::errors::{Raise, guarded};
use pyengine_base::error::Error;

/// Kernels that are run one after the other.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuProgram {
    kernels: Py<CpuKernels>,
    recorded: Mutex<Vec<Op>>,
    // Taken over when it is first run.
    ops: OnceLock<Vec<Op>>,
}

#[pymethods]
impl CpuProgram {
    #[new]
    fn new(kernels: Py<CpuKernels>) -> Self {
        Self { kernels, recorded: Mutex::default(), ops: OnceLock::new() }
    }

    #[pyo3(signature = (residual, branch, weight, epsilon, out))]
    fn add_rms_norm(
        &self,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        out: Py<CpuTensor>,
    ) -> PyResult<()> {
        self.record(Op::AddRmsNorm { residual, branch, weight, epsilon, out })
    }

    #[pyo3(signature = (residual, branch, weight, bias, epsilon, out))]
    #[allow(clippy::too_many_arguments)]
    fn add_layer_norm(
        &self,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        bias: Option<Py<CpuTensor>>,
        epsilon: f32,
        out: Py<CpuTensor>,
    ) -> PyResult<()> {
        self.record(Op::AddLayerNorm { residual, branch, weight, bias, epsilon, out })
    }

    #[pyo3(signature = (residual, branch, out))]
    fn add(
        &self,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        out: Py<CpuTensor>,
    ) -> PyResult<()> {
        self.record(Op::Add { residual, branch, out })
    }

    #[pyo3(signature = (qkv, positions, angles, heads))]
    fn rotate(
        &self,
        qkv: Py<CpuTensor>,
        positions: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        heads: usize,
    ) -> PyResult<()> {
        self.record(Op::Rotate { qkv, positions, angles, heads })
    }

    #[pyo3(signature = (qkv, query_weight, key_weight, query_width, epsilon, value_weight = None))]
    #[allow(clippy::too_many_arguments)]
    fn head_rms_norm(
        &self,
        qkv: Py<CpuTensor>,
        query_weight: Py<CpuTensor>,
        key_weight: Py<CpuTensor>,
        query_width: usize,
        epsilon: f32,
        value_weight: Option<Py<CpuTensor>>,
    ) -> PyResult<()> {
        self.record(Op::HeadRmsNorm { qkv, query_weight, key_weight, value_weight, query_width, epsilon })
    }

    #[pyo3(signature = (activation, gate_up, out, limit = None))]
    fn gated(
        &self,
        activation: &str,
        gate_up: Py<CpuTensor>,
        out: Py<CpuTensor>,
        limit: Option<f32>,
    ) -> PyResult<()> {
        let activation = elementwise::activation(activation, limit).map_err(Raise::raise)?;
        self.record(Op::Gated { activation, gate_up, out })
    }

    #[pyo3(signature = (activation, x, out, weights = None))]
    fn activate(
        &self,
        activation: &str,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        weights: Option<(f32, f32, f32)>,
    ) -> PyResult<()> {
        let activation = match weights {
            Some((positive, negative, slope)) if activation == "xielu" => {
                Activation::Xielu { positive, negative, slope }
            }
            _ => elementwise::activation(activation, None).map_err(Raise::raise)?,
        };
        self.record(Op::Activate { activation, x, out })
    }

    #[pyo3(signature = (experts, logits, x, out))]
    fn experts(
        &self,
        experts: Py<CpuExperts>,
        logits: Py<CpuTensor>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    ) -> PyResult<()> {
        self.record(Op::Experts { experts, logits, x, out })
    }

    #[pyo3(signature = (x, factor))]
    fn scale(&self, x: Py<CpuTensor>, factor: f32) -> PyResult<()> {
        self.record(Op::Scale { x, factor })
    }

    #[pyo3(signature = (x, cap))]
    fn soft_cap(&self, x: Py<CpuTensor>, cap: f32) -> PyResult<()> {
        self.record(Op::SoftCap { x, cap })
    }

    #[pyo3(signature = (x, by, column))]
    fn multiply(&self, x: Py<CpuTensor>, by: Py<CpuTensor>, column: usize) -> PyResult<()> {
        self.record(Op::Multiply { x, by, column })
    }

    #[pyo3(signature = (x, gates))]
    fn gate(&self, x: Py<CpuTensor>, gates: Py<CpuTensor>) -> PyResult<()> {
        self.record(Op::Gate { x, gates })
    }

    #[pyo3(signature = (weights, x, out))]
    fn linear(&self, weights: Py<CpuLinear>, x: Py<CpuTensor>, out: Py<CpuTensor>) -> PyResult<()> {
        self.record(Op::Linear { weights, x, out })
    }

    #[pyo3(signature = (weights, x, out, heads))]
    fn linear_by_head(
        &self,
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        heads: usize,
    ) -> PyResult<()> {
        self.record(Op::LinearByHead { weights, x, out, heads })
    }

    #[pyo3(signature = (adapters, site, x, out))]
    fn adapt(
        &self,
        adapters: Py<CpuAdapters>,
        site: usize,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    ) -> PyResult<()> {
        self.record(Op::Adapt { adapters, site, x, out })
    }

    #[pyo3(signature = (table, index, out))]
    fn gather(&self, table: Py<CpuTensor>, index: Py<CpuTensor>, out: Py<CpuTensor>) -> PyResult<()> {
        self.record(Op::Gather { table, index, out })
    }

    #[pyo3(signature = (table, index, out))]
    fn gather_weights(&self, table: Py<CpuLinear>, index: Py<CpuTensor>, out: Py<CpuTensor>) -> PyResult<()> {
        self.record(Op::GatherWeights { table, index, out })
    }

    #[pyo3(signature = (step, qkv, angles, keys, values, out, num_heads, scale, *, window = None, chunk = None,
        soft_cap = None, sinks = None, temperatures = None, stores = true))]
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        step: Py<CpuStep>,
        qkv: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        keys: Py<CpuTensor>,
        values: Py<CpuTensor>,
        out: Py<CpuTensor>,
        num_heads: usize,
        scale: f32,
        window: Option<usize>,
        chunk: Option<usize>,
        soft_cap: Option<f32>,
        sinks: Option<Py<CpuTensor>>,
        temperatures: Option<Py<CpuTensor>>,
        stores: bool,
    ) -> PyResult<()> {
        let mask = LayerMask { window, chunk, soft_cap, sinks, temperatures };
        let attend = Attend { step, qkv, angles, keys, values, out, num_heads, scale, mask, stores };
        self.record(Op::Attend(attend))
    }

    #[pyo3(signature = (step, absorbed, rotating, rows, weight, epsilon, angles, latents, out, num_heads, scale, *,
        temperatures = None))]
    #[allow(clippy::too_many_arguments)]
    fn attend_latents(
        &self,
        step: Py<CpuStep>,
        absorbed: Py<CpuTensor>,
        rotating: Py<CpuTensor>,
        rows: Py<CpuTensor>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        angles: Py<CpuTensor>,
        latents: Py<CpuTensor>,
        out: Py<CpuTensor>,
        num_heads: usize,
        scale: f32,
        temperatures: Option<Py<CpuTensor>>,
    ) -> PyResult<()> {
        self.record(Op::AttendLatents(AttendLatents {
            step,
            absorbed,
            rotating,
            rows,
            weight,
            epsilon,
            angles,
            latents,
            out,
            num_heads,
            scale,
            temperatures,
        }))
    }

    #[pyo3(signature = (states, place, x, weight, bias, out, *, silu))]
    #[allow(clippy::too_many_arguments)]
    fn convolve(
        &self,
        states: Py<CpuStates>,
        place: (usize, usize),
        x: Py<CpuTensor>,
        weight: &CpuTensor,
        bias: Option<&CpuTensor>,
        out: Py<CpuTensor>,
        silu: bool,
    ) -> PyResult<()> {
        let weights = guarded(|| recurrence::convolution(weight, bias, silu))?;
        self.record(Op::Convolve(Convolve { states, place: at(place), weights, x, out }))
    }

    #[pyo3(signature = (states, place, queries, keys, values, gates, betas, rates, bias, out, *, key_heads, scale,
        bound = None, strength = 1.0))]
    #[allow(clippy::too_many_arguments)]
    fn delta_rule(
        &self,
        states: Py<CpuStates>,
        place: (usize, usize),
        queries: Py<CpuTensor>,
        keys: Py<CpuTensor>,
        values: Py<CpuTensor>,
        gates: Py<CpuTensor>,
        betas: Py<CpuTensor>,
        rates: Py<CpuTensor>,
        bias: Py<CpuTensor>,
        out: Py<CpuTensor>,
        key_heads: usize,
        scale: f32,
        bound: Option<f32>,
        strength: f32,
    ) -> PyResult<()> {
        let place = at(place);
        let inputs = Inputs { states, place, queries, keys, values, rates, out, key_heads, scale };
        self.record(Op::DeltaRule(DeltaRuleOp { inputs, gates, betas, bias, bound, strength }))
    }

    #[pyo3(signature = (states, place, queries, keys, values, steps, rates, bias, skip, out, *, key_heads,
        scale = 1.0, limits = None))]
    #[allow(clippy::too_many_arguments)]
    fn decay_sum(
        &self,
        states: Py<CpuStates>,
        place: (usize, usize),
        queries: Py<CpuTensor>,
        keys: Py<CpuTensor>,
        values: Py<CpuTensor>,
        steps: Option<Py<CpuTensor>>,
        rates: Py<CpuTensor>,
        bias: Option<Py<CpuTensor>>,
        skip: Option<Py<CpuTensor>>,
        out: Py<CpuTensor>,
        key_heads: usize,
        scale: f32,
        limits: Option<(f32, f32)>,
    ) -> PyResult<()> {
        let (place, limits) = (at(place), limits.unwrap_or((0.0, f32::INFINITY)).into());
        let inputs = Inputs { states, place, queries, keys, values, rates, out, key_heads, scale };
        self.record(Op::DecaySum(DecaySumOp { inputs, steps, bias, skip, limits }))
    }

    #[pyo3(signature = (x, gates, weight, epsilon, *, group, function, gate_first))]
    #[allow(clippy::too_many_arguments)]
    fn gated_norm(
        &self,
        x: Py<CpuTensor>,
        gates: Py<CpuTensor>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        group: usize,
        function: &str,
        gate_first: bool,
    ) -> PyResult<()> {
        let gate = elementwise::gate_function(function).map_err(Raise::raise)?;
        let how = GatedNormOf { group, epsilon, gate, gate_first };
        self.record(Op::GatedNorm { x, gates, weight, how })
    }

    #[pyo3(signature = (rows, first = 0), name = "run")]
    fn py_run(&self, py: Python<'_>, rows: usize, first: usize) -> PyResult<()> {
        py.detach(|| guarded(|| self.run(rows, first)))
    }
}

impl CpuProgram {
    fn record(&self, op: Op) -> PyResult<()> {
        guarded(|| match self.ops.get() {
            Some(_) => invalid("the program runs already".into()),
            None => {
                self.recorded.lock().unwrap_or_else(PoisonError::into_inner).push(op);
                Ok(())
            }
        })
    }

    /// Runs all kernels on the first `rows` rows; indices of gathers begin at `first`.
    pub(crate) fn run(&self, rows: usize, first: usize) -> Result<(), Error> {
        let take = || std::mem::take(&mut *self.recorded.lock().unwrap_or_else(PoisonError::into_inner));
        let threads = &self.kernels.get().threads;
        self.ops.get_or_init(take).iter().try_for_each(|op| op.run(threads, first, rows))
    }

    /// The threads that it runs on.
    pub(crate) fn threads(&self) -> &Threads {
        &self.kernels.get().threads
    }
}

/// Where a layer's state and its drafts begin in a slot.
fn at((state, drafts): (usize, usize)) -> Place {
    Place { state, drafts }
}
