//! `pyengine._core.StepLayout` and `pyengine._core.Planner`.
//!
//! Each call takes the planner's and the allocator's locks (nobody contends for them: one thread drives both) and
//! works on the caller's buffers in place. None gives up the GIL: a call takes microseconds, and to get the GIL back
//! from a busy service takes up to `sys.getswitchinterval()`, 5 ms, which would be the device's time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::errors::guarded;
use super::kv_allocator::KvAllocator;
use super::mailbox::PyMailbox;
use super::telemetry::{PyTimeline, timeline};
use crate::error::Result;
use crate::kv_allocator::KvAllocator as Blocks;
use crate::scheduler::{Planner, PlannerConfig, StepLayout};
use crate::telemetry::now_ns;

/// Where each field of a step lies in the one buffer that planner and runner share.
#[pyclass(name = "StepLayout", module = "pyengine._core", frozen)]
pub(super) struct PyStepLayout {
    inner: StepLayout,
}

#[pymethods]
impl PyStepLayout {
    #[new]
    fn new(max_tokens: usize, max_rows: usize, max_pages: usize) -> PyResult<Self> {
        guarded(|| StepLayout::new(max_tokens, max_rows, max_pages)).map(|inner| Self { inner })
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for field in self.inner.fields() {
            fields.set_item(field.name, (field.dtype, field.offset, field.length))?;
        }
        Ok(fields)
    }
}

/// The scheduler's state and its two calls.
#[pyclass(name = "Planner", module = "pyengine._core", frozen)]
pub(super) struct PyPlanner {
    planner: Mutex<Planner>,
    blocks: Arc<Mutex<Blocks>>,
}

#[pymethods]
impl PyPlanner {
    #[new]
    #[pyo3(signature = (
        allocator, layout, detokenizer, *,
        max_sequences, max_tokens_per_step, max_context, max_waiting, prefill_chunk = 0, timeline = None,
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords on the Python side")]
    fn new(
        allocator: &KvAllocator,
        layout: &PyStepLayout,
        detokenizer: &PyMailbox,
        max_sequences: usize,
        max_tokens_per_step: usize,
        max_context: usize,
        max_waiting: usize,
        prefill_chunk: usize,
        timeline: Option<&PyTimeline>,
    ) -> PyResult<Self> {
        let config =
            PlannerConfig { max_sequences, max_tokens_per_step, max_context, max_waiting, prefill_chunk };
        let blocks = allocator.shared();
        let mailbox = detokenizer.inner().clone();
        let limit = mailbox.max_message();
        let outlet = Box::new(move |message: &[u8]| mailbox.send(message));
        let laps = self::timeline(timeline);
        let planner = guarded(|| Planner::new(config, layout.inner, &lock(&blocks), outlet, limit, laps))?;
        Ok(Self { planner: Mutex::new(planner), blocks })
    }

    fn drain<'py>(&self, py: Python<'py>, mailbox: &PyMailbox) -> PyResult<Bound<'py, PyList>> {
        let mailbox = mailbox.inner().clone();
        let others =
            self.work(|planner, blocks| planner.drain(blocks, |message| mailbox.receive(message), now_ns()))?;
        PyList::new(py, others.iter().map(|message| PyBytes::new(py, message)))
    }

    fn plan(&self, buffers: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = PyUntypedBuffer::get(buffers)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the step buffer must be writable and contiguous"));
        }
        let (start, length) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        self.work(|planner, blocks| {
            // SAFETY: the buffer is held by `buffer` until the call is over, so its memory stays; whoever calls
            // keeps other threads from using it meanwhile, as the stub asks.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, length) };
            planner.plan(blocks, bytes, now_ns())
        })
    }

    fn commit(&self, sampled: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer: PyBuffer<i32> =
            PyBuffer::get(sampled).map_err(|_| PyTypeError::new_err("sampled must be a buffer of int32"))?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the sampled tokens must be contiguous"));
        }
        let (start, length) = (buffer.buf_ptr().cast::<i32>(), buffer.item_count());
        self.work(|planner, blocks| {
            let sampled = match length {
                0 => &[],
                // SAFETY: contiguous, aligned and of i32, as `PyBuffer` has checked; held until the call is over;
                // not written meanwhile, as the stub asks.
                length => unsafe { std::slice::from_raw_parts(start, length) },
            };
            planner.commit(blocks, sampled, now_ns())
        })
    }

    fn fail_step(&self) -> PyResult<usize> {
        self.work(Planner::fail_step)
    }

    fn abort_all(&self) -> PyResult<usize> {
        self.work(Planner::abort_all)
    }

    fn check(&self) -> PyResult<()> {
        self.work(|planner, _| planner.check())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, value) in lock(&self.planner).stats() {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    fn histograms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let histograms = PyDict::new(py);
        for (name, histogram) in lock(&self.planner).histograms() {
            let (bounds, counts) = (histogram.bounds().to_vec(), histogram.counts().to_vec());
            histograms.set_item(name, (bounds, counts, histogram.sum()))?;
        }
        Ok(histograms)
    }

    #[getter]
    fn has_work(&self) -> bool {
        lock(&self.planner).has_work()
    }
}

impl PyPlanner {
    /// Works on planner and blocks.
    fn work<T>(&self, work: impl FnOnce(&mut Planner, &mut Blocks) -> Result<T>) -> PyResult<T> {
        guarded(|| work(&mut lock(&self.planner), &mut lock(&self.blocks)))
    }
}

/// After a panic the state may be half changed, but `abort_all` must still be tried: poison is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
