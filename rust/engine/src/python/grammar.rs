//! `pyengine._core.GrammarContext`, `compile_grammar`, `CompiledGrammar` and `GrammarState`.
//!
//! Compiling and masks give the GIL up; the rest takes microseconds and keeps it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::guarded;
use crate::grammar::compiler::compile_within;
use crate::grammar::context::GrammarContext;
use crate::grammar::{Compiled, Grammar, Refusal};

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        PyValueError::new_err(refusal.message)
    }
}

/// A tokenizer for grammars.
#[pyclass(name = "GrammarContext", module = "pyengine._core", frozen)]
pub(crate) struct PyGrammarContext {
    inner: Arc<GrammarContext>,
}

#[pymethods]
impl PyGrammarContext {
    #[staticmethod]
    fn from_tokenizer_json(text: &str, end_token_ids: Vec<u32>, vocab_size: usize) -> PyResult<Self> {
        let inner = guarded(|| GrammarContext::from_tokenizer_json(text, &end_token_ids, vocab_size))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    fn load(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| guarded(|| self.inner.load().map(drop)))
    }

    fn warm(&self) {
        self.inner.warm();
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    #[getter]
    fn end_token_ids(&self) -> Vec<u32> {
        self.inner.end_tokens().to_vec()
    }

    #[getter]
    fn mask_words(&self) -> usize {
        self.inner.vocab_size().div_ceil(32)
    }
}

/// A compiled grammar.
#[pyclass(name = "CompiledGrammar", module = "pyengine._core", frozen)]
pub(crate) struct PyCompiledGrammar {
    inner: Arc<dyn Compiled>,
    words: usize,
}

#[pymethods]
impl PyCompiledGrammar {
    fn start(&self, py: Python<'_>) -> PyResult<PyGrammarState> {
        let state = py.detach(|| guarded(|| Ok::<_, PyErr>(self.inner.start())))?;
        Ok(PyGrammarState { inner: Mutex::new((state, 0)), words: self.words })
    }

    #[getter]
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    #[getter]
    fn memory(&self) -> usize {
        self.inner.memory()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.inner.warnings().to_vec()
    }
}

/// How far one text has come in its grammar, and how many tokens it took.
#[pyclass(name = "GrammarState", module = "pyengine._core", frozen)]
pub(crate) struct PyGrammarState {
    inner: Mutex<(Box<dyn Grammar>, usize)>,
    words: usize,
}

impl PyGrammarState {
    fn lock(&self) -> MutexGuard<'_, (Box<dyn Grammar>, usize)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the state without the GIL: another thread may hold the state and need the GIL to give it back.
    fn work<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut (Box<dyn Grammar>, usize)) -> T + Send,
    ) -> PyResult<T> {
        py.detach(|| guarded(|| Ok::<_, PyErr>(work(&mut self.lock()))))
    }
}

#[pymethods]
impl PyGrammarState {
    fn fill_mask(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer: PyBuffer<u32> =
            PyBuffer::get(buffer).map_err(|_| PyTypeError::new_err("the mask must be a buffer of uint32"))?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the mask must be writable and contiguous"));
        }
        if buffer.item_count() != self.words {
            let (words, count) = (self.words, buffer.item_count());
            return Err(PyValueError::new_err(format!("the mask must have {words} words, not {count}")));
        }
        // SAFETY: contiguous, writable, aligned and of u32, as was checked; `buffer` holds it until the call is
        // over, and the caller lets nobody else at it meanwhile, as the stub demands.
        let mask = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u32>(), self.words) };
        self.work(py, |(state, _)| state.fill_mask(mask))
    }

    fn advance(&self, py: Python<'_>, token: u32) -> PyResult<bool> {
        self.work(py, |(state, taken)| {
            let took = state.advance(token);
            *taken += usize::from(took);
            took
        })
    }

    fn roll_back(&self, py: Python<'_>, tokens: usize) -> PyResult<()> {
        let enough = self.work(py, |(state, taken)| {
            let enough = tokens <= *taken;
            if enough {
                state.roll_back(tokens);
                *taken -= tokens;
            }
            enough
        })?;
        if enough { Ok(()) } else { Err(PyValueError::new_err("there are fewer tokens to take back")) }
    }

    #[getter]
    fn is_terminated(&self, py: Python<'_>) -> PyResult<bool> {
        self.work(py, |(state, _)| state.is_terminated())
    }

    fn forced_text<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let text = self.work(py, |(state, _)| state.forced_text())?;
        Ok(PyBytes::new(py, &text))
    }

    #[pyo3(signature = (limit = 64))]
    fn forced_tokens(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<u32>> {
        self.work(py, |(state, _)| {
            let mut tokens = Vec::new();
            state.forced_tokens(limit, &mut tokens);
            tokens
        })
    }

    fn closing_tokens(&self, py: Python<'_>, limit: usize) -> PyResult<Option<Vec<u32>>> {
        self.work(py, |(state, _)| state.closing_tokens(limit))
    }

    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.work(py, |(state, _)| state.failure().map(str::to_owned))
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let forked = self.work(py, |(state, taken)| (state.fork(), *taken))?;
        Ok(Self { inner: Mutex::new(forked), words: self.words })
    }
}

/// Compiles a description.
#[pyfunction]
#[pyo3(signature = (context, description, timeout_s = 5.0))]
fn compile_grammar(
    py: Python<'_>,
    context: &PyGrammarContext,
    description: &[u8],
    timeout_s: f64,
) -> PyResult<PyCompiledGrammar> {
    let timeout = Duration::try_from_secs_f64(timeout_s)
        .map_err(|_| PyValueError::new_err("timeout_s must be a number of seconds, at least 0"))?;
    let inner = py.detach(|| guarded(|| compile_within(&context.inner, description, timeout)))?;
    Ok(PyCompiledGrammar { inner, words: context.inner.vocab_size().div_ceil(32) })
}

/// Adds the classes and the function to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyGrammarContext>()?;
    module.add_class::<PyCompiledGrammar>()?;
    module.add_class::<PyGrammarState>()?;
    module.add_function(wrap_pyfunction!(compile_grammar, module)?)
}
