//! `pyengine._core.Vocabulary`, `StreamDecoder` and `Detokenizer`.
//!
//! A push of a few tokens keeps the GIL: it takes well under a microsecond. Reading a tokenizer and waiting for the
//! thread give it up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::guarded;
use super::mailbox::PyMailbox;
use super::telemetry::{PyTimeline, timeline};
use pyengine_detokenizer::{Detokenizer, StopStrings, Stream, Vocabulary};

/// From so many tokens on a push is work that the GIL is released for.
const MANY_TOKENS: usize = 1024;
/// How often a join looks whether a signal came.
const SIGNALS: Duration = Duration::from_millis(50);

/// The bytes of every token, from a Hugging Face tokenizer.json (byte-level or byte-fallback).
#[pyclass(name = "Vocabulary", module = "pyengine._core", frozen)]
pub(crate) struct PyVocabulary {
    inner: Arc<Vocabulary>,
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

/// Incremental detokenization of one sequence, with stop strings.
#[pyclass(name = "StreamDecoder", module = "pyengine._core", frozen)]
pub(crate) struct PyStreamDecoder {
    inner: Mutex<Stream>,
}

#[pymethods]
impl PyStreamDecoder {
    #[new]
    #[pyo3(
        signature = (vocabulary, stop = Vec::new(), include_stop = false, skip_special_tokens = true),
        text_signature = "(vocabulary, stop=(), include_stop=False, skip_special_tokens=True)"
    )]
    fn new(
        vocabulary: &PyVocabulary,
        stop: Vec<String>,
        include_stop: bool,
        skip_special_tokens: bool,
    ) -> PyResult<Self> {
        let stops = if stop.is_empty() { None } else { Some(Arc::new(guarded(|| StopStrings::new(&stop))?)) };
        let stream = Stream::new(vocabulary.inner.clone(), stops, include_stop, skip_special_tokens);
        Ok(Self { inner: Mutex::new(stream) })
    }

    fn push(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<(String, Option<String>)> {
        let push = || {
            let mut stream = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let mut text = String::new();
            let found = stream.push(&tokens, &mut text);
            (text, found.map(|found| stream.stop_string(found.index).to_owned()))
        };
        if tokens.len() < MANY_TOKENS {
            // Another thread may hold the lock without the GIL, and needs no GIL to give it back.
            return guarded(|| Ok::<_, PyErr>(push()));
        }
        py.detach(|| guarded(|| Ok::<_, PyErr>(push())))
    }

    fn finish(&self) -> PyResult<String> {
        guarded(|| {
            let mut text = String::new();
            self.inner.lock().unwrap_or_else(PoisonError::into_inner).finish(&mut text);
            Ok::<_, PyErr>(text)
        })
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
