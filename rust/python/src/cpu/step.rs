//! The step buffers as the kernels read them: `CpuStep`, `CpuRules` and `CpuPenalties` of `pyengine._core`.
//!
//! The buffers stay where they are from step to step; a view is made anew for each call, O(fields).

use pyengine_kernels_cpu::sampler::penalties::Penalties;
use pyengine_kernels_cpu::sampler::{Rules, SamplingRow};
use pyengine_kernels_cpu::step::{BadStep, Step};
use pyo3::prelude::*;

use super::tensor::{CpuTensor, by_element};
use pyengine_base::error::Error;
use pyengine_scheduler::step::buffers::StepHeader;

/// The core's error for buffers that are no step.
pub(super) fn bad_step(error: BadStep) -> Error {
    Error::InvalidArgument(error.to_string())
}

/// How many rows and tokens the step with this header has.
pub(super) fn rows_and_tokens(header: &CpuTensor) -> Result<(usize, usize), Error> {
    let numbers = header.read_all::<i64>("header")?;
    let count = |number| usize::try_from(number).ok();
    StepHeader::from_numbers(numbers)
        .and_then(|header| Some((count(header.num_rows)?, count(header.num_tokens)?)))
        .ok_or_else(|| Error::InvalidArgument("the header is too short, or has a negative count".into()))
}

/// The step buffers that attention reads.
#[pyclass(frozen, module = "pyengine._core", new = "from_fields")]
pub(crate) struct CpuStep {
    header: CpuTensor,
    positions: CpuTensor,
    slot_mapping: CpuTensor,
    query_start: CpuTensor,
    kv_length: CpuTensor,
    page_indptr: CpuTensor,
    page_indices: CpuTensor,
}

impl CpuStep {
    pub(super) fn view(&self) -> Result<Step<'_>, Error> {
        let (num_rows, num_tokens) = rows_and_tokens(&self.header)?;
        Ok(Step {
            num_rows,
            num_tokens,
            positions: self.positions.read_all("positions")?,
            slot_mapping: self.slot_mapping.read_all("slot_mapping")?,
            query_start: self.query_start.read_all("query_start")?,
            kv_length: self.kv_length.read_all("kv_length")?,
            page_indptr: self.page_indptr.read_all("page_indptr")?,
            page_indices: self.page_indices.read_all("page_indices")?,
        })
    }
}

/// The sampling fields of the step buffers.
#[pyclass(frozen, module = "pyengine._core", new = "from_fields")]
pub(crate) struct CpuRules {
    sampling: CpuTensor,
    sample_position: CpuTensor,
    logit_start: CpuTensor,
    logit_row: CpuTensor,
    logit_token: CpuTensor,
    mask_row: CpuTensor,
    mask: CpuTensor,
}

impl CpuRules {
    pub(super) fn view(&self) -> Result<Rules<'_>, Error> {
        Ok(Rules {
            sampling: rows(self.sampling.read_all("sampling")?)?,
            sample_position: self.sample_position.read_all("sample_position")?,
            logit_start: self.logit_start.read_all("logit_start")?,
            logit_row: self.logit_row.read_all("logit_row")?,
            logit_token: self.logit_token.read_all("logit_token")?,
            mask_row: self.mask_row.read_all("mask_row")?,
            mask: self.mask.read_all("mask")?,
            mask_words: self.mask.width(),
        })
    }
}

/// The rows that lie in `words`.
fn rows(words: &[u32]) -> Result<&[SamplingRow], Error> {
    // SAFETY: any bytes are a row.
    match unsafe { words.align_to::<SamplingRow>() } {
        ([], rows, []) => Ok(rows),
        _ => Err(Error::InvalidArgument("sampling must be whole rows, 8-byte aligned".into())),
    }
}

/// The penalties of logits in the step buffers, and room for what was there before.
#[pyclass(frozen, module = "pyengine._core", new = "from_fields")]
pub(crate) struct CpuPenalties {
    start: CpuTensor,
    token: CpuTensor,
    factor: CpuTensor,
    add: CpuTensor,
    before: CpuTensor,
}

impl CpuPenalties {
    /// Penalties `rows` rows of `logits`, from logits row `first` of the step on, or undoes that.
    pub(super) fn run(&self, logits: &CpuTensor, first: usize, rows: usize, undo: bool) -> Result<(), Error> {
        let penalties = Penalties {
            start: self.start.read_all("start")?,
            token: self.token.read_all("token")?,
            factor: self.factor.read_all("factor")?,
            add: self.add.read_all("add")?,
        };
        let vocabulary = logits.width();
        penalties.check(first, first.saturating_add(rows), vocabulary).map_err(bad_step)?;
        let others = [logits, &self.start, &self.token, &self.factor, &self.add];
        let before = self.before.write::<f32>("before", penalties.token.len(), &others)?;
        by_element!(logits, T => {
            let logits = logits.write::<T>("logits", rows.saturating_mul(vocabulary), &others[1..])?;
            match undo {
                true => penalties.restore(logits, vocabulary, first, before),
                false => penalties.apply(logits, vocabulary, first, before),
            }
            Ok::<_, Error>(())
        })
    }
}
