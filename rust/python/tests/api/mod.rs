//! Bindings of the Rust parts that tests and benches call one by one, and the floors of benches. The engine uses none of
//! them, and wheels lack them: they need the feature `test-api`.

mod grammar;
mod kv_allocator;
mod messages;
mod peaks;
mod stream_decoder;

use pyengine_kernels_cpu::isa::InstructionSet;
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use crate::errors::guarded;
use pyengine_base::error::Error;

/// Multiply-adds a second in float32, bfloat16 and bytes, and bytes a second read from memory.
type Peaks = (Option<f64>, Option<f64>, Option<f64>, f64);

#[pyfunction]
fn machine_peaks(py: Python<'_>, threads: usize) -> PyResult<Peaks> {
    py.detach(|| {
        guarded(|| {
            let threads = Threads::new(threads).map_err(|error| Error::System(error.to_string()))?;
            let [floats, halves, bytes] = peaks::multiply_adds(&threads);
            Ok::<_, Error>((floats, halves, bytes, peaks::read_bandwidth(&threads)))
        })
    })
}

#[pyfunction]
fn instruction_set() -> String {
    format!("{:?}", InstructionSet::best())
}

/// Adds the classes and functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    grammar::register(module)?;
    module.add_class::<stream_decoder::PyStreamDecoder>()?;
    module.add_function(wrap_pyfunction!(kv_allocator::match_prefix, module)?)?;
    module.add_function(wrap_pyfunction!(kv_allocator::time_requests, module)?)?;
    module.add_function(wrap_pyfunction!(messages::declared_messages, module)?)?;
    module.add_function(wrap_pyfunction!(instruction_set, module)?)?;
    module.add_function(wrap_pyfunction!(machine_peaks, module)?)
}
