//! `pyengine._core.StepLayout`, and the names of a step's numbers and of the rules of a sampling row.

use pyengine_kernels_cpu::sampler::SamplingRow;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::errors::guarded;
use pyengine_scheduler::StepLayout;
use pyengine_scheduler::step::buffers::StepHeader;
use pyengine_scheduler::step::fields::ROW_DTYPE;

/// Where each field of a step lies in the one buffer that planner and runner share.
#[pyclass(name = "StepLayout", module = "pyengine._core", frozen)]
pub(super) struct PyStepLayout {
    pub(super) inner: StepLayout,
}

#[pymethods]
impl PyStepLayout {
    #[new]
    #[pyo3(signature = (
        max_tokens, max_rows, max_pages, *, max_draft = 0, vocab_size, tables = 1, hidden_size = 0, states = false,
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords on the Python side")]
    fn new(
        max_tokens: usize,
        max_rows: usize,
        max_pages: usize,
        max_draft: usize,
        vocab_size: usize,
        tables: usize,
        hidden_size: usize,
        states: bool,
    ) -> PyResult<Self> {
        guarded(|| {
            StepLayout::new(max_tokens, max_rows, max_pages, max_draft, vocab_size)?.with_tables(tables)
        })
        .map(|inner| Self { inner: inner.with_hidden_size(hidden_size).with_states(states) })
    }

    #[getter]
    fn tables(&self) -> usize {
        self.inner.tables()
    }

    #[getter]
    fn states(&self) -> bool {
        self.inner.states()
    }

    #[getter]
    fn mask_words(&self) -> usize {
        self.inner.mask_words()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    fn pad(&self, buffers: &Bound<'_, PyAny>, rows: usize, tokens: usize, logits: usize) -> PyResult<()> {
        let buffer = StepMemory::get(buffers)?;
        guarded(|| self.inner.pad(buffer.bytes(), rows, tokens, logits))
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for field in self.inner.fields() {
            let dtype = match field.dtype {
                ROW_DTYPE => sampling_row(py)?.into_any(),
                dtype => PyString::new(py, dtype).into_any(),
            };
            fields.set_item(field.name, (dtype, field.offset, field.length))?;
        }
        Ok(fields)
    }

    /// The width of each field that is a table.
    fn widths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let widths = PyDict::new(py);
        for field in self.inner.fields() {
            if let Some(width) = field.width {
                widths.set_item(field.name, width)?;
            }
        }
        Ok(widths)
    }

    #[pyo3(signature = (buffers, padding = 0))]
    fn planned_ranges(&self, buffers: &Bound<'_, PyAny>, padding: usize) -> PyResult<Vec<(usize, usize)>> {
        let buffer = StepMemory::get(buffers)?;
        guarded(|| self.inner.planned_ranges(buffer.bytes(), padding)).map(pairs)
    }

    fn late_ranges(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Vec<(usize, usize)>> {
        let buffer = StepMemory::get(buffers)?;
        guarded(|| self.inner.late_ranges(buffer.bytes())).map(pairs)
    }

    fn result_ranges(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Vec<(usize, usize)>> {
        let buffer = StepMemory::get(buffers)?;
        guarded(|| self.inner.result_ranges(buffer.bytes())).map(pairs)
    }
}

fn pairs(ranges: Vec<std::ops::Range<usize>>) -> Vec<(usize, usize)> {
    ranges.into_iter().map(|range| (range.start, range.end)).collect()
}

/// The index of each number in a step's header.
#[pyfunction]
pub(super) fn step_numbers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let numbers = PyDict::new(py);
    StepHeader::NAMES.iter().enumerate().try_for_each(|(index, name)| numbers.set_item(name, index))?;
    Ok(numbers)
}

/// The fields of a sampling row as numpy takes them; see the stub.
#[pyfunction]
pub(super) fn sampling_row(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dtype = PyDict::new(py);
    let fields = SamplingRow::FIELDS;
    dtype.set_item("names", fields.iter().map(|field| field.name).collect::<Vec<_>>())?;
    dtype.set_item("formats", fields.iter().map(|field| field.dtype).collect::<Vec<_>>())?;
    dtype.set_item("offsets", fields.iter().map(|field| field.offset).collect::<Vec<_>>())?;
    dtype.set_item("itemsize", size_of::<SamplingRow>())?;
    Ok(dtype)
}

/// The memory of a step, held until it is dropped.
pub(super) struct StepMemory(PyUntypedBuffer);

impl StepMemory {
    pub(super) fn get(buffers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(buffers)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the step buffer must be writable and contiguous"));
        }
        Ok(Self(buffer))
    }

    #[allow(clippy::mut_from_ref, reason = "the memory is Python's")]
    pub(super) fn bytes(&self) -> &mut [u8] {
        let (start, length) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        // SAFETY: the memory stays while the buffer is held; the caller keeps other threads from using it
        // meanwhile, as the stub asks.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}
