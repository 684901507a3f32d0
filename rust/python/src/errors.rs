//! The core's errors as Python exceptions, and panics as `RuntimeError`: the only place that maps either.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use pyengine_base::error::{Error, panic_message};

pyo3::create_exception!(
    pyengine._core,
    MailboxFull,
    PyException,
    "The ring has no room for the message now."
);
pyo3::create_exception!(
    pyengine._core,
    MailboxClosed,
    PyException,
    "The other side has closed the mailbox, or died."
);

/// An error of another crate that Python sees as an exception.
pub(crate) trait Raise {
    /// The exception.
    fn raise(self) -> PyErr;
}

impl Raise for PyErr {
    fn raise(self) -> PyErr {
        self
    }
}

impl Raise for Error {
    fn raise(self) -> PyErr {
        let message = self.to_string();
        match self {
            Error::MailboxFull { .. } => MailboxFull::new_err(message),
            Error::MailboxClosed => MailboxClosed::new_err(message),
            Error::OutOfBlocks { .. } => PyMemoryError::new_err(message),
            Error::System(_) => PyOSError::new_err(message),
            Error::Invariant(_) => PyRuntimeError::new_err(message),
            Error::MessageTooLarge { .. }
            | Error::MalformedMessage(_)
            | Error::UnsupportedTokenizer(_)
            | Error::InvalidArgument(_) => PyValueError::new_err(message),
        }
    }
}

/// Runs `work`; a panic in it becomes a `RuntimeError` that carries its message.
///
/// The state that `work` was changing may be half changed afterwards: let callers treat the error as fatal for
/// the object.
pub(crate) fn guarded<T, E: Raise>(work: impl FnOnce() -> Result<T, E>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Raise::raise),
        Err(panic) => {
            Err(PyRuntimeError::new_err(format!("panic in pyengine._core: {}", panic_message(&*panic))))
        }
    }
}

/// Adds the exceptions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MailboxFull", module.py().get_type::<MailboxFull>())?;
    module.add("MailboxClosed", module.py().get_type::<MailboxClosed>())
}
