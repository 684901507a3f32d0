//! `pyengine._core.Planner`.
//!
//! Each call takes the planner's and the allocator's locks (uncontended: one thread drives both) and
//! works on the caller's buffers in place. None gives up the GIL: a call takes microseconds, and to get the GIL back
//! from a busy service takes up to `sys.getswitchinterval()`, 5 ms, which would be the device's time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::errors::guarded;
use super::kv_allocator::KvAllocator;
use super::mailbox::PyMailbox;
use super::step_layout::{PyStepLayout, StepMemory};
use super::telemetry::{PyTimeline, timeline};
use pyengine_base::error::Result;
use pyengine_grammar_compiler::compiler::{Settings, ThreadedCompiler};
use pyengine_grammar_compiler::context::GrammarContext;
use pyengine_kv_allocator::KvAllocator as Blocks;
use pyengine_messages::Message;
use pyengine_scheduler::{Adapters, Grammars, Planner, PlannerConfig, Processors};
use pyengine_speculation::{Source, SpeculationConfig};
use pyengine_telemetry::now_ns;

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
        prefill_beside_decodes = 0, short_context = 0, snapshot_interval = 0, timeline = None,
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
        snapshot_interval: usize,
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
            snapshot_interval,
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
            planner.feature::<Grammars>().set_compiler(Box::new(compiler), end_tokens)
        })
    }

    /// Rows may have drafts from now on.
    #[pyo3(signature = (proposers, *, max_draft, adaptive = true))]
    fn set_speculation(&self, proposers: Vec<String>, max_draft: usize, adaptive: bool) -> PyResult<()> {
        let sources = proposers.iter().map(|name| {
            Source::from_name(name)
                .ok_or_else(|| PyValueError::new_err(format!("there is no proposer {name:?}")))
        });
        let config = SpeculationConfig { sources: sources.collect::<PyResult<_>>()?, max_draft, adaptive };
        self.work(|planner, _| {
            planner.set_speculation(config);
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

    fn fill_late(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = StepMemory::get(buffers)?;
        let bytes = buffer.bytes();
        py.detach(|| self.work(|planner, _| planner.fill_late(bytes)))
    }

    fn processed_rows<'py>(&self, py: Python<'py>) -> PyResult<(Vec<ProcessedTuple<'py>>, Vec<KeyTuple>)> {
        let (rows, left) = self.work(|planner, _| Ok(planner.feature::<Processors>().take()))?;
        let told = rows.into_iter().map(|row| {
            let tokens: Vec<u8> = row.tokens.iter().flat_map(|token| token.to_ne_bytes()).collect();
            let asked = row.asked.map(|asked| PyBytes::new(py, &asked));
            let key = (row.key.frontend, row.key.request);
            (key, row.logit, row.prompt_length, asked, PyBytes::new(py, &tokens))
        });
        Ok((told.collect(), left.into_iter().map(|key| (key.frontend, key.request)).collect()))
    }

    fn wanted_adapters<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, String)>> {
        let wanted = self.work(|planner, _| Ok(planner.feature::<Adapters>().take_wanted()))?;
        Ok(wanted.into_iter().map(|(digest, folder)| (PyBytes::new(py, &digest), folder)).collect())
    }

    fn idle_adapters<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let idle = self.work(|planner, _| Ok(planner.feature::<Adapters>().idle()))?;
        Ok(idle.iter().map(|digest| PyBytes::new(py, digest)).collect())
    }

    fn set_adapter(&self, digest: &[u8], slot: u32) -> PyResult<()> {
        self.work(|planner, _| planner.feature::<Adapters>().settle(digest, Ok(slot)))
    }

    fn refuse_adapter(&self, digest: &[u8], why: String) -> PyResult<()> {
        self.work(|planner, _| planner.feature::<Adapters>().settle(digest, Err(why)))
    }

    fn forget_adapter(&self, digest: &[u8]) -> PyResult<()> {
        self.work(|planner, _| planner.feature::<Adapters>().forget(digest))
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
        Ok(stats)
    }

    fn histograms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let histograms = PyDict::new(py);
        let planner = lock(&self.planner);
        for (name, histogram) in planner.histograms() {
            let (bounds, counts) = (histogram.bounds().to_vec(), histogram.counts().to_vec());
            histograms.set_item(name, (bounds, counts, histogram.sum()))?;
        }
        Ok(histograms)
    }

    fn take_recorded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let recorded = self.work(|planner, _| planner.take_recorded(now_ns()))?;
        Ok(PyBytes::new(py, &recorded))
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

/// A request's key: its frontend, its number there.
type KeyTuple = (u32, u64);

/// A row whose logits are to be changed: request, logits, length of its prompt, what it asks for, its new tokens.
type ProcessedTuple<'py> = (KeyTuple, usize, u32, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// After a panic the state may be half changed, but `abort_all` must still be tried: poison is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
