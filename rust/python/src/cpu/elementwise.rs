//! The operations on single numbers, and the activations, on Python's buffers.

use pyengine_kernels_cpu::activation::{self, Activation};
use pyengine_kernels_cpu::elementwise;
use pyengine_kernels_cpu::gated_norm::{Gate, GatedNorm};
use pyengine_kernels_cpu::rope::rotate_rows;
use pyengine_kernels_cpu::threads::Threads;

use super::tensor::{CpuTensor, by_element, invalid};
use pyengine_base::error::Error;

/// The activation called `name`; `limit` is that of the clamped one.
pub(super) fn activation(name: &str, limit: Option<f32>) -> Result<Activation, Error> {
    match (name, limit) {
        ("silu", None) => Ok(Activation::Silu),
        ("gelu", None) => Ok(Activation::Gelu),
        ("gelu_tanh", None) => Ok(Activation::GeluTanh),
        ("relu", None) => Ok(Activation::Relu),
        ("relu2", None) => Ok(Activation::SquaredRelu),
        ("clamped_swiglu", Some(limit)) if limit > 0.0 => Ok(Activation::ClampedSwiglu { limit }),
        _ => invalid(format!("there is no activation {name:?} with a limit of {limit:?}")),
    }
}

/// The activation of gates, times ups: \[rows, 2 * width\] to \[rows, width\].
pub(super) fn gated(
    threads: &Threads,
    of: Activation,
    gate_up: &CpuTensor,
    out: &CpuTensor,
    rows: usize,
) -> Result<(), Error> {
    let width = out.width();
    let length = rows.saturating_mul(width);
    by_element!(out, T => {
        let inputs = gate_up.read::<T>("gate_up", length.saturating_mul(2))?;
        let outputs = out.write::<T>("out", length, &[gate_up])?;
        if width > 0 {
            activation::gated(threads, of, inputs, width, outputs);
        }
        Ok(())
    })
}

/// The activation of each number: \[rows, width\] to the same.
pub(super) fn activate(
    threads: &Threads,
    of: Activation,
    x: &CpuTensor,
    out: &CpuTensor,
    rows: usize,
) -> Result<(), Error> {
    if matches!(of, Activation::ClampedSwiglu { .. }) {
        return invalid("the clamped activation is one of gates and ups".into());
    }
    let width = out.width();
    let length = rows.saturating_mul(width);
    by_element!(out, T => {
        let inputs = x.read::<T>("x", length)?;
        let outputs = out.write::<T>("out", length, &[x])?;
        if width > 0 {
            activation::plain(threads, of, inputs, width, outputs);
        }
        Ok(())
    })
}

/// x * factor, in place.
pub(super) fn scale(threads: &Threads, x: &CpuTensor, factor: f32, rows: usize) -> Result<(), Error> {
    by_element!(x, T => {
        elementwise::scale(threads, x.write::<T>("x", rows.saturating_mul(x.width()), &[])?, factor);
        Ok(())
    })
}

/// cap * tanh(x / cap), in place.
pub(super) fn soft_cap(threads: &Threads, x: &CpuTensor, cap: f32, rows: usize) -> Result<(), Error> {
    by_element!(x, T => {
        elementwise::soft_cap(threads, x.write::<T>("x", rows.saturating_mul(x.width()), &[])?, cap);
        Ok(())
    })
}

/// x * by\[:, column..column + width of x\], in place.
pub(super) fn multiply(x: &CpuTensor, by: &CpuTensor, column: usize, rows: usize) -> Result<(), Error> {
    let (width, by_width) = (x.width(), by.width());
    if width == 0 || column.saturating_add(width) > by_width {
        return invalid(format!("there are no {width} columns from {column} on in rows of {by_width}"));
    }
    by_element!(x, T => {
        let factors = by.read::<T>("by", rows.saturating_mul(by_width))?;
        let numbers = x.write::<T>("x", rows.saturating_mul(width), &[by])?;
        elementwise::multiply(numbers, width, factors, by_width, column);
        Ok(())
    })
}

/// x * sigmoid(gates), in place; each gate is for as many neighbours as they divide a row into.
pub(super) fn gate(threads: &Threads, x: &CpuTensor, gates: &CpuTensor, rows: usize) -> Result<(), Error> {
    let (width, gates_width) = (x.width(), gates.width());
    if gates_width == 0 || !width.is_multiple_of(gates_width) {
        return invalid(format!("{gates_width} gates do not divide rows of {width}"));
    }
    by_element!(x, T => {
        let factors = gates.read::<T>("gates", rows.saturating_mul(gates_width))?;
        let numbers = x.write::<T>("x", rows.saturating_mul(width), &[gates])?;
        elementwise::gate(threads, numbers, width, factors, gates_width);
        Ok(())
    })
}

/// Rotates the first `heads` heads of each row by the angles of its position, in place.
pub(super) fn rotate(
    threads: &Threads,
    qkv: &CpuTensor,
    positions: &CpuTensor,
    angles: &CpuTensor,
    heads: usize,
    rows: usize,
) -> Result<(), Error> {
    let (width, head_dim) = (qkv.width(), angles.width());
    if head_dim == 0 || !head_dim.is_multiple_of(2) || heads.saturating_mul(head_dim) > width {
        return invalid(format!("rows of {width} do not have {heads} heads of {head_dim} elements"));
    }
    let positions = positions.read::<i32>("positions", rows)?;
    let table = angles.read_all::<f32>("angles")?;
    by_element!(qkv, T => {
        let numbers = qkv.write::<T>("qkv", rows.saturating_mul(width), &[angles])?;
        rotate_rows(threads, numbers, positions, table, head_dim, heads)
            .or_else(|position| invalid(format!("there are no angles of position {position}")))
    })
}

/// Adds `branch` to `residual`, and copies the sum to `out`.
pub(super) fn add(
    threads: &Threads,
    residual: &CpuTensor,
    branch: Option<&CpuTensor>,
    out: &CpuTensor,
    rows: usize,
) -> Result<(), Error> {
    let length = rows.saturating_mul(residual.width());
    by_element!(residual, T => {
        let terms = branch.map_or(Ok(&[][..]), |branch| branch.read::<T>("branch", length))?;
        let sums = residual.write::<T>("residual", length, &[out, branch.unwrap_or(out)])?;
        let copies = out.write::<T>("out", length, &[residual, branch.unwrap_or(residual)])?;
        elementwise::add(threads, sums, terms, copies);
        Ok(())
    })
}

/// How rows are normalized and gated; see [`GatedNorm`].
#[derive(Clone, Copy)]
pub(super) struct GatedNormOf {
    pub group: usize,
    pub epsilon: f32,
    pub gate: Gate,
    pub gate_first: bool,
}

/// The function of gates called `name`.
pub(super) fn gate_function(name: &str) -> Result<Gate, Error> {
    match name {
        "silu" => Ok(Gate::Silu),
        "sigmoid" => Ok(Gate::Sigmoid),
        _ => invalid(format!("there is no function of gates {name:?}")),
    }
}

/// Normalizes and gates rows of `x`, in place.
pub(super) fn gated_norm(
    threads: &Threads,
    x: &CpuTensor,
    gates: &CpuTensor,
    weight: &CpuTensor,
    GatedNormOf { group, epsilon, gate, gate_first }: GatedNormOf,
    rows: usize,
) -> Result<(), Error> {
    let (width, weights) = (x.width(), weight.width());
    if group == 0 || width == 0 || !width.is_multiple_of(group) || ![group, width].contains(&weights) {
        return invalid(format!("rows of {width} are not groups of {group}, with {weights} weights"));
    }
    if gates.width() != width {
        return invalid(format!("gates must have {width} columns"));
    }
    by_element!(x, T => {
        let weight = weight.read::<T>("weight", weights)?;
        let z = gates.columns::<T>("gates", rows)?;
        let numbers = x.write::<T>("x", rows.saturating_mul(width), &[gates])?;
        GatedNorm { weight, group, epsilon, gate, gate_first }.run(threads, numbers, z);
        Ok(())
    })
}
