//! `pyengine._core.Speculator`: the speculator as Python sees it, for tests and benches.
//!
//! The planner has its own; nothing here is on the path of a step. Whole texts go in at once, so that what is
//! timed from Python is Rust.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::guarded;
use super::kv_allocator::read_tokens;
use crate::error::Error;
use crate::speculate::{SpeculationConfig, Speculator};

/// The slot that texts go through.
const SLOT: u32 = 0;

/// The Python class.
#[pyclass(name = "Speculator", frozen, module = "pyengine._core")]
pub(super) struct PySpeculator {
    core: Mutex<Speculator>,
    max_draft: usize,
}

impl PySpeculator {
    fn lock(&self) -> MutexGuard<'_, Speculator> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PySpeculator {
    #[new]
    #[pyo3(signature = (history_tokens, max_draft = 8, ngram = false, suffix = true))]
    fn new(history_tokens: usize, max_draft: usize, ngram: bool, suffix: bool) -> Self {
        let config = SpeculationConfig {
            ngram,
            suffix,
            draft_model: false,
            forced: false,
            prediction: false,
            max_draft,
            history_tokens,
            adaptive: false,
        };
        Self { core: Mutex::new(Speculator::new(config, 1)), max_draft }
    }

    fn remember(&self, py: Python<'_>, tenant: u64, output: &Bound<'_, PyAny>) -> PyResult<()> {
        let output = read_tokens(py, output)?;
        py.detach(|| {
            guarded(|| {
                let mut core = self.lock();
                core.open(SLOT, tenant, &output, 0, None);
                core.close(SLOT, true);
                Ok::<_, Error>(())
            })
        })
    }

    fn tend(&self, py: Python<'_>, budget: usize) -> PyResult<()> {
        py.detach(|| {
            guarded(|| {
                self.lock().tend(budget);
                Ok::<_, Error>(())
            })
        })
    }

    fn replay(
        &self,
        py: Python<'_>,
        tenant: u64,
        output: &Bound<'_, PyAny>,
        propose: bool,
    ) -> PyResult<(usize, usize)> {
        let output = read_tokens(py, output)?;
        py.detach(|| {
            guarded(|| {
                let mut core = self.lock();
                core.open(SLOT, tenant, &[], 0, None);
                let (mut drafted, mut accepted) = (0, 0);
                let mut draft = Vec::new();
                for at in 0..output.len() {
                    if propose {
                        draft.clear();
                        core.propose(SLOT, &[], self.max_draft, &mut draft);
                        drafted += draft.len();
                        let right = draft.iter().zip(&output[at..]).take_while(|(a, b)| a == b).count();
                        accepted += right;
                    }
                    core.append(SLOT, &output[at..=at]);
                }
                core.close(SLOT, false);
                Ok::<_, Error>((drafted, accepted))
            })
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.lock().stats();
        let fields = PyDict::new(py);
        fields.set_item("history_tokens", stats.history_tokens)?;
        fields.set_item("history_bytes", stats.history_bytes)?;
        Ok(fields)
    }
}
