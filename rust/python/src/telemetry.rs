//! `pyengine._core.Recorder`, `Timeline`, `Accountant`, `Stage` and `Track`.
//!
//! All of it keeps the GIL: a span takes less time than giving it up would.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::errors::guarded;
use pyengine_telemetry::{self, Accountant, Recorder, STEP_BOUNDS_NS, Span, Timeline, now_ns};

/// Bytes of a span as [`PyRecorder::read`] gives it: start, end, step (u64 each), stage, track (u8 each), padding.
const SPAN_BYTES: usize = 32;

/// Makes a Python enum of one that the core names; numbers and names are the core's.
macro_rules! mirror {
    ($(#[$doc:meta])* $name:ident as $python:literal of $core:ty { $($variant:ident,)* }) => {
        $(#[$doc])*
        #[pyclass(name = $python, module = "pyengine._core", eq, eq_int, frozen, hash, from_py_object,
                  rename_all = "SCREAMING_SNAKE_CASE")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(super) enum $name { $($variant = <$core>::$variant as u8,)* }

        impl $name {
            fn core(self) -> $core {
                match self { $(Self::$variant => <$core>::$variant,)* }
            }

            const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        #[pymethods]
        impl $name {
            /// Its name in reports and metrics.
            #[getter]
            fn label(&self) -> &'static str {
                self.core().name()
            }

            /// What it is, in a sentence.
            #[getter]
            fn meaning(&self) -> &'static str {
                self.core().meaning()
            }

            /// All of them, in the order of their numbers.
            #[staticmethod]
            fn all(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
                const { assert!($name::ALL.len() == <$core>::ALL.len()) };
                PyTuple::new(py, Self::ALL.iter().copied())
            }
        }
    };
}

mirror! {
    /// The stages of spans.
    PyStage as "Stage" of pyengine_telemetry::Stage {
        HttpDecode, Template, Tokenize, QueueWait, Prefill, Decode, Deliver, FirstToken, NextToken, Drain, Admit, Match, Allocate, BufferFill, Draft, Grammar, Launch,
        Device, Sample, CopyBack, Commit, Detokenize, StopMatch, Message, SseEncode, SocketWrite, Idle, LoopLag, CoreWait, GilWait, LoopHeld,
    }
}

mirror! {
    /// The owner of a span's time.
    PyTrack as "Track" of pyengine_telemetry::Track { Scheduler, Detokenizer, Frontend, Request, Device, Loop, }
}

/// A flight recorder of spans, shared by threads and processes.
#[pyclass(name = "Recorder", module = "pyengine._core", frozen)]
pub(super) struct PyRecorder {
    inner: Recorder,
}

#[pymethods]
impl PyRecorder {
    #[new]
    #[pyo3(signature = (capacity = 1 << 16))]
    fn new(capacity: usize) -> PyResult<Self> {
        guarded(|| Recorder::new(capacity)).map(|inner| Self { inner })
    }

    #[staticmethod]
    fn attach(descriptor: RawFd) -> PyResult<Self> {
        // SAFETY: a plain fcntl; it fails on a number that is no open descriptor.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: it is open, and the GIL keeps well-behaved Python from closing it during the call.
        let memory = unsafe { BorrowedFd::borrow_raw(descriptor) };
        guarded(|| Recorder::attach(memory)).map(|inner| Self { inner })
    }

    fn descriptor(&self) -> RawFd {
        self.inner.descriptor().as_raw_fd()
    }

    #[getter]
    fn enabled(&self) -> bool {
        self.inner.is_on()
    }

    #[setter]
    fn set_enabled(&self, on: bool) {
        self.inner.switch(on);
    }

    #[getter]
    fn recorded(&self) -> u64 {
        self.inner.recorded()
    }

    fn timeline(&self, track: PyTrack) -> PyTimeline {
        PyTimeline { inner: self.inner.timeline(track.core()) }
    }

    #[pyo3(signature = (start = 0))]
    fn read<'py>(&self, py: Python<'py>, start: u64) -> (Bound<'py, PyBytes>, u64) {
        let mut bytes = Vec::new();
        let next = self.inner.read(start, |span| bytes.extend_from_slice(&packed(&span)));
        (PyBytes::new(py, &bytes), next)
    }

    #[staticmethod]
    fn cost_ns(py: Python<'_>) -> PyResult<f64> {
        py.detach(|| guarded(Recorder::cost_ns))
    }
}

fn packed(span: &Span) -> [u8; SPAN_BYTES] {
    let mut bytes = [0; SPAN_BYTES];
    bytes[0..8].copy_from_slice(&span.start.to_ne_bytes());
    bytes[8..16].copy_from_slice(&span.end.to_ne_bytes());
    bytes[16..24].copy_from_slice(&span.step.to_ne_bytes());
    bytes[24] = span.stage as u8;
    bytes[25] = span.track as u8;
    bytes
}

/// A chain of spans in a track.
#[pyclass(name = "Timeline", module = "pyengine._core", frozen)]
pub(super) struct PyTimeline {
    inner: Timeline,
}

/// The core's timeline, or one that records nothing.
pub(super) fn timeline(given: Option<&PyTimeline>) -> Timeline {
    given.map_or_else(Timeline::silent, |given| given.inner.clone())
}

#[pymethods]
impl PyTimeline {
    fn begin(&self) -> u64 {
        self.inner.begin()
    }

    fn end_span(&self, stage: PyStage) {
        self.inner.end_span(stage.core());
    }

    fn span(&self, stage: PyStage, start: u64) -> u64 {
        self.inner.span(stage.core(), start)
    }

    fn now(&self) -> u64 {
        now_ns()
    }

    fn delivered(&self, committed: u64, since: u64, first: bool, request: u64) -> u64 {
        use pyengine_telemetry::{Stage, Track::Request};
        let end = now_ns();
        let stage = if first { Stage::FirstToken } else { Stage::NextToken };
        for (stage, start) in [(Stage::Deliver, committed), (stage, since)] {
            self.inner.record(Span { stage, track: Request, start: start.min(end), end, step: request });
        }
        end
    }

    fn record(&self, track: PyTrack, stage: PyStage, start: u64, end: u64, step: u64) {
        self.inner.record(Span { stage: stage.core(), track: track.core(), start, end, step });
    }
}

/// Adds up a recorder's spans, exposed and overlapped.
#[pyclass(name = "Accountant", module = "pyengine._core", frozen)]
pub(super) struct PyAccountant {
    inner: Accountant,
}

#[pymethods]
impl PyAccountant {
    #[new]
    fn new(recorder: &PyRecorder) -> Self {
        Self { inner: Accountant::new(recorder.inner.clone()) }
    }

    fn start(&self) -> PyResult<()> {
        guarded(|| self.inner.start())
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = py.detach(|| self.inner.totals());
        let mut stages = Vec::new();
        for (track, of_track) in pyengine_telemetry::Track::ALL.iter().zip(&totals.stages) {
            for (stage, total) in pyengine_telemetry::Stage::ALL.iter().zip(of_track) {
                if total.count > 0 {
                    let row =
                        (track.name(), stage.name(), total.count, total.exposed_ns, total.overlapped_ns);
                    stages.push(row);
                }
            }
        }
        let result = PyDict::new(py);
        result.set_item("wall_ns", totals.wall_ns)?;
        result.set_item("busy_ns", totals.busy_ns)?;
        result.set_item("steps", totals.steps)?;
        result.set_item("steps_ns", totals.steps_ns)?;
        result.set_item("step_histogram", totals.step_histogram.to_vec())?;
        let lengths = PyDict::new(py);
        for (stage, histogram) in &totals.lengths {
            let (bounds, counts) = (histogram.bounds().to_vec(), histogram.counts().to_vec());
            lengths.set_item(stage.name(), (bounds, counts, histogram.sum()))?;
        }
        result.set_item("lengths", lengths)?;
        result.set_item("spans", totals.spans)?;
        result.set_item("lost", totals.lost)?;
        result.set_item("stages", stages)?;
        Ok(result)
    }
}

/// Adds the classes to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyStage>()?;
    module.add_class::<PyTrack>()?;
    module.add_class::<PyRecorder>()?;
    module.add_class::<PyTimeline>()?;
    module.add_class::<PyAccountant>()?;
    module.add("STEP_BOUNDS_NS", PyTuple::new(module.py(), STEP_BOUNDS_NS)?)
}
