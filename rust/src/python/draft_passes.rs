//! `pyengine._core.DraftPasses`: calls work on the caller's buffers in place; only [`fill`](PyDraftPasses::fill), which
//! computes, gives up the GIL.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::errors::guarded;
use super::kernels::{CpuRules, CpuTensor, sample};
use super::program::CpuProgram;
use super::scheduler::{PyStepLayout, StepMemory, elements, int32};
use crate::error::Result;
use crate::scheduler::DraftPasses;

/// Lays out the passes of a draft model within a step.
#[pyclass(name = "DraftPasses", module = "pyengine._core", frozen)]
pub(super) struct PyDraftPasses {
    inner: Mutex<DraftPasses>,
}

#[pymethods]
impl PyDraftPasses {
    #[new]
    #[pyo3(signature = (step, passes, *, num_blocks, block_size, vocab_size))]
    fn new(
        step: &PyStepLayout,
        passes: &PyStepLayout,
        num_blocks: usize,
        block_size: usize,
        vocab_size: usize,
    ) -> PyResult<Self> {
        guarded(|| DraftPasses::new(step.inner, passes.inner, num_blocks, block_size, vocab_size))
            .map(|inner| Self { inner: Mutex::new(inner) })
    }

    fn begin(&self, step: &Bound<'_, PyAny>) -> PyResult<bool> {
        let step = StepMemory::get(step)?;
        self.work(|passes| passes.begin(step.bytes()))
    }

    fn next(
        &self,
        step: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        chosen: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (step, buffers) = (StepMemory::get(step)?, StepMemory::get(buffers)?);
        let chosen = int32(chosen)?;
        self.work(|passes| Ok(passes.next(step.bytes(), buffers.bytes(), elements(&chosen))?.is_some()))
    }

    #[pyo3(signature = (step, buffers, *, forward, logits, rules, logits_rows, chosen))]
    #[allow(clippy::too_many_arguments, reason = "keywords on the Python side")]
    fn fill(
        &self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        forward: &CpuProgram,
        logits: &CpuProgram,
        rules: &CpuRules,
        logits_rows: &CpuTensor,
        chosen: &CpuTensor,
    ) -> PyResult<()> {
        let step = StepMemory::get(step)?;
        if !self.work(|passes| passes.begin(step.bytes()))? {
            return Ok(());
        }
        let buffers = StepMemory::get(buffers)?;
        let at_once = logits_rows.rows();
        py.detach(|| {
            self.work(|passes| {
                loop {
                    let before = chosen.read_all::<i32>("chosen")?;
                    let Some((tokens, sampled)) = passes.next(step.bytes(), buffers.bytes(), before)? else {
                        return Ok(());
                    };
                    forward.run(tokens, 0)?;
                    for first in (0..sampled).step_by(at_once) {
                        let rows = at_once.min(sampled - first);
                        logits.run(rows, first)?;
                        sample(logits.threads(), rules, logits_rows, chosen, first, rows)?;
                    }
                }
            })
        })
    }
}

impl PyDraftPasses {
    fn work<T>(&self, work: impl FnOnce(&mut DraftPasses) -> Result<T>) -> PyResult<T> {
        guarded(|| work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
