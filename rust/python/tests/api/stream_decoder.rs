//! `pyengine._core.StreamDecoder`. A push of a few tokens keeps the GIL: it takes well under a microsecond.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::detokenizer::PyVocabulary;
use crate::errors::guarded;
use pyengine_detokenizer::{StopStrings, Stream};

/// A push of at least this many tokens releases the GIL.
const MANY_TOKENS: usize = 1024;

/// Incremental detokenization of one sequence, with stop strings.
#[pyclass(name = "StreamDecoder", module = "pyengine._core", frozen)]
pub(super) struct PyStreamDecoder {
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
