//! `pyengine._core.PROPOSERS` and its like: the names of draft token sources; and `Speculator`, for a bench.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::errors::guarded;
use super::kv_allocator::read_tokens;
use crate::error::Error;
use crate::speculate::{POSITIONS, Source, SpeculationConfig, Speculator};

/// The slot that texts go through.
const SLOT: u32 = 0;
const MAX_DRAFT: usize = 8;

/// Adds what is in here to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let described = PyDict::new(module.py());
    for source in Source::ALL {
        described.set_item(source.name(), source.description())?;
    }
    module.add("PROPOSERS", described)?;
    let by_default = Source::ALL.iter().filter(|source| source.by_default()).map(|source| source.name());
    module.add("DEFAULT_PROPOSERS", PyTuple::new(module.py(), by_default.collect::<Vec<_>>())?)?;
    module.add("DRAFT_POSITIONS", POSITIONS)?;
    module.add_class::<PySpeculator>()
}

/// A history of outputs and drafts from it. Whole texts go in at once, so that what is timed from Python is Rust.
#[pyclass(name = "Speculator", frozen, module = "pyengine._core")]
struct PySpeculator {
    core: Mutex<Speculator>,
}

impl PySpeculator {
    fn lock(&self) -> MutexGuard<'_, Speculator> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PySpeculator {
    #[new]
    fn new(history_tokens: usize) -> Self {
        let config = SpeculationConfig {
            sources: [Source::Suffix].into_iter().collect(),
            max_draft: MAX_DRAFT,
            history_tokens,
            adaptive: false,
        };
        Self { core: Mutex::new(Speculator::new(config, 1)) }
    }

    fn remember(&self, py: Python<'_>, output: &Bound<'_, PyAny>) -> PyResult<()> {
        let output = read_tokens(py, output)?;
        guarded(|| {
            let mut core = self.lock();
            core.open(SLOT, 0, &output, 0, None);
            core.close(SLOT, true);
            Ok::<_, Error>(())
        })
    }

    fn tend(&self, budget: usize) -> PyResult<()> {
        guarded(|| {
            self.lock().tend(budget);
            Ok::<_, Error>(())
        })
    }

    fn replay(&self, py: Python<'_>, output: &Bound<'_, PyAny>, propose: bool) -> PyResult<(usize, usize)> {
        let output = read_tokens(py, output)?;
        guarded(|| {
            let mut core = self.lock();
            core.open(SLOT, 0, &[], 0, None);
            let (mut drafted, mut accepted) = (0, 0);
            let mut draft = Vec::new();
            for at in 0..output.len() {
                if propose {
                    draft.clear();
                    core.propose(SLOT, &[], MAX_DRAFT, &mut draft);
                    drafted += draft.len();
                    accepted += draft.iter().zip(&output[at..]).take_while(|(a, b)| a == b).count();
                }
                core.append(SLOT, &output[at..=at]);
            }
            core.close(SLOT, false);
            Ok::<_, Error>((drafted, accepted))
        })
    }

    fn memory(&self) -> (usize, usize) {
        let stats = self.lock().stats();
        (stats.history_tokens, stats.history_bytes)
    }
}
