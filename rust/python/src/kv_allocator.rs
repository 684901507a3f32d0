//! `pyengine._core.KvAllocator`: the allocator as Python sees it, for construction, counts, its check and benches.
//!
//! The planner calls the allocator inside, by [`KvAllocator::shared`]; nothing here is on the path of a step.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::buffer::{Element, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::guarded;
use pyengine_base::error::{Error, Result};
use pyengine_kv_allocator::{BlockId, Counts, Group, KvAllocator as Core};

/// The Python class: the allocator, shared with the planner.
#[pyclass(frozen, module = "pyengine._core")]
pub(super) struct KvAllocator {
    shared: Arc<Mutex<Core>>,
    num_blocks: usize,
    block_size: usize,
}

/// Cache groups, (window, page tables) each; `None` is those of a model without windows.
pub(super) fn cache_groups(groups: Option<Vec<(Option<usize>, usize)>>) -> Vec<Group> {
    groups.map_or(vec![Group::FULL], |groups| {
        groups.into_iter().map(|(window, tables)| Group { window, tables }).collect()
    })
}

#[pymethods]
impl KvAllocator {
    #[new]
    #[pyo3(signature = (num_blocks, block_size = 16, prefix_cache = true, groups = None))]
    fn new(
        num_blocks: usize,
        block_size: usize,
        prefix_cache: bool,
        groups: Option<Vec<(Option<usize>, usize)>>,
    ) -> PyResult<Self> {
        let groups = cache_groups(groups);
        let core = guarded(|| Core::with_groups(num_blocks, block_size, prefix_cache, &groups))?;
        Ok(Self { shared: Arc::new(Mutex::new(core)), num_blocks, block_size })
    }

    fn counts(&self, py: Python<'_>) -> PyResult<(usize, usize, usize)> {
        self.ask(py, |core| {
            let Counts { free, cached, held } = core.counts();
            Ok((free, cached, held))
        })
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |core| core.check())
    }

    fn reset_prefix_cache(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |core| Ok(core.reset_prefix_cache()))
    }

    #[pyo3(signature = (tokens, salt = 0))]
    fn match_prefix(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, salt: u64) -> PyResult<Vec<BlockId>> {
        let tokens = read_tokens(py, tokens)?;
        self.ask(py, |core| {
            if core.groups().len() > 1 {
                return Err(Error::InvalidArgument("a list of blocks does not say what windows hold".into()));
            }
            let mut blocks = Vec::with_capacity(tokens.len() / core.block_size());
            core.match_prefix(salt, &tokens, usize::MAX, &mut blocks);
            Ok(blocks)
        })
    }

    #[pyo3(signature = (tokens, blocks, salt = 0))]
    fn insert(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        blocks: Vec<BlockId>,
        salt: u64,
    ) -> PyResult<usize> {
        let tokens = read_tokens(py, tokens)?;
        if blocks.len() < tokens.len() / self.block_size {
            return Err(PyValueError::new_err(format!(
                "{} tokens fill {} blocks, but only {} are named",
                tokens.len(),
                tokens.len() / self.block_size,
                blocks.len()
            )));
        }
        self.ask(py, |core| Ok(core.insert(salt, &tokens, &blocks)))
    }

    fn release(&self, py: Python<'_>, blocks: Vec<BlockId>) -> PyResult<()> {
        self.ask(py, |core| {
            core.release(&blocks);
            Ok(())
        })
    }

    fn time_requests<'py>(
        &self,
        py: Python<'py>,
        prompts: &Bound<'py, PyAny>,
        length: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let prompts = read_tokens(py, prompts)?;
        if length == 0 || !prompts.len().is_multiple_of(length) {
            return Err(PyValueError::new_err(format!(
                "{} tokens are not prompts of {length} each",
                prompts.len()
            )));
        }
        let timings = self.ask(py, |core| Timings::take(core, &prompts, length))?;
        let result = PyDict::new(py);
        for (name, nanoseconds) in Timings::NAMES.into_iter().zip(timings.columns) {
            result.set_item(name, nanoseconds)?;
        }
        Ok(result)
    }

    #[getter]
    fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    #[getter]
    fn block_size(&self) -> usize {
        self.block_size
    }
}

impl KvAllocator {
    /// The allocator itself, for the planner.
    pub(super) fn shared(&self) -> Arc<Mutex<Core>> {
        Arc::clone(&self.shared)
    }

    /// Calls the allocator without the GIL; a panic, which is a bug of the caller, becomes a RuntimeError.
    fn ask<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Core) -> Result<T> + Send) -> PyResult<T> {
        // A panic leaves the allocator sound: it checks before it changes, so that poison says nothing.
        py.detach(|| guarded(|| call(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))))
    }
}

/// Nanoseconds of each call of some requests, without the binding around them.
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

/// A copy of the tokens in a u32 buffer, or in bytes that hold u32 in the machine's order.
pub(super) fn read_tokens(py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let buffer = PyUntypedBuffer::get(tokens)?;
    let is_u32 = buffer.item_size() == 4 && u32::is_compatible_format(buffer.format());
    let is_bytes = buffer.item_size() == 1 && u8::is_compatible_format(buffer.format());
    if !is_u32 && !is_bytes {
        return Err(PyTypeError::new_err("tokens must be a buffer of u32, or bytes that hold u32"));
    }
    if buffer.item_count() == 0 {
        return Ok(Vec::new()); // an empty buffer may lie anywhere, aligned or not
    }
    if is_u32 {
        return buffer.into_typed::<u32>()?.to_vec(py);
    }
    let bytes = buffer.into_typed::<u8>()?.to_vec(py)?;
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!("{} bytes are no whole number of u32", bytes.len())));
    }
    Ok(words.iter().map(|&word| u32::from_ne_bytes(word)).collect())
}
