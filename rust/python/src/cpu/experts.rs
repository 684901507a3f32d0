//! `pyengine._core.CpuExperts`: the experts of a layer and how tokens are sent to them.

use std::sync::atomic::{AtomicU64, Ordering};

use pyengine_kernels_cpu::activation::Activation;
use pyengine_kernels_cpu::experts::{self, Layers, Router};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::elementwise;
use super::linear::CpuLinear;
use super::tensor::{CpuTensor, by_element, invalid};
use crate::errors::{Raise, guarded};
use pyengine_base::error::Error;

/// The experts of a layer, for `CpuKernels.experts`.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuExperts {
    gate_up: Vec<Py<CpuLinear>>,
    down: Vec<Py<CpuLinear>>,
    activation: Activation,
    router: Router,
    weighs_inputs: bool,
    /// The number of the first one here.
    first: usize,
    /// Rows of each expert, here or elsewhere, so far.
    routed: Vec<AtomicU64>,
}

#[pymethods]
impl CpuExperts {
    #[new]
    #[pyo3(signature = (gate_up, down, activation, *, chosen, sigmoid = false, normalized = false, scale = 1.0,
        bias = None, groups = 1, chosen_groups = 1, group_best = 2, limit = None, scales = None, weighs_inputs = false, first = 0, count = None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        gate_up: Vec<Py<CpuLinear>>,
        down: Vec<Py<CpuLinear>>,
        activation: &str,
        chosen: usize,
        sigmoid: bool,
        normalized: bool,
        scale: f32,
        bias: Option<Vec<f32>>,
        groups: usize,
        chosen_groups: usize,
        group_best: usize,
        limit: Option<f32>,
        scales: Option<Vec<f32>>,
        weighs_inputs: bool,
        first: usize,
        count: Option<usize>,
    ) -> PyResult<Self> {
        let activation = elementwise::activation(activation, limit).map_err(Raise::raise)?;
        let (bias, scales) = (bias.unwrap_or_default(), scales.unwrap_or_default());
        guarded(|| {
            let here = gate_up.len();
            let count = count.unwrap_or(here);
            let needs_gates = matches!(activation, Activation::ClampedSwiglu { .. });
            if here == 0 || down.len() != here || !fit(&gate_up, &down, needs_gates) {
                return invalid(
                    "experts have a gate_up [2 * inner, hidden], or an up [inner, hidden] where the activation \
                     needs no gate, and a down [hidden, inner] each"
                        .into(),
                );
            }
            if first.checked_add(here).is_none_or(|end| end > count) {
                return invalid(format!("{here} experts from {first} on are not among {count}"));
            }
            if !(1..=count).contains(&chosen) || groups == 0 || !count.is_multiple_of(groups) {
                return invalid(format!("{chosen} of {count} experts in {groups} groups cannot be chosen"));
            }
            for (name, numbers) in [("a bias has", &bias), ("scales have", &scales)] {
                if !numbers.is_empty() && numbers.len() != count {
                    return invalid(format!("{name} {count} numbers, not {}", numbers.len()));
                }
            }
            let router = Router {
                sigmoid,
                normalized,
                scale,
                scales,
                bias,
                chosen,
                groups,
                group_best,
                chosen_groups,
            };
            let routed = (0..count).map(|_| AtomicU64::new(0)).collect();
            Ok::<_, Error>(Self { gate_up, down, activation, router, weighs_inputs, first, routed })
        })
    }

    #[getter]
    fn routed(&self) -> Vec<u64> {
        self.routed.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// Whether the layers of all experts are of the same shapes, which fit together.
fn fit(gate_up: &[Py<CpuLinear>], down: &[Py<CpuLinear>], needs_gates: bool) -> bool {
    let first = |of: &[Py<CpuLinear>]| (of[0].get().inner.outputs(), of[0].get().inner.inputs());
    let ((before, hidden), (outputs, inner)) = (first(gate_up), first(down));
    let alike = |of: &[Py<CpuLinear>], outputs, inputs| {
        of.iter().all(|one| one.get().inner.outputs() == outputs && one.get().inner.inputs() == inputs)
    };
    hidden > 0
        && outputs == hidden
        && (before == 2 * inner || before == inner && !needs_gates)
        && alike(gate_up, before, hidden)
        && alike(down, hidden, inner)
}

impl CpuExperts {
    /// The first `rows` rows of `x` through the experts that `logits` choose.
    pub(super) fn run(
        &self,
        threads: &Threads,
        logits: &CpuTensor,
        x: &CpuTensor,
        out: &CpuTensor,
        rows: usize,
    ) -> Result<(), Error> {
        let layers = Layers {
            first: self.first,
            gate_up: self.gate_up.iter().map(|one| &one.get().inner).collect(),
            down: self.down.iter().map(|one| &one.get().inner).collect(),
            activation: self.activation,
            weighs_inputs: self.weighs_inputs,
        };
        let length = rows.saturating_mul(layers.gate_up[0].inputs());
        by_element!(x, T => {
            let scores = logits.read::<T>("logits", rows.saturating_mul(self.routed.len()))?;
            let inputs = x.read::<T>("x", length)?;
            let outputs = out.write::<T>("out", length, &[x, logits])?;
            experts::experts(threads, &layers, &self.router, scores, inputs, outputs, &self.routed);
            Ok(())
        })
    }
}
