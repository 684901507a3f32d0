//! `pyengine._core.KvAllocator`: the allocator as Python sees it, for construction, counts and its check.
//!
//! The planner calls the allocator inside, by [`KvAllocator::shared`]; nothing here is on the path of a step.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::errors::guarded;
use pyengine_base::error::Result;
use pyengine_kv_allocator::{Counts, Group, KvAllocator as Core};

/// The Python class: the allocator, shared with the planner.
#[pyclass(frozen, module = "pyengine._core")]
pub(super) struct KvAllocator {
    shared: Arc<Mutex<Core>>,
    num_blocks: usize,
    block_size: usize,
}

/// A cache group as Python gives it: kind, page tables, and the tokens of a window or the pages of a state.
pub(super) type GroupTuple = (String, usize, usize);

/// The cache groups; `None` is those of a model whose layers keep the keys and values of all tokens.
pub(super) fn cache_groups(groups: Option<Vec<GroupTuple>>) -> PyResult<Vec<Group>> {
    let group = |(kind, tables, size): GroupTuple| match kind.as_str() {
        "full" => Ok(Group::full(tables)),
        "window" => Ok(Group::window(size, tables)),
        "latent" => Ok(Group::latent(tables)),
        "state" => Ok(Group { tables, ..Group::state(size) }),
        _ => Err(PyValueError::new_err(format!("there is no cache group of kind {kind:?}"))),
    };
    groups.map_or(Ok(vec![Group::FULL]), |groups| groups.into_iter().map(group).collect())
}

#[pymethods]
impl KvAllocator {
    #[new]
    #[pyo3(signature = (num_blocks, block_size = 16, prefix_cache = true, groups = None))]
    fn new(
        num_blocks: usize,
        block_size: usize,
        prefix_cache: bool,
        groups: Option<Vec<GroupTuple>>,
    ) -> PyResult<Self> {
        let groups = cache_groups(groups)?;
        let core = guarded(|| Core::with_groups(num_blocks, block_size, prefix_cache, &groups))?;
        Ok(Self { shared: Arc::new(Mutex::new(core)), num_blocks, block_size })
    }

    fn counts(&self, py: Python<'_>) -> PyResult<(usize, usize, usize)> {
        self.ask(py, |core| {
            let Counts { free, cached, held } = core.counts();
            Ok((free, cached, held))
        })
    }

    fn num_snapshots(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |core| Ok(core.num_snapshots()))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, |core| core.check())
    }

    fn reset_prefix_cache(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, |core| Ok(core.reset_prefix_cache()))
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
    pub(super) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Core) -> Result<T> + Send,
    ) -> PyResult<T> {
        // A panic leaves the allocator sound: it checks before it changes, so that poison says nothing.
        py.detach(|| guarded(|| call(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))))
    }
}
