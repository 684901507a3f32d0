//! The PyO3 module `pyengine._core`: the only crate that knows Python. One file for each crate, `cpu` for the kernels of
//! the CPU runner, and `tests/api/` beside it for what only tests and benches call.

mod chat_template;
mod cpu;
mod detokenizer;
mod draft_passes;
mod errors;
mod kv_allocator;
mod mailbox;
mod scheduler;
mod speculate;
mod step_layout;
mod telemetry;
#[cfg(feature = "test-api")]
#[path = "../tests/api/mod.rs"]
mod test_api;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    chat_template::register(module)?;
    cpu::register(module)?;
    module.add_class::<mailbox::PyMailbox>()?;
    module.add_class::<kv_allocator::KvAllocator>()?;
    module.add_class::<step_layout::PyStepLayout>()?;
    module.add("NO_TOKEN", pyengine_scheduler::step::buffers::NO_TOKEN)?;
    module.add("NO_SLOT", pyengine_scheduler::step::buffers::NO_SLOT)?;
    module.add_function(wrap_pyfunction!(step_layout::step_numbers, module)?)?;
    module.add_class::<scheduler::PyPlanner>()?;
    module.add_class::<draft_passes::PyDraftPasses>()?;
    module.add_function(wrap_pyfunction!(step_layout::sampling_row, module)?)?;
    speculate::register(module)?;
    module.add_class::<detokenizer::PyVocabulary>()?;
    module.add_class::<detokenizer::PyDetokenizer>()?;
    telemetry::register(module)?;
    #[cfg(feature = "test-api")]
    test_api::register(module)?;
    Ok(())
}
