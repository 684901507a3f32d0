//! `pyengine._core.match_prefix` and `time_requests`: the allocator's calls, which the planner makes in Rust.

use std::time::Instant;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::kv_allocator::KvAllocator;
use pyengine_base::error::Result;
use pyengine_kv_allocator::{BlockId, KvAllocator as Core};

#[pyfunction]
pub(super) fn match_prefix(
    py: Python<'_>,
    kv: &KvAllocator,
    tokens: PyBuffer<u32>,
) -> PyResult<Vec<BlockId>> {
    let tokens = tokens.to_vec(py)?;
    kv.ask(py, |core| {
        let mut blocks = Vec::with_capacity(tokens.len() / core.block_size());
        core.match_prefix(0, &tokens, usize::MAX, &mut blocks);
        Ok(blocks)
    })
}

#[pyfunction]
pub(super) fn time_requests<'py>(
    py: Python<'py>,
    kv: &KvAllocator,
    prompts: PyBuffer<u32>,
    length: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let prompts = prompts.to_vec(py)?;
    if length == 0 || !prompts.len().is_multiple_of(length) {
        let count = prompts.len();
        return Err(PyValueError::new_err(format!("{count} tokens are not prompts of {length} each")));
    }
    let timings = kv.ask(py, |core| Timings::take(core, &prompts, length))?;
    let result = PyDict::new(py);
    for (name, nanoseconds) in Timings::NAMES.into_iter().zip(timings.columns) {
        result.set_item(name, nanoseconds)?;
    }
    Ok(result)
}

/// Nanoseconds that each call took, without the binding around it.
#[derive(Default)]
struct Timings {
    columns: [Vec<u64>; 4],
}

impl Timings {
    const NAMES: [&str; 4] = ["match", "allocate", "insert", "release"];

    fn take(core: &mut Core, prompts: &[u32], length: usize) -> Result<Self> {
        let mut timings = Self::default();
        let count = length.div_ceil(core.block_size());
        let mut blocks = Vec::with_capacity(count);
        for prompt in prompts.chunks_exact(length) {
            blocks.clear();
            timings.time(0, || core.match_prefix(0, prompt, usize::MAX, &mut blocks));
            let missing = count - blocks.len();
            if let Err(error) = timings.time(1, || core.allocate(missing, &mut blocks)) {
                core.release(&blocks);
                return Err(error);
            }
            timings.time(2, || core.insert(0, prompt, &blocks));
            timings.time(3, || core.release(&blocks));
        }
        Ok(timings)
    }

    fn time<T>(&mut self, column: usize, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.columns[column].push(start.elapsed().as_nanos() as u64);
        result
    }
}
