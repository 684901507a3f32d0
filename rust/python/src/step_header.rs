//! `pyengine._core.StepHeader`: the names of the header's numbers, as Rust has them.

use pyo3::prelude::*;

use pyengine_scheduler::header_numbers;

/// Which element of a step's header is which number.
#[pyclass(module = "pyengine._core", frozen)]
pub(super) struct StepHeader;

macro_rules! declare_attributes {
    ($($(#[doc = $doc:literal])* $name:ident = $index:literal;)*) => {
        #[pymethods]
        impl StepHeader {
            $(#[classattr] const $name: usize = $index;)*
        }
    };
}
header_numbers!(declare_attributes);
