//! `pyengine._core.CpuLinear`: the weights of a linear layer, packed for the kernels.

use pyengine_kernels_cpu::element::{Element, Rows};
use pyengine_kernels_cpu::linear::{self, Linear};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::tensor::{CpuTensor, by_element, invalid};
use crate::error::Error;
use crate::python::errors::guarded;

/// The weights of a linear layer, packed for `CpuKernels.linear`.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuLinear {
    inner: Linear,
}

#[pymethods]
impl CpuLinear {
    #[staticmethod]
    #[pyo3(signature = (weight, bias = None))]
    fn dense(py: Python<'_>, weight: &CpuTensor, bias: Option<&CpuTensor>) -> PyResult<Self> {
        py.detach(|| guarded(|| dense(weight, bias)))
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

/// `bias` in float32; nothing where there is none.
fn widened(bias: Option<&CpuTensor>, outputs: usize) -> Result<Vec<f32>, Error> {
    let Some(bias) = bias else { return Ok(Vec::new()) };
    by_element!(bias, T => Ok(bias.read::<T>("bias", outputs)?.iter().map(|bias| bias.to_f32()).collect()))
}
