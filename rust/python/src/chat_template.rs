//! `pyengine._core.ChatTemplate`. Compiling and rendering release the GIL; reading the variables holds it.

use std::collections::BTreeSet;

use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMapping, PyString, PyTuple};

use pyengine_chat_template::{ChatTemplate, Error, Limits, Value, big_integer};

use super::errors::{Raise, guarded};

/// Deeper variables are refused, before they take the stack.
const MAX_DEPTH: usize = 500;

pyo3::create_exception!(
    pyengine._core,
    TemplateError,
    PyException,
    "A chat template cannot be compiled or rendered: `args` are the reason's kind, its message and its line."
);

impl Raise for Error {
    fn raise(self) -> PyErr {
        let (kind, message, line) = match self {
            Self::Malformed { line, message } => ("malformed", message, line),
            Self::Refused(message) => ("refused", message, 0),
            Self::OutOfFuel => ("slow", String::new(), 0),
            Self::TooLong => ("long", String::new(), 0),
            Self::Failed(message) => ("failed", message, 0),
        };
        TemplateError::new_err((kind, message, line))
    }
}

/// A compiled chat template. Any thread may render it.
#[pyclass(name = "ChatTemplate", module = "pyengine._core", frozen)]
pub(crate) struct PyChatTemplate {
    inner: ChatTemplate,
}

#[pymethods]
impl PyChatTemplate {
    #[new]
    fn new(py: Python<'_>, source: &str) -> PyResult<Self> {
        Ok(Self { inner: py.detach(|| guarded(|| ChatTemplate::compile(source)))? })
    }

    #[getter]
    fn message_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        frozen(py, &self.inner.reads().message_keys)
    }

    #[getter]
    fn variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        frozen(py, &self.inner.reads().variables)
    }

    #[getter]
    fn sought_texts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        frozen(py, &self.inner.reads().sought)
    }

    fn render(
        &self,
        py: Python<'_>,
        variables: &Bound<'_, PyDict>,
        seconds: f64,
        max_characters: usize,
    ) -> PyResult<String> {
        let variables = value(variables.as_any(), 0)?;
        let limits = Limits { seconds, max_characters };
        py.detach(|| guarded(|| self.inner.render(variables, limits)))
    }
}

fn frozen<'py>(py: Python<'py>, texts: &BTreeSet<String>) -> PyResult<Bound<'py, PyFrozenSet>> {
    PyFrozenSet::new(py, texts)
}

/// The template's value of a Python object.
fn value(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(PyValueError::new_err("the variables are too deep for a chat template"));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::from(text.to_str()?));
    }
    if object.is_none() {
        return Ok(Value::from(()));
    }
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::from(flag.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return match object.extract::<i64>() {
            Ok(number) => Ok(Value::from(number)),
            Err(_) => Ok(big_integer(object.str()?.to_str()?.to_owned())),
        };
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        return Ok(Value::from(number.value()));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter()?.map(|item| value(&item?, depth + 1)).collect();
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut pairs = Vec::new();
        for item in mapping.items()?.iter() {
            let (key, each) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
            pairs.push((value(&key, depth + 1)?, value(&each, depth + 1)?));
        }
        return Ok(Value::from_pairs(pairs));
    }
    let kind = object.get_type().qualname()?;
    Err(PyTypeError::new_err(format!("a chat template takes no {kind}")))
}

/// Adds the class and its exception to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TemplateError", module.py().get_type::<TemplateError>())?;
    module.add_class::<PyChatTemplate>()
}
