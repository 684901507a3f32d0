//! `pyengine._core.CpuKernels`: the kernels by name, each at once, and what is sampled from their logits.
//!
//! The GIL is released while they work, but where that would cost more than the work.

use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::attend::{Attend, LayerMask};
use super::elementwise;
use super::experts::CpuExperts;
use super::linear::CpuLinear;
use super::op::Op;
use super::sampling::{sample, top_logprobs, verify};
use super::step::{CpuPenalties, CpuRules, CpuStep};
use super::tensor::CpuTensor;
use crate::errors::{Raise, guarded};
use pyengine_base::error::Error;

/// The kernels, with the threads that they share.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuKernels {
    pub(super) threads: Threads,
}

#[pymethods]
impl CpuKernels {
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        let threads = Threads::new(threads).map_err(|error| Error::System(error.to_string()).raise())?;
        Ok(Self { threads })
    }

    #[getter]
    fn threads(&self) -> usize {
        self.threads.count()
    }

    #[pyo3(signature = (residual, branch, weight, epsilon, out, rows))]
    #[allow(clippy::too_many_arguments)]
    fn add_rms_norm(
        &self,
        py: Python<'_>,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::AddRmsNorm { residual, branch, weight, epsilon, out }, rows)
    }

    #[pyo3(signature = (residual, branch, weight, bias, epsilon, out, rows))]
    #[allow(clippy::too_many_arguments)]
    fn add_layer_norm(
        &self,
        py: Python<'_>,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        bias: Option<Py<CpuTensor>>,
        epsilon: f32,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::AddLayerNorm { residual, branch, weight, bias, epsilon, out }, rows)
    }

    #[pyo3(signature = (residual, branch, out, rows))]
    fn add(
        &self,
        py: Python<'_>,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Add { residual, branch, out }, rows)
    }

    fn rotate(
        &self,
        py: Python<'_>,
        qkv: Py<CpuTensor>,
        positions: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        heads: usize,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Rotate { qkv, positions, angles, heads }, rows)
    }

    #[pyo3(signature = (qkv, query_weight, key_weight, query_width, epsilon, rows, value_weight = None))]
    #[allow(clippy::too_many_arguments)]
    fn head_rms_norm(
        &self,
        py: Python<'_>,
        qkv: Py<CpuTensor>,
        query_weight: Py<CpuTensor>,
        key_weight: Py<CpuTensor>,
        query_width: usize,
        epsilon: f32,
        rows: usize,
        value_weight: Option<Py<CpuTensor>>,
    ) -> PyResult<()> {
        let op = Op::HeadRmsNorm { qkv, query_weight, key_weight, value_weight, query_width, epsilon };
        self.run(py, &op, rows)
    }

    #[pyo3(signature = (activation, gate_up, out, rows, limit = None))]
    fn gated(
        &self,
        py: Python<'_>,
        activation: &str,
        gate_up: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
        limit: Option<f32>,
    ) -> PyResult<()> {
        let activation = elementwise::activation(activation, limit).map_err(Raise::raise)?;
        self.run(py, &Op::Gated { activation, gate_up, out }, rows)
    }

    #[pyo3(signature = (activation, x, out, rows))]
    fn activate(
        &self,
        py: Python<'_>,
        activation: &str,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        let activation = elementwise::activation(activation, None).map_err(Raise::raise)?;
        self.run(py, &Op::Activate { activation, x, out }, rows)
    }

    #[pyo3(signature = (experts, logits, x, out, rows))]
    fn experts(
        &self,
        py: Python<'_>,
        experts: Py<CpuExperts>,
        logits: Py<CpuTensor>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Experts { experts, logits, x, out }, rows)
    }

    #[pyo3(signature = (x, factor, rows))]
    fn scale(&self, py: Python<'_>, x: Py<CpuTensor>, factor: f32, rows: usize) -> PyResult<()> {
        self.run(py, &Op::Scale { x, factor }, rows)
    }

    #[pyo3(signature = (x, cap, rows))]
    fn soft_cap(&self, py: Python<'_>, x: Py<CpuTensor>, cap: f32, rows: usize) -> PyResult<()> {
        self.run(py, &Op::SoftCap { x, cap }, rows)
    }

    #[pyo3(signature = (x, by, column, rows))]
    fn multiply(
        &self,
        py: Python<'_>,
        x: Py<CpuTensor>,
        by: Py<CpuTensor>,
        column: usize,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Multiply { x, by, column }, rows)
    }

    #[pyo3(signature = (x, gates, rows))]
    fn gate(&self, py: Python<'_>, x: Py<CpuTensor>, gates: Py<CpuTensor>, rows: usize) -> PyResult<()> {
        self.run(py, &Op::Gate { x, gates }, rows)
    }

    fn linear(
        &self,
        py: Python<'_>,
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Linear { weights, x, out }, rows)
    }

    #[pyo3(signature = (table, index, out, rows, first = 0))]
    #[allow(clippy::too_many_arguments)]
    fn gather(
        &self,
        py: Python<'_>,
        table: Py<CpuTensor>,
        index: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
        first: usize,
    ) -> PyResult<()> {
        let op = Op::Gather { table, index, out };
        py.detach(|| guarded(|| op.run(&self.threads, first, rows)))
    }

    #[pyo3(signature = (table, index, out, rows, first = 0))]
    #[allow(clippy::too_many_arguments)]
    fn gather_weights(
        &self,
        py: Python<'_>,
        table: Py<CpuLinear>,
        index: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
        first: usize,
    ) -> PyResult<()> {
        let op = Op::GatherWeights { table, index, out };
        py.detach(|| guarded(|| op.run(&self.threads, first, rows)))
    }

    #[pyo3(signature = (step, qkv, angles, keys, values, out, num_heads, scale, *, window = None, chunk = None,
        soft_cap = None, sinks = None, temperatures = None, stores = true))]
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        py: Python<'_>,
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
        self.run(py, &Op::Attend(attend), 0)
    }

    #[pyo3(signature = (rules, logits, out, first, rows))]
    fn sample(
        &self,
        py: Python<'_>,
        rules: &CpuRules,
        logits: &CpuTensor,
        out: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        py.detach(|| guarded(|| sample(&self.threads, rules, logits, out, first, rows)))
    }

    /// A few numbers a row: to let go of the GIL would cost more.
    #[pyo3(signature = (penalties, logits, first, rows))]
    fn apply_penalties(
        &self,
        penalties: &CpuPenalties,
        logits: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        guarded(|| penalties.run(logits, first, rows, false))
    }

    #[pyo3(signature = (penalties, logits, first, rows))]
    fn restore(
        &self,
        penalties: &CpuPenalties,
        logits: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        guarded(|| penalties.run(logits, first, rows, true))
    }

    #[pyo3(signature = (wanted, logits, chosen, tokens, logprobs, of_chosen, first, rows))]
    #[allow(clippy::too_many_arguments)]
    fn top_logprobs(
        &self,
        py: Python<'_>,
        wanted: &CpuTensor,
        logits: &CpuTensor,
        chosen: &CpuTensor,
        tokens: &CpuTensor,
        logprobs: &CpuTensor,
        of_chosen: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        let inputs = [wanted, logits, chosen];
        let outputs = [tokens, logprobs, of_chosen];
        py.detach(|| guarded(|| top_logprobs(&self.threads, inputs, outputs, first, rows)))
    }

    #[pyo3(signature = (rules, token_ids, tokens, counts, sampled))]
    fn verify(
        &self,
        rules: &CpuRules,
        token_ids: &CpuTensor,
        tokens: &CpuTensor,
        counts: &CpuTensor,
        sampled: usize,
    ) -> PyResult<()> {
        // A few comparisons: to let go of the GIL would cost more.
        guarded(|| verify(rules, token_ids, tokens, counts, sampled))
    }
}

impl CpuKernels {
    fn run(&self, py: Python<'_>, op: &Op, rows: usize) -> PyResult<()> {
        py.detach(|| guarded(|| op.run(&self.threads, 0, rows)))
    }
}
