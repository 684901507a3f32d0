//! `pyengine._core.CpuAdapter` and `pyengine._core.CpuAdapters`: adapters, and the rows of a step that have them.

use std::sync::{Arc, PoisonError, RwLock};

use pyengine_kernels_cpu::adapters::{self, Delta, Expand};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::linear::CpuLinear;
use super::step::rows_and_tokens;
use super::tensor::{CpuTensor, by_element, invalid};
use pyengine_base::error::Error;
use pyengine_scheduler::step::buffers::StepHeader;

/// What each layer has of an adapter, by the layer's number.
type Deltas = Vec<Option<Delta>>;

/// A product of a layer's part: its weights, first rank, first output and scale.
type ExpandTuple = (Py<CpuLinear>, usize, usize, f32);

/// One adapter.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuAdapter {
    deltas: Arc<Deltas>,
}

#[pymethods]
impl CpuAdapter {
    #[new]
    fn new(layers: Vec<(usize, Py<CpuLinear>, Vec<ExpandTuple>)>) -> Self {
        let mut deltas = Deltas::new();
        for (site, shrink, expands) in layers {
            let expands = expands.into_iter().map(|(linear, first_rank, first_output, scale)| Expand {
                linear: linear.get().inner.clone(),
                first_rank,
                first_output,
                scale,
            });
            let delta = Delta { shrink: shrink.get().inner.clone(), expands: expands.collect() };
            deltas.resize_with(deltas.len().max(site + 1), || None);
            deltas[site] = Some(delta);
        }
        Self { deltas: Arc::new(deltas) }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.deltas.iter().flatten().map(Delta::nbytes).sum()
    }
}

/// The adapters that are loaded, and which rows of a step have them.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuAdapters {
    header: CpuTensor,
    slot: CpuTensor,
    first: CpuTensor,
    count: CpuTensor,
    slots: RwLock<Vec<Option<Arc<Deltas>>>>,
}

#[pymethods]
impl CpuAdapters {
    #[new]
    fn new(
        header: CpuTensor,
        adapter_slot: CpuTensor,
        adapter_first: CpuTensor,
        adapter_count: CpuTensor,
    ) -> Self {
        let slots = RwLock::default();
        Self { header, slot: adapter_slot, first: adapter_first, count: adapter_count, slots }
    }

    fn set(&self, slot: usize, adapter: Option<&CpuAdapter>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let length = slots.len().max(slot + 1);
        slots.resize(length, None);
        slots[slot] = adapter.map(|adapter| adapter.deltas.clone());
    }
}

impl CpuAdapters {
    /// Adds to the rows of `out` that have adapters what these make of `x` in the layer `site`.
    pub(super) fn run(
        &self,
        threads: &Threads,
        site: usize,
        x: &CpuTensor,
        out: &CpuTensor,
    ) -> Result<(), Error> {
        let (_, tokens) = rows_and_tokens(&self.header)?;
        let header = StepHeader::from_numbers(self.header.read_all("header")?);
        let rows = header.map_or(0, |header| header.num_adapted_rows.max(0) as usize);
        if rows == 0 {
            return Ok(());
        }
        let slot: &[i32] = self.slot.read("adapter_slot", rows)?;
        let first: &[i32] = self.first.read("adapter_first", rows)?;
        let count: &[i32] = self.count.read("adapter_count", rows)?;
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| slot[row]);
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        for group in order.chunk_by(|&a, &b| slot[a] == slot[b]) {
            let slot = slot[group[0]];
            let adapter = usize::try_from(slot).ok().and_then(|slot| slots.get(slot)?.as_ref());
            let Some(adapter) = adapter else {
                return invalid(format!("there is no adapter in slot {slot}"));
            };
            let Some(Some(delta)) = adapter.get(site) else { continue };
            let own = group.iter().flat_map(|&row| {
                let first = first[row].max(0) as usize;
                first..first + count[row].max(0) as usize
            });
            let own: Vec<usize> = own.collect();
            if own.iter().any(|&token| token >= tokens) {
                return invalid(format!("a row with an adapter has tokens beyond the {tokens} of the step"));
            }
            add(threads, delta, &own, x, out, tokens)?;
        }
        Ok(())
    }
}

fn add(
    threads: &Threads,
    delta: &Delta,
    rows: &[usize],
    x: &CpuTensor,
    out: &CpuTensor,
    tokens: usize,
) -> Result<(), Error> {
    let (inputs, width) = (x.width(), out.width());
    if !delta.fits(inputs, width) {
        return invalid(format!("an adapter does not fit a layer of {inputs} inputs and {width} outputs"));
    }
    by_element!(x, T => {
        let from = x.read::<T>("x", tokens.saturating_mul(inputs))?;
        let to = out.write::<T>("out", tokens.saturating_mul(width), &[x])?;
        adapters::add(threads, delta, rows, from, to, width);
        Ok(())
    })
}
