//! `pyengine._core.CpuLinear`: the weights of a linear layer, packed for the kernels.

use pyengine_kernels_cpu::element::{Element, Rows};
use pyengine_kernels_cpu::linear::{self, Linear, MICROSCALED_GROUP, Microscaled, Quantized};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::tensor::{CpuTensor, by_element, invalid};
use crate::errors::guarded;
use pyengine_base::error::Error;

/// The weights of a linear layer, packed for `CpuKernels.linear`.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuLinear {
    pub(super) inner: Linear,
}

#[pymethods]
impl CpuLinear {
    #[staticmethod]
    #[pyo3(signature = (weight, bias = None))]
    fn dense(py: Python<'_>, weight: &CpuTensor, bias: Option<&CpuTensor>) -> PyResult<Self> {
        py.detach(|| guarded(|| dense(weight, bias)))
    }

    #[staticmethod]
    #[pyo3(signature = (values, scales, zeros, minimums, bits, group, bias = None))]
    #[allow(clippy::too_many_arguments)]
    fn packed(
        py: Python<'_>,
        values: &CpuTensor,
        scales: &CpuTensor,
        zeros: Option<&CpuTensor>,
        minimums: Option<&CpuTensor>,
        bits: usize,
        group: usize,
        bias: Option<&CpuTensor>,
    ) -> PyResult<Self> {
        py.detach(|| guarded(|| packed(values, scales, [zeros, minimums], bits, group, bias)))
    }

    #[staticmethod]
    #[pyo3(signature = (values, exponents, bias = None))]
    fn microscaled(
        py: Python<'_>,
        values: &CpuTensor,
        exponents: &CpuTensor,
        bias: Option<&CpuTensor>,
    ) -> PyResult<Self> {
        py.detach(|| guarded(|| microscaled(values, exponents, bias)))
    }

    #[staticmethod]
    fn stacked(layers: Vec<Py<Self>>) -> PyResult<Self> {
        guarded(|| stacked(&layers))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.nbytes()
    }

    #[getter]
    fn inputs(&self) -> usize {
        self.inner.inputs()
    }

    #[getter]
    fn outputs(&self) -> usize {
        self.inner.outputs()
    }
}

impl CpuLinear {
    /// x W^T + b for the first `rows` rows.
    pub(super) fn run(
        &self,
        threads: &Threads,
        x: &CpuTensor,
        out: &CpuTensor,
        rows: usize,
    ) -> Result<(), Error> {
        by_element!(x, T => by_element!(out, U => {
            let from = x.read::<T>("x", rows.saturating_mul(self.inner.inputs()))?;
            let to = out.write::<U>("out", rows.saturating_mul(self.inner.outputs()), &[x])?;
            linear::linear(threads, &self.inner, from, to);
            Ok(())
        }))
    }

    /// Each head's x W^T for the first `rows` rows, with the weights of `heads` heads; `x` may be columns.
    pub(super) fn run_by_head(
        &self,
        threads: &Threads,
        x: &CpuTensor,
        out: &CpuTensor,
        heads: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let (inputs, outputs) = (self.inner.inputs(), self.inner.outputs());
        if heads == 0
            || x.width() != heads * inputs
            || out.width() != outputs
            || !outputs.is_multiple_of(heads)
        {
            return invalid(format!(
                "{heads} heads of {inputs} inputs, {outputs} outputs in all, do not go from {} columns to {}",
                x.width(),
                out.width()
            ));
        }
        by_element!(x, T => by_element!(out, U => {
            let from = x.columns::<T>("x", rows)?;
            let to = out.write::<U>("out", rows.saturating_mul(outputs), &[x])?;
            linear::linear_by_head(threads, &self.inner, heads, from, to);
            Ok(())
        }))
    }

    /// `out[i]` = the weights of the output `index[first + i]`, for i below `rows`.
    pub(super) fn gather(
        &self,
        threads: &Threads,
        index: &CpuTensor,
        out: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let index = &index.read::<i32>("index", first.saturating_add(rows))?[first..];
        by_element!(out, T => {
            let to = out.write::<T>("out", rows.saturating_mul(self.inner.inputs()), &[])?;
            linear::gather(threads, &self.inner, index, to)
                .or_else(|row| invalid(format!("there is no row {row} in the table")))
        })
    }
}

fn dense(weight: &CpuTensor, bias: Option<&CpuTensor>) -> Result<CpuLinear, Error> {
    let &[outputs, inputs] = weight.buffer.shape() else {
        return invalid("weight must be [outputs, inputs]".into());
    };
    let bias = widened(bias, outputs)?;
    let weight: Rows<'_> =
        by_element!(weight, T => Ok::<_, Error>(T::rows(weight.read_all::<T>("weight")?)))?;
    Ok(CpuLinear { inner: Linear::dense(weight, &bias, inputs, outputs) })
}

fn stacked(layers: &[Py<CpuLinear>]) -> Result<CpuLinear, Error> {
    let Some(first) = layers.first() else { return invalid("no layer to stack".into()) };
    let inputs = first.get().inner.inputs();
    if let Some(other) = layers.iter().map(|layer| layer.get().inner.inputs()).find(|&other| other != inputs)
    {
        return invalid(format!("layers of {inputs} and {other} inputs cannot be stacked"));
    }
    Ok(CpuLinear { inner: Linear::stacked(layers.iter().map(|layer| layer.get().inner.clone())) })
}

fn packed(
    values: &CpuTensor,
    scales: &CpuTensor,
    [zeros, minimums]: [Option<&CpuTensor>; 2],
    bits: usize,
    group: usize,
    bias: Option<&CpuTensor>,
) -> Result<CpuLinear, Error> {
    let &[outputs, width] = values.buffer.shape() else {
        return invalid("values must be [outputs, bytes]".into());
    };
    if bits != 4 && bits != 8 {
        return invalid(format!("weights have 4 or 8 bits, not {bits}"));
    }
    let inputs = width * 8 / bits;
    if !matches!(group, 16 | 32 | 64 | 128) && group != inputs || !inputs.is_multiple_of(group.max(1)) {
        return invalid(format!("groups have 16, 32, 64 or 128 inputs, or all {inputs}; not {group}"));
    }
    if zeros.is_some() && minimums.is_some() {
        return invalid("there are zeros or minimums, not both".into());
    }
    let groups = inputs.checked_div(group).unwrap_or(0);
    let by_group = |name: &str, tensor: &CpuTensor| match tensor.buffer.shape() == [outputs, groups] {
        true => Ok(()),
        false => invalid(format!("{name} must be [{outputs}, {groups}], not {:?}", tensor.buffer.shape())),
    };
    by_group("scales", scales)?;
    zeros.map_or(Ok(()), |zeros| by_group("zeros", zeros))?;
    minimums.map_or(Ok(()), |minimums| by_group("minimums", minimums))?;
    let from = Quantized {
        values: values.read_all("values")?,
        scales: scales.read_all("scales")?,
        zeros: zeros.map(|zeros| zeros.read_all("zeros")).transpose()?,
        minimums: minimums.map(|minimums| minimums.read_all("minimums")).transpose()?,
        bits,
        group,
    };
    let bias = widened(bias, outputs)?;
    Ok(CpuLinear { inner: Linear::packed(&from, &bias, inputs, outputs) })
}

fn microscaled(
    values: &CpuTensor,
    exponents: &CpuTensor,
    bias: Option<&CpuTensor>,
) -> Result<CpuLinear, Error> {
    let &[outputs, width] = values.buffer.shape() else {
        return invalid("values must be [outputs, bytes]".into());
    };
    let inputs = width * 2;
    if !inputs.is_multiple_of(MICROSCALED_GROUP) {
        return invalid(format!("{inputs} inputs are not whole groups of {MICROSCALED_GROUP}"));
    }
    let groups = inputs / MICROSCALED_GROUP;
    if exponents.buffer.shape() != [outputs, groups] {
        return invalid(format!(
            "exponents must be [{outputs}, {groups}], not {:?}",
            exponents.buffer.shape()
        ));
    }
    let from =
        Microscaled { values: values.read_all("values")?, exponents: exponents.read_all("exponents")? };
    if from.exponents.contains(&u8::MAX) {
        return invalid("an exponent of 255 means no number".into());
    }
    let bias = widened(bias, outputs)?;
    Ok(CpuLinear { inner: Linear::microscaled(&from, &bias, inputs, outputs) })
}

/// `bias` in float32; nothing where there is none.
fn widened(bias: Option<&CpuTensor>, outputs: usize) -> Result<Vec<f32>, Error> {
    let Some(bias) = bias else { return Ok(Vec::new()) };
    by_element!(bias, T => Ok(bias.read::<T>("bias", outputs)?.iter().map(|bias| bias.to_f32()).collect()))
}
