//! `pyengine._core.Mailbox`.
//!
//! Sending and draining keep the GIL: they never block, take well under a microsecond a message, and giving it
//! up and back would cost more. Waiting gives it up.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::errors::guarded;
use pyengine_mailbox::{Mailbox, Waited};

/// A lock-free ring of byte messages: many writers, one reader, bounded.
#[pyclass(name = "Mailbox", module = "pyengine._core", frozen)]
pub(crate) struct PyMailbox {
    inner: Mailbox,
}

impl PyMailbox {
    /// The core's handle, for the bindings of other actors.
    pub(crate) fn inner(&self) -> &Mailbox {
        &self.inner
    }
}

#[pymethods]
impl PyMailbox {
    #[new]
    #[pyo3(signature = (capacity = 1 << 20))]
    fn new(capacity: usize) -> PyResult<Self> {
        guarded(|| Mailbox::new(capacity)).map(|inner| Self { inner })
    }

    #[staticmethod]
    fn attach(memory_fd: RawFd, event_fd: RawFd) -> PyResult<Self> {
        for fd in [memory_fd, event_fd] {
            // SAFETY: a plain fcntl; it fails on a number that is no open descriptor.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        // SAFETY: both are open, and the GIL keeps well-behaved Python from closing them during the call.
        let (memory, event) =
            unsafe { (BorrowedFd::borrow_raw(memory_fd), BorrowedFd::borrow_raw(event_fd)) };
        guarded(|| Mailbox::attach(memory, event)).map(|inner| Self { inner })
    }

    fn descriptors(&self) -> (RawFd, RawFd) {
        let (memory, event) = self.inner.descriptors();
        (memory.as_raw_fd(), event.as_raw_fd())
    }

    fn send(&self, message: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(bytes) = message.cast::<PyBytes>() {
            return guarded(|| self.inner.send(bytes.as_bytes()));
        }
        let buffer = PyUntypedBuffer::get(message)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the message must be contiguous"));
        }
        let (start, length) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        // SAFETY: the buffer is contiguous and held, so its bytes stay; the GIL keeps Python from writing to them
        // during the call. An empty buffer may have no address.
        let bytes = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, length) } };
        guarded(|| self.inner.send(bytes))
    }

    #[pyo3(signature = (limit = 1024))]
    fn drain<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        let mut messages = Vec::new();
        guarded(|| self.inner.drain_with(limit, |message| messages.push(PyBytes::new(py, message))))?;
        PyList::new(py, messages)
    }

    #[pyo3(signature = (timeout = None, spin_us = 0))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, spin_us: u64) -> PyResult<bool> {
        let deadline = match timeout {
            Some(timeout) if timeout.is_nan() || timeout < 0.0 => {
                return Err(PyValueError::new_err("timeout must be at least 0"));
            }
            // A timeout that no Duration can hold is for ever.
            Some(timeout) => {
                Duration::try_from_secs_f64(timeout).ok().and_then(|left| Instant::now().checked_add(left))
            }
            None => None,
        };
        // A message that is there already is reported without releasing the GIL.
        if guarded(|| self.inner.wait(Some(Duration::ZERO), Duration::ZERO))? {
            return Ok(true);
        }
        let mut spin = Duration::from_micros(spin_us);
        loop {
            match py.detach(|| guarded(|| self.inner.wait_until(deadline, spin)))? {
                Waited::Message => return Ok(true),
                Waited::Closed | Waited::TimedOut => return Ok(false),
                Waited::Interrupted => py.check_signals()?,
            }
            spin = Duration::ZERO;
        }
    }

    fn arm(&self) -> PyResult<bool> {
        guarded(|| self.inner.arm())
    }

    fn fileno(&self) -> PyResult<RawFd> {
        guarded(|| self.inner.descriptor()).map(|descriptor| descriptor.as_raw_fd())
    }

    fn close(&self) {
        self.inner.close();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    #[getter]
    fn used(&self) -> usize {
        self.inner.used()
    }
}
