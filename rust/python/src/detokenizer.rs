//! `pyengine._core.Vocabulary` and `Detokenizer`. Reading a tokenizer and waiting for the thread release the GIL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::guarded;
use super::mailbox::PyMailbox;
use super::telemetry::{PyTimeline, timeline};
use pyengine_detokenizer::{Detokenizer, Vocabulary};

/// How often a join looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// The bytes of every token, from a Hugging Face tokenizer.json (byte-level or byte-fallback).
#[pyclass(name = "Vocabulary", module = "pyengine._core", frozen)]
pub(crate) struct PyVocabulary {
    pub(super) inner: Arc<Vocabulary>,
}

#[pymethods]
impl PyVocabulary {
    #[staticmethod]
    fn from_tokenizer_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let inner = py.detach(|| guarded(|| Vocabulary::from_tokenizer_json(text)))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn token_bytes<'py>(&self, py: Python<'py>, token: u32) -> PyResult<Bound<'py, PyBytes>> {
        match self.inner.token_bytes(token) {
            Some(bytes) => Ok(PyBytes::new(py, bytes)),
            None => Err(PyIndexError::new_err(format!("token {token} is beyond the vocabulary"))),
        }
    }

    fn containing(&self, py: Python<'_>, text: &str) -> Vec<u32> {
        py.detach(|| self.inner.containing(text.as_bytes()))
    }

    fn is_special(&self, token: u32) -> bool {
        self.inner.is_special(token)
    }
}

/// The Detokenizer actor: a Rust thread that never takes the GIL.
#[pyclass(name = "Detokenizer", module = "pyengine._core", frozen)]
pub(crate) struct PyDetokenizer {
    inner: Detokenizer,
}

#[pymethods]
impl PyDetokenizer {
    #[new]
    #[pyo3(signature = (vocabulary, inbox, scheduler, frontends, timeline = None))]
    fn new(
        vocabulary: &PyVocabulary,
        inbox: &PyMailbox,
        scheduler: &PyMailbox,
        frontends: Vec<PyRef<'_, PyMailbox>>,
        timeline: Option<&PyTimeline>,
    ) -> Self {
        let frontends = frontends.iter().map(|mailbox| mailbox.inner().clone()).collect();
        let vocabulary = vocabulary.inner.clone();
        let (inbox, scheduler) = (inbox.inner().clone(), scheduler.inner().clone());
        Self { inner: Detokenizer::new(vocabulary, inbox, scheduler, frontends, self::timeline(timeline)) }
    }

    fn start(&self) -> PyResult<()> {
        guarded(|| self.inner.start())
    }

    #[pyo3(signature = (timeout = None))]
    fn join(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if timeout.is_some_and(|timeout| timeout.is_nan() || timeout < 0.0) {
            return Err(PyValueError::new_err("timeout must be at least 0"));
        }
        // A timeout that no Duration can hold is for ever.
        let left = timeout.and_then(|timeout| Duration::try_from_secs_f64(timeout).ok());
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        loop {
            let left =
                deadline.map_or(SIGNALS, |deadline| deadline.saturating_duration_since(Instant::now()));
            if py.detach(|| guarded(|| self.inner.join(Some(left.min(SIGNALS)))))? {
                return Ok(true);
            }
            if left <= SIGNALS && deadline.is_some() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    #[getter]
    fn open_streams(&self) -> usize {
        self.inner.open_streams()
    }

    #[getter]
    fn ignored(&self) -> u64 {
        self.inner.ignored()
    }

    #[getter]
    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}
