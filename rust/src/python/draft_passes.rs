//! `pyengine._core.DraftPasses`: as for the planner, calls work on the caller's buffers in place, with the GIL held.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::errors::guarded;
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
        self.work(|passes| passes.next(step.bytes(), buffers.bytes(), elements(&chosen)))
    }
}

impl PyDraftPasses {
    fn work<T>(&self, work: impl FnOnce(&mut DraftPasses) -> Result<T>) -> PyResult<T> {
        guarded(|| work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
