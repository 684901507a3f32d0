//! `pyengine._core.DraftPasses`: calls work on the caller's buffers in place; only [`fill`](PyDraftPasses::fill), which
//! computes, gives up the GIL.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

use super::cpu::{CpuProgram, CpuRules, CpuTensor, sample};
use super::errors::guarded;
use super::kv_allocator::{GroupTuple, cache_groups};
use super::step_layout::{PyStepLayout, StepMemory};
use pyengine_base::error::Result;
use pyengine_draft_passes::{DraftPasses, SharedPages};

/// Lays out the passes of a draft model within a step.
#[pyclass(name = "DraftPasses", module = "pyengine._core", frozen)]
pub(super) struct PyDraftPasses {
    inner: Mutex<DraftPasses>,
}

#[pymethods]
impl PyDraftPasses {
    #[new]
    #[pyo3(signature = (
        step, passes, *, num_blocks, block_size, vocab_size, groups = None, spare_blocks = 0
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords on the Python side")]
    fn new(
        step: &PyStepLayout,
        passes: &PyStepLayout,
        num_blocks: usize,
        block_size: usize,
        vocab_size: usize,
        groups: Option<Vec<GroupTuple>>,
        spare_blocks: usize,
    ) -> PyResult<Self> {
        let (step, passes) = (step.inner, passes.inner);
        let groups = cache_groups(groups)?;
        let shared = SharedPages { groups: &groups, num_pages: num_blocks, block_size, spare_blocks };
        guarded(|| DraftPasses::new(step, passes, vocab_size, &shared))
            .map(|inner| Self { inner: Mutex::new(inner) })
    }

    fn begin(&self, step: &Bound<'_, PyAny>) -> PyResult<bool> {
        let step = StepMemory::get(step)?;
        self.work(|passes| passes.begin(step.bytes()))
    }

    fn next_fed(
        &self,
        step: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        places: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (step, buffers) = (StepMemory::get(step)?, StepMemory::get(buffers)?);
        let places: PyBuffer<i64> =
            PyBuffer::get(places).map_err(|_| PyTypeError::new_err("places must be a buffer of int64"))?;
        if places.readonly() || !places.is_c_contiguous() {
            return Err(PyBufferError::new_err("places must be contiguous, and can be written"));
        }
        let places = match places.item_count() {
            0 => &mut [][..],
            // SAFETY: contiguous, aligned, of this type and writable, as was just checked; the buffer is held as long
            // as the slice, and the caller lets no other thread use it meanwhile, as the stub asks.
            length => unsafe { std::slice::from_raw_parts_mut(places.buf_ptr().cast::<i64>(), length) },
        };
        self.work(|passes| Ok(passes.next_fed(step.bytes(), buffers.bytes(), places)?.is_some()))
    }

    fn learn(&self, step: &Bound<'_, PyAny>) -> PyResult<()> {
        let step = StepMemory::get(step)?;
        self.work(|passes| passes.learn(step.bytes()))
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
                    let Some((tokens, sampled)) = passes.next(step.bytes(), buffers.bytes())? else {
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
