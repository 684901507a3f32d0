//! `pyengine._core.StepHeader`: the names of the header's numbers, as Rust has them.

use pyo3::prelude::*;

use crate::scheduler::step::buffers::header;

/// Which element of a step's header is which number.
#[pyclass(module = "pyengine._core", frozen)]
pub(super) struct StepHeader;

#[pymethods]
impl StepHeader {
    #[classattr]
    const NUM_ROWS: usize = header::NUM_ROWS;
    #[classattr]
    const NUM_TOKENS: usize = header::NUM_TOKENS;
    #[classattr]
    const NUM_SAMPLED: usize = header::NUM_SAMPLED;
    #[classattr]
    const NUM_PAGES: usize = header::NUM_PAGES;
    #[classattr]
    const NUM_FEEDS: usize = header::NUM_FEEDS;
    #[classattr]
    const MAX_QUERY_LENGTH: usize = header::MAX_QUERY_LENGTH;
    #[classattr]
    const MAX_KV_LENGTH: usize = header::MAX_KV_LENGTH;
    #[classattr]
    const STEP_ID: usize = header::STEP_ID;
    #[classattr]
    const NUM_GREEDY: usize = header::NUM_GREEDY;
    #[classattr]
    const NUM_LOGITS: usize = header::NUM_LOGITS;
    #[classattr]
    const NUM_MASKS: usize = header::NUM_MASKS;
    #[classattr]
    const MAX_DEVICE_DRAFTS: usize = header::MAX_DEVICE_DRAFTS;
    #[classattr]
    const NUM_DECODE_ROWS: usize = header::NUM_DECODE_ROWS;
    #[classattr]
    const NUM_EDITS: usize = header::NUM_EDITS;
    #[classattr]
    const MAX_LOGPROBS_AND_ONE: usize = header::MAX_LOGPROBS_AND_ONE;
}
