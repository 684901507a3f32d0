//! The kernels of the CPU runner (`kernels/cpu`) on Python's buffers: no copies, the GIL released while they work.
//!
//! ```text
//!  tensor ◄── step, states, linear ◄── op ◄──────────┐
//!  tensor ◄── step ◄── sampling ◄── kernels ◄── program
//! ```

mod adapters;
mod attend;
mod elementwise;
mod experts;
mod kernels;
mod latents;
mod linear;
mod op;
mod program;
mod recurrence;
mod sampling;
mod states;
mod step;
mod tensor;

use pyo3::prelude::*;

pub(super) use program::CpuProgram;
pub(super) use sampling::sample;
pub(super) use step::CpuRules;
pub(super) use tensor::CpuTensor;

/// Adds the classes to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<tensor::CpuTensor>()?;
    module.add_class::<experts::CpuExperts>()?;
    module.add_class::<adapters::CpuAdapter>()?;
    module.add_class::<adapters::CpuAdapters>()?;
    module.add_class::<step::CpuStep>()?;
    module.add_class::<states::CpuStates>()?;
    module.add_class::<step::CpuRules>()?;
    module.add_class::<step::CpuPenalties>()?;
    module.add_class::<linear::CpuLinear>()?;
    module.add_class::<kernels::CpuKernels>()?;
    module.add_class::<program::CpuProgram>()?;
    module.add_function(wrap_pyfunction!(sampling::pick_allowed, module)?)
}
