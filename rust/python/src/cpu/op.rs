//! A model's kernels and what they work on, checked before they run.
//!
//! ```text
//!  CpuProgram ── recorded ──► Op::run: slices of the tensors ──► kernels/cpu
//! ```
//!
//! Checks are O(1), but for a gather's indices and a step's rows and pages.

use pyengine_kernels_cpu::activation::Activation;
use pyengine_kernels_cpu::norm;
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::adapters::CpuAdapters;
use super::attend::Attend;
use super::elementwise;
use super::experts::CpuExperts;
use super::latents::AttendLatents;
use super::linear::CpuLinear;
use super::recurrence::{Convolve, DecaySumOp, DeltaRuleOp};
use super::tensor::{CpuTensor, by_element, invalid};
use pyengine_base::error::Error;

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
    Rotate {
        qkv: Py<CpuTensor>,
        positions: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        heads: usize,
    },
    HeadRmsNorm {
        qkv: Py<CpuTensor>,
        query_weight: Py<CpuTensor>,
        key_weight: Py<CpuTensor>,
        value_weight: Option<Py<CpuTensor>>,
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
    Multiply {
        x: Py<CpuTensor>,
        by: Py<CpuTensor>,
        column: usize,
    },
    Gate {
        x: Py<CpuTensor>,
        gates: Py<CpuTensor>,
    },
    Linear {
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
    },
    LinearByHead {
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        heads: usize,
    },
    Adapt {
        adapters: Py<CpuAdapters>,
        site: usize,
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
    Attend(Attend),
    AttendLatents(AttendLatents),
    Convolve(Convolve),
    DeltaRule(DeltaRuleOp),
    DecaySum(DecaySumOp),
    GatedNorm {
        x: Py<CpuTensor>,
        gates: Py<CpuTensor>,
        weight: Py<CpuTensor>,
        how: elementwise::GatedNormOf,
    },
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
            Self::Rotate { qkv, positions, angles, heads } => {
                elementwise::rotate(threads, qkv.get(), positions.get(), angles.get(), *heads, rows)
            }
            Self::HeadRmsNorm { qkv, query_weight, key_weight, value_weight, query_width, epsilon } => {
                let weights = [query_weight.get(), key_weight.get()];
                let value_weight = value_weight.as_ref().map(Py::get);
                head_rms_norm(threads, qkv.get(), weights, value_weight, *query_width, *epsilon, rows)
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
            Self::Multiply { x, by, column } => elementwise::multiply(x.get(), by.get(), *column, rows),
            Self::Gate { x, gates } => elementwise::gate(threads, x.get(), gates.get(), rows),
            Self::Linear { weights, x, out } => weights.get().run(threads, x.get(), out.get(), rows),
            Self::LinearByHead { weights, x, out, heads } => {
                weights.get().run_by_head(threads, x.get(), out.get(), *heads, rows)
            }
            Self::Adapt { adapters, site, x, out } => adapters.get().run(threads, *site, x.get(), out.get()),
            Self::Gather { table, index, out } => gather(table.get(), index.get(), out.get(), first, rows),
            Self::GatherWeights { table, index, out } => {
                table.get().gather(threads, index.get(), out.get(), first, rows)
            }
            Self::Attend(attend) => attend.run(threads),
            Self::AttendLatents(attend) => attend.run(threads),
            Self::Convolve(convolve) => convolve.run(threads),
            Self::DeltaRule(rule) => rule.run(threads),
            Self::DecaySum(sum) => sum.run(threads),
            Self::GatedNorm { x, gates, weight, how } => {
                elementwise::gated_norm(threads, x.get(), gates.get(), weight.get(), *how, rows)
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
    value_weight: Option<&CpuTensor>,
    query_width: usize,
    epsilon: f32,
    rows: usize,
) -> Result<(), Error> {
    let (width, query, key) = (qkv.width(), query_weight.width(), key_weight.width());
    let kv = width.saturating_sub(query_width) / 2;
    let whole = |width: usize, piece: usize| piece > 0 && width.is_multiple_of(piece);
    let value = value_weight.map_or(1, CpuTensor::width);
    let pieces = whole(query_width, query) && whole(kv, key) && whole(kv, value);
    if width == 0 || query_width + 2 * kv != width || !pieces {
        return invalid(format!(
            "rows of {width} are not {query_width} of queries by {query}, then keys by {key} and as many values"
        ));
    }
    by_element!(qkv, T => {
        let norms = norm::HeadNorms {
            query_weight: query_weight.read::<T>("query_weight", query)?,
            key_weight: key_weight.read::<T>("key_weight", key)?,
            value_weight: value_weight.map_or(Ok(&[][..]), |weight| weight.read::<T>("value_weight", value))?,
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
