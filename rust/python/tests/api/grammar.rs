//! `pyengine._core.GrammarContext`, `compile_grammar`, `CompiledGrammar` and `GrammarState`: a grammar without an engine,
//! which compiles and uses grammars in Rust only.
//!
//! Every call that may take long, or wait for another thread, releases the GIL.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use pyengine_grammar::{Compiled, Grammar, Refusal};
use pyengine_grammar_compiler::compiler::{compile_within, prepare};
use pyengine_grammar_compiler::context::GrammarContext;

use crate::errors::{Raise, guarded};

impl Raise for Refusal {
    fn raise(self) -> PyErr {
        PyValueError::new_err(self.message)
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
        Ok(PyGrammarState { inner: Mutex::new(state), words: self.words })
    }

    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            guarded(|| {
                prepare(&self.inner, || false);
                Ok::<_, PyErr>(())
            })
        })
    }

    #[getter]
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.inner.warnings().to_vec()
    }
}

/// The state of one text in its grammar.
#[pyclass(name = "GrammarState", module = "pyengine._core", frozen)]
pub(crate) struct PyGrammarState {
    inner: Mutex<Box<dyn Grammar>>,
    words: usize,
}

impl PyGrammarState {
    /// Calls `work` with the state and without the GIL, which another thread that holds the state may need.
    fn work<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut dyn Grammar) -> T + Send) -> PyResult<T> {
        py.detach(|| {
            guarded(|| Ok::<_, PyErr>(work(&mut **self.inner.lock().unwrap_or_else(PoisonError::into_inner))))
        })
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
        // over, and no other thread touches it meanwhile, as the stub demands.
        let mask = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u32>(), self.words) };
        self.work(py, |state| state.mask().write(mask))
    }

    fn advance(&self, py: Python<'_>, token: u32) -> PyResult<bool> {
        self.work(py, |state| state.advance(token))
    }

    #[pyo3(signature = (limit = None))]
    fn closing_tokens(&self, py: Python<'_>, limit: Option<usize>) -> PyResult<Option<Vec<u32>>> {
        self.work(py, |state| state.closing_tokens(limit.unwrap_or(usize::MAX)))
    }

    /// Whether `closing_tokens(limit)` surely is not None, told without writing them where that can be.
    fn closes_within(&self, py: Python<'_>, limit: usize) -> PyResult<bool> {
        self.work(py, |state| state.closes_within(limit))
    }

    #[getter]
    fn is_terminated(&self, py: Python<'_>) -> PyResult<bool> {
        self.work(py, |state| state.is_terminated())
    }

    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.work(py, |state| state.failure().map(str::to_owned))
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
