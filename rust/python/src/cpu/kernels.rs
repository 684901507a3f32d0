//! `pyengine._core.CpuKernels`: the threads of the kernels, and sampling from logits. A [`CpuProgram`](super::program) runs the
//! kernels of layers.
//!
//! The GIL is released while they work, but where that would cost more than the work.

use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::sampling::{sample, top_logprobs, verify};
use super::step::{CpuPenalties, CpuRules};
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
