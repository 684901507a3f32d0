//! `pyengine._core.PROPOSERS` and its like: the names of draft token sources.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use pyengine_speculation::{POSITIONS, Source};

/// Adds what is in here to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let described = PyDict::new(module.py());
    for source in Source::ALL {
        described.set_item(source.name(), source.description())?;
    }
    module.add("PROPOSERS", described)?;
    let by_default = Source::ALL.iter().filter(|source| source.by_default()).map(|source| source.name());
    module.add("DEFAULT_PROPOSERS", PyTuple::new(module.py(), by_default.collect::<Vec<_>>())?)?;
    module.add("DRAFT_POSITIONS", POSITIONS)
}
