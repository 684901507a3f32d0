//! `pyengine._core.StepLayout` and `pyengine._core.Planner`.
//!
//! Each call takes the planner's and the allocator's locks (uncontended: one thread drives both) and
//! works on the caller's buffers in place. None gives up the GIL: a call takes microseconds, and to get the GIL back
//! from a busy service takes up to `sys.getswitchinterval()`, 5 ms, which would be the device's time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyengine_kernels_cpu::sampler::SamplingRow;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use super::errors::guarded;
use super::kv_allocator::KvAllocator;
use super::mailbox::PyMailbox;
use super::telemetry::{PyTimeline, timeline};
use pyengine_base::error::Result;
use pyengine_grammar_compiler::compiler::{Settings, ThreadedCompiler};
use pyengine_grammar_compiler::context::GrammarContext;
use pyengine_kv_allocator::KvAllocator as Blocks;
use pyengine_messages::Message;
use pyengine_scheduler::step::buffers::ROW_DTYPE;
use pyengine_scheduler::{Planner, PlannerConfig, StepLayout};
use pyengine_speculation::{Source, SpeculationConfig};
use pyengine_telemetry::now_ns;

/// Where each field of a step lies in the one buffer that planner and runner share.
#[pyclass(name = "StepLayout", module = "pyengine._core", frozen)]
pub(super) struct PyStepLayout {
    pub(super) inner: StepLayout,
}

#[pymethods]
impl PyStepLayout {
    #[new]
    #[pyo3(signature = (
        max_tokens, max_rows, max_pages, *, max_draft = 0, vocab_size, tables = 1, hidden_size = 0,
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
    ) -> PyResult<Self> {
        guarded(|| {
            StepLayout::new(max_tokens, max_rows, max_pages, max_draft, vocab_size)?.with_tables(tables)
        })
        .map(|inner| Self { inner: inner.with_hidden_size(hidden_size) })
    }

    #[getter]
    fn tables(&self) -> usize {
        self.inner.tables()
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

    /// The meaning of each field.
    fn meanings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let meanings = PyDict::new(py);
        self.inner.fields().iter().try_for_each(|field| meanings.set_item(field.name, field.doc.trim()))?;
        Ok(meanings)
    }
}

fn pairs(ranges: Vec<std::ops::Range<usize>>) -> Vec<(usize, usize)> {
    ranges.into_iter().map(|range| (range.start, range.end)).collect()
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
        max_sequences, max_tokens_per_step, max_context, max_waiting, prefill_chunk = 0,
        prefill_beside_decodes = 0, short_context = 0, timeline = None,
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
        prefill_beside_decodes: usize,
        short_context: usize,
        timeline: Option<&PyTimeline>,
    ) -> PyResult<Self> {
        let config = PlannerConfig {
            max_sequences,
            max_tokens_per_step,
            max_context,
            max_waiting,
            prefill_chunk,
            prefill_beside_decodes,
            short_context,
        };
        let blocks = allocator.shared();
        let mailbox = detokenizer.inner().clone();
        let limit = mailbox.max_message();
        let sink = Box::new(move |message: &[u8]| mailbox.send(message));
        let spans = self::timeline(timeline);
        let planner = guarded(|| Planner::new(config, layout.inner, &lock(&blocks), sink, limit, spans))?;
        Ok(Self { planner: Mutex::new(planner), blocks })
    }

    /// Requests may bring grammars from now on, which are compiled on threads.
    #[pyo3(signature = (tokenizer_json, end_tokens, vocab_size, scheduler, *, timeout_s, cache_bytes))]
    fn set_grammars(
        &self,
        tokenizer_json: &str,
        end_tokens: Vec<u32>,
        vocab_size: usize,
        scheduler: &PyMailbox,
        timeout_s: f64,
        cache_bytes: usize,
    ) -> PyResult<()> {
        let mailbox = scheduler.inner().clone();
        let mut message = Vec::new();
        guarded(|| Message::GrammarsReady(()).encode_into(&mut message))?;
        // A full ring has woken the scheduler already.
        let notify = Box::new(move || drop(mailbox.send(&message)));
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| PyValueError::new_err(format!("timeout_s: {error}")))?;
        let settings = Settings { timeout, cache_bytes, ..Settings::default() };
        self.work(|planner, _| {
            let context = GrammarContext::from_tokenizer_json(tokenizer_json, &end_tokens, vocab_size)?;
            let compiler = ThreadedCompiler::new(Arc::new(context), settings, notify);
            planner.set_compiler(Box::new(compiler), end_tokens)
        })
    }

    /// Rows may have drafts from now on.
    #[pyo3(signature = (proposers, *, max_draft, adaptive = true, moves = false))]
    fn set_speculation(
        &self,
        proposers: Vec<String>,
        max_draft: usize,
        adaptive: bool,
        moves: bool,
    ) -> PyResult<()> {
        let sources = proposers.iter().map(|name| {
            Source::from_name(name)
                .ok_or_else(|| PyValueError::new_err(format!("there is no proposer {name:?}")))
        });
        let config = SpeculationConfig { sources: sources.collect::<PyResult<_>>()?, max_draft, adaptive };
        self.work(|planner, _| {
            planner.set_speculation(config, moves);
            Ok(())
        })
    }

    fn drain<'py>(&self, py: Python<'py>, mailbox: &PyMailbox) -> PyResult<Bound<'py, PyList>> {
        let mailbox = mailbox.inner().clone();
        let others =
            self.work(|planner, blocks| planner.drain(blocks, |message| mailbox.receive(message), now_ns()))?;
        PyList::new(py, others.iter().map(|message| PyBytes::new(py, message)))
    }

    fn plan(&self, buffers: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = StepMemory::get(buffers)?;
        self.work(|planner, blocks| planner.plan(blocks, buffer.bytes(), now_ns()))
    }

    fn fill_masks(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = StepMemory::get(buffers)?;
        let bytes = buffer.bytes();
        py.detach(|| self.work(|planner, _| planner.fill_masks(bytes)))
    }

    fn fill_penalties(&self, buffers: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = StepMemory::get(buffers)?;
        self.work(|planner, _| planner.fill_penalties(buffer.bytes()))
    }

    fn processed_rows<'py>(&self, py: Python<'py>) -> PyResult<(Vec<ProcessedTuple<'py>>, Vec<KeyTuple>)> {
        let (rows, left) = self.work(|planner, _| planner.processed_rows())?;
        let told = rows.into_iter().map(|row| {
            let tokens: Vec<u8> = row.tokens.iter().flat_map(|token| token.to_ne_bytes()).collect();
            let asked = row.asked.map(|asked| PyBytes::new(py, &asked));
            let key = (row.key.frontend, row.key.request);
            (key, row.logit, row.prompt_length, asked, PyBytes::new(py, &tokens))
        });
        Ok((told.collect(), left.into_iter().map(|key| (key.frontend, key.request)).collect()))
    }

    #[pyo3(signature = (buffers, failed = None))]
    fn commit(&self, buffers: &Bound<'_, PyAny>, failed: Option<Vec<(usize, String)>>) -> PyResult<usize> {
        let buffer = StepMemory::get(buffers)?;
        let failed = failed.unwrap_or_default();
        self.work(|planner, blocks| planner.commit(blocks, buffer.bytes(), &failed, now_ns()))
    }

    fn send(&self) -> PyResult<()> {
        self.work(|planner, _| planner.send())
    }

    fn fail_step(&self, why: &str) -> PyResult<usize> {
        self.work(|planner, blocks| planner.fail_step(blocks, why))
    }

    fn abort_all(&self) -> PyResult<usize> {
        self.work(Planner::abort_all)
    }

    fn check(&self) -> PyResult<()> {
        self.work(|planner, _| planner.check())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        let planner = lock(&self.planner);
        for (name, value) in planner.stats() {
            stats.set_item(name, value)?;
        }
        for (name, value) in planner.speculation_stats() {
            stats.set_item(name, value)?;
        }
        for (name, value) in planner.grammar_stats().0 {
            stats.set_item(name, value)?;
        }
        Ok(stats)
    }

    fn histograms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let histograms = PyDict::new(py);
        let planner = lock(&self.planner);
        let compile_times = planner.grammar_stats().1;
        let compile_times = compile_times.as_ref().map(|times| ("grammar_compile_ns", times));
        for (name, histogram) in planner.histograms().into_iter().chain(compile_times) {
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

/// A request's key: its frontend, its number there.
type KeyTuple = (u32, u64);

/// A row whose logits are to be changed: request, logits, length of its prompt, what it asks for, its new tokens.
type ProcessedTuple<'py> = (KeyTuple, usize, u32, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// After a panic the state may be half changed, but `abort_all` must still be tried: poison is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
