//! A model's kernels and what they work on, checked before they run.
//!
//! ```text
//!  CpuKernels ── one call, one Op, at once ──┐
//!                                            ├──► Op::run: slices of the tensors ──► kernels/cpu
//!  CpuProgram ── many, recorded ─────────────┘
//! ```
//!
//! Checks are O(1), but for a gather's indices and a step's rows and pages.

use pyengine_kernels_cpu::activation::Activation;
use pyengine_kernels_cpu::attention::{self, Inputs};
use pyengine_kernels_cpu::norm;
use pyengine_kernels_cpu::paged::{self, Heads};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::elementwise;
use super::experts::CpuExperts;
use super::linear::CpuLinear;
use super::step::CpuStep;
use super::tensor::{CpuTensor, by_element, invalid};
use crate::error::Error;

/// A kernel and what it works on.
pub(super) enum Op {
    AddRmsNorm {
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        out: Py<CpuTensor>,
    },
    AddLayerNorm {
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        bias: Option<Py<CpuTensor>>,
        epsilon: f32,
        out: Py<CpuTensor>,
    },
    Add {
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        out: Py<CpuTensor>,
    },
    HeadRmsNorm {
        qkv: Py<CpuTensor>,
        query_weight: Py<CpuTensor>,
        key_weight: Py<CpuTensor>,
        query_width: usize,
        epsilon: f32,
    },
    Gated {
        activation: Activation,
        gate_up: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    Activate {
        activation: Activation,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    Experts {
        experts: Py<CpuExperts>,
        logits: Py<CpuTensor>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    Scale {
        x: Py<CpuTensor>,
        factor: f32,
    },
    SoftCap {
        x: Py<CpuTensor>,
        cap: f32,
    },
    Linear {
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    Gather {
        table: Py<CpuTensor>,
        index: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    GatherWeights {
        table: Py<CpuLinear>,
        index: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    Attend {
        step: Py<CpuStep>,
        qkv: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        keys: Py<CpuTensor>,
        values: Py<CpuTensor>,
        out: Py<CpuTensor>,
        num_heads: usize,
        scale: f32,
        mask: LayerMask,
    },
}

/// What a layer does to its scores; see [`attention::Mask`].
pub(super) struct LayerMask {
    pub window: Option<usize>,
    pub soft_cap: Option<f32>,
    pub sinks: Option<Py<CpuTensor>>,
}

impl Op {
    /// Runs it on the first `rows` rows; a gather takes its indices from `first` on.
    pub(super) fn run(&self, threads: &Threads, first: usize, rows: usize) -> Result<(), Error> {
        match self {
            Self::AddRmsNorm { residual, branch, weight, epsilon, out } => {
                let branch = branch.as_ref().map(Py::get);
                add_rms_norm(threads, residual.get(), branch, weight.get(), *epsilon, out.get(), rows)
            }
            Self::AddLayerNorm { residual, branch, weight, bias, epsilon, out } => {
                let (branch, bias) = (branch.as_ref().map(Py::get), bias.as_ref().map(Py::get));
                let weights = (weight.get(), bias);
                add_layer_norm(threads, residual.get(), branch, weights, *epsilon, out.get(), rows)
            }
            Self::Add { residual, branch, out } => {
                elementwise::add(threads, residual.get(), branch.as_ref().map(Py::get), out.get(), rows)
            }
            Self::HeadRmsNorm { qkv, query_weight, key_weight, query_width, epsilon } => {
                let weights = [query_weight.get(), key_weight.get()];
                head_rms_norm(threads, qkv.get(), weights, *query_width, *epsilon, rows)
            }
            Self::Gated { activation, gate_up, out } => {
                elementwise::gated(threads, *activation, gate_up.get(), out.get(), rows)
            }
            Self::Activate { activation, x, out } => {
                elementwise::activate(threads, *activation, x.get(), out.get(), rows)
            }
            Self::Experts { experts, logits, x, out } => {
                experts.get().run(threads, logits.get(), x.get(), out.get(), rows)
            }
            Self::Scale { x, factor } => elementwise::scale(threads, x.get(), *factor, rows),
            Self::SoftCap { x, cap } => elementwise::soft_cap(threads, x.get(), *cap, rows),
            Self::Linear { weights, x, out } => weights.get().run(threads, x.get(), out.get(), rows),
            Self::Gather { table, index, out } => gather(table.get(), index.get(), out.get(), first, rows),
            Self::GatherWeights { table, index, out } => {
                table.get().gather(threads, index.get(), out.get(), first, rows)
            }
            Self::Attend { step, qkv, angles, keys, values, out, num_heads, scale, mask } => {
                let cache = [keys.get(), values.get()];
                let (step, qkv, angles, out) = (step.get(), qkv.get(), angles.get(), out.get());
                attend(threads, step, qkv, angles, cache, out, *num_heads, *scale, mask)
            }
        }
    }
}

fn add_rms_norm(
    threads: &Threads,
    residual: &CpuTensor,
    branch: Option<&CpuTensor>,
    weight: &CpuTensor,
    epsilon: f32,
    out: &CpuTensor,
    rows: usize,
) -> Result<(), Error> {
    by_element!(out, T => {
        let weights = weight.read_all::<T>("weight")?;
        if weights.is_empty() {
            return invalid("weight is empty".into());
        }
        let length = rows.saturating_mul(weights.len());
        let mut inputs = [out, weight, branch.unwrap_or(weight)];
        let residuals = residual.write::<T>("residual", length, &inputs)?;
        inputs[0] = residual;
        let outputs = out.write::<T>("out", length, &inputs)?;
        let branch = branch.map_or(Ok(&[][..]), |b| b.read::<T>("branch", length))?;
        norm::add_rms_norm(threads, residuals, branch, weights, epsilon, outputs);
        Ok(())
    })
}

fn add_layer_norm(
    threads: &Threads,
    residual: &CpuTensor,
    branch: Option<&CpuTensor>,
    (weight, bias): (&CpuTensor, Option<&CpuTensor>),
    epsilon: f32,
    out: &CpuTensor,
    rows: usize,
) -> Result<(), Error> {
    by_element!(out, T => {
        let weights = weight.read_all::<T>("weight")?;
        if weights.is_empty() {
            return invalid("weight is empty".into());
        }
        let biases = bias.map_or(Ok(&[][..]), |bias| bias.read::<T>("bias", weights.len()))?;
        let length = rows.saturating_mul(weights.len());
        let mut inputs = [out, weight, branch.unwrap_or(weight), bias.unwrap_or(weight)];
        let residuals = residual.write::<T>("residual", length, &inputs)?;
        inputs[0] = residual;
        let outputs = out.write::<T>("out", length, &inputs)?;
        let branch = branch.map_or(Ok(&[][..]), |b| b.read::<T>("branch", length))?;
        norm::add_layer_norm(threads, residuals, branch, (weights, biases), epsilon, outputs);
        Ok(())
    })
}

fn head_rms_norm(
    threads: &Threads,
    qkv: &CpuTensor,
    [query_weight, key_weight]: [&CpuTensor; 2],
    query_width: usize,
    epsilon: f32,
    rows: usize,
) -> Result<(), Error> {
    let (width, query, key) = (qkv.width(), query_weight.width(), key_weight.width());
    let kv = width.saturating_sub(query_width) / 2;
    let whole = |width: usize, piece: usize| piece > 0 && width.is_multiple_of(piece);
    if width == 0 || query_width + 2 * kv != width || !whole(query_width, query) || !whole(kv, key) {
        return invalid(format!(
            "rows of {width} are not {query_width} of queries by {query}, then keys by {key} and as many values"
        ));
    }
    by_element!(qkv, T => {
        let norms = norm::HeadNorms {
            query_weight: query_weight.read::<T>("query_weight", query)?,
            key_weight: key_weight.read::<T>("key_weight", key)?,
            query: query_width,
            kv,
            epsilon,
        };
        let rows = qkv.write::<T>("qkv", rows.saturating_mul(width), &[query_weight, key_weight])?;
        norm::head_rms_norm(threads, rows, norms);
        Ok(())
    })
}

fn gather(
    table: &CpuTensor,
    index: &CpuTensor,
    out: &CpuTensor,
    first: usize,
    rows: usize,
) -> Result<(), Error> {
    let width = table.width();
    if out.width() != width || width == 0 {
        return invalid(format!("out has rows of {} elements, table of {width}", out.width()));
    }
    let index = &index.read::<i32>("index", first.saturating_add(rows))?[first..];
    by_element!(out, T => {
        let table_rows = table.read_all::<T>("table")?;
        let outputs = out.write::<T>("out", rows.saturating_mul(width), &[table])?;
        for (to, &row) in outputs.chunks_exact_mut(width).zip(index) {
            let from = usize::try_from(row).ok().and_then(|row| table_rows.chunks_exact(width).nth(row));
            let Some(from) = from else { return invalid(format!("there is no row {row} in the table")) };
            to.copy_from_slice(from);
        }
        Ok(())
    })
}

#[allow(clippy::too_many_arguments, reason = "as Python passes them")]
fn attend(
    threads: &Threads,
    step: &CpuStep,
    qkv: &CpuTensor,
    angles: &CpuTensor,
    [keys, values]: [&CpuTensor; 2],
    out: &CpuTensor,
    num_heads: usize,
    scale: f32,
    mask: &LayerMask,
) -> Result<(), Error> {
    let (heads, num_blocks) = cache_shape(keys, values, num_heads)?;
    let sinks =
        mask.sinks.as_ref().map_or(Ok(&[][..]), |sinks| sinks.get().read::<f32>("sinks", num_heads))?;
    let mask = attention::Mask { window: mask.window, soft_cap: mask.soft_cap, sinks };
    if mask.window == Some(0) || mask.soft_cap.is_some_and(|cap| cap.is_nan() || cap <= 0.0) {
        return invalid("a window and a soft cap are more than 0".into());
    }
    let step = step.view()?;
    let angles = angles.read_all::<f32>("angles")?;
    step.check(heads.block_size, num_blocks, angles.len() / heads.dim)?;
    let out_length = step.num_tokens * heads.query * heads.dim;
    by_element!(qkv, T => {
        let qkv_length = step.num_tokens * heads.qkv_width();
        let inputs = qkv.read::<T>("qkv", qkv_length)?;
        let cache = num_blocks * heads.kv * heads.page();
        // The cache is written first; these borrows end before it is read.
        paged::append(
            &step,
            heads,
            inputs,
            angles,
            keys.write::<T>("keys", cache, &[values, qkv, out])?,
            values.write::<T>("values", cache, &[keys, qkv, out])?,
        );
        let inputs = Inputs {
            step,
            heads,
            scale,
            mask,
            qkv: inputs,
            angles,
            keys: keys.read::<T>("keys", cache)?,
            values: values.read::<T>("values", cache)?,
        };
        let outputs = out.write::<T>("out", out_length, &[keys, values, qkv])?;
        attention::attend(threads, &inputs, outputs);
        Ok(())
    })
}

/// The heads and blocks of a cache: keys are \[blocks, kv heads, head_dim, block_size\].
fn cache_shape(keys: &CpuTensor, values: &CpuTensor, num_heads: usize) -> Result<(Heads, usize), Error> {
    let &[blocks, kv, dim, block_size] = keys.buffer.shape() else {
        return invalid("keys must be [blocks, kv heads, head_dim, block_size]".into());
    };
    if values.buffer.shape() != [blocks, kv, block_size, dim] {
        return invalid("values must be [blocks, kv heads, block_size, head_dim]".into());
    }
    let heads = Heads { query: num_heads, kv, dim, block_size };
    if kv == 0
        || block_size == 0
        || dim == 0
        || !dim.is_multiple_of(8)
        || !num_heads.is_multiple_of(kv)
        || num_heads == 0
    {
        return invalid(format!(
            "attention does not do {heads:?}: head_dim is a multiple of 8, kv divides query"
        ));
    }
    Ok((heads, blocks))
}
