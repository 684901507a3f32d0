//! `pyengine._core.declared_messages`: the declarations of messages, to which a test holds those of Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::guarded;
use pyengine_messages::{Delta, Described, Message, Submit, describe};

/// Adds the structs that a message is made of.
fn add(structs: &Bound<'_, PyDict>, described: &Described) -> PyResult<()> {
    described.structs.iter().try_for_each(|(name, fields)| structs.set_item(name, fields.clone()))
}

#[pyfunction]
pub(super) fn declared_messages(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let (structs, extensions) = (PyDict::new(py), PyDict::new(py));
    add(&structs, &describe::<Submit>())?;
    add(&structs, &describe::<Delta>())?;
    for kind in pyengine_scheduler::extensions() {
        let described = (kind.describe)();
        add(&structs, &described)?;
        extensions.set_item(kind.tag, described.spelled)?;
    }
    let extras = PyDict::new(py);
    for kind in pyengine_scheduler::extras() {
        let described = (kind.describe)();
        add(&structs, &described)?;
        extras.set_item(kind.tag, described.spelled)?;
    }
    let declared = PyDict::new(py);
    declared.set_item("extras", extras)?;
    declared.set_item("structs", structs)?;
    declared.set_item("extensions", extensions)?;
    let mut submit = Vec::new();
    guarded(|| Message::Submit(Box::default()).encode_into(&mut submit))?;
    declared.set_item("default_submit", PyBytes::new(py, &submit))?;
    Ok(declared)
}
