//! The PyO3 module `pyengine._core`: the only place that knows Python. One file per core folder.

mod kv_allocator;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<kv_allocator::KvAllocator>()?;
    Ok(())
}
