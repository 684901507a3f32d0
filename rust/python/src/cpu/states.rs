//! The fields of a step that say where its rows' states are, and the pool of states: `pyengine._core.CpuStates`.

#![allow(
    clippy::too_many_arguments,
    reason = "the fields of the class are the arguments that it is made from"
)]

use pyengine_kernels_cpu::states::{Place, Pool, States};
use pyo3::prelude::*;

use super::step::{bad_step, rows_and_tokens};
use super::tensor::{CpuTensor, invalid};
use pyengine_base::error::Error;

/// The states of a step's rows, and the pool that they are in.
#[pyclass(frozen, module = "pyengine._core", new = "from_fields")]
pub(crate) struct CpuStates {
    header: CpuTensor,
    query_start: CpuTensor,
    state_slot: CpuTensor,
    state_source: CpuTensor,
    state_accepted: CpuTensor,
    state_drafts: CpuTensor,
    snapshot_slot: CpuTensor,
    snapshot_tokens: CpuTensor,
    pub(super) pool: CpuTensor,
    max_draft: usize,
}

impl CpuStates {
    /// The step's rows, checked.
    pub(super) fn view(&self) -> Result<States<'_>, Error> {
        let &[num_slots, slot_size] = self.pool.buffer.shape() else {
            return invalid("the pool of states must be [slots, numbers]".into());
        };
        let (num_rows, num_tokens) = rows_and_tokens(&self.header)?;
        let states = States {
            num_rows,
            num_tokens,
            query_start: self.query_start.read_all("query_start")?,
            slot: self.state_slot.read_all("state_slot")?,
            source: self.state_source.read_all("state_source")?,
            accepted: self.state_accepted.read_all("state_accepted")?,
            drafts: self.state_drafts.read_all("state_drafts")?,
            snapshot_slot: self.snapshot_slot.read_all("snapshot_slot")?,
            snapshot_tokens: self.snapshot_tokens.read_all("snapshot_tokens")?,
            num_slots,
            slot_size,
            max_draft: self.max_draft,
        };
        states.check().map_err(bad_step)?;
        Ok(states)
    }

    /// The pool; none of `others` is in it. Only for a kernel whose `place`, of a state of `size` numbers and drafts of
    /// `draft_size`, is inside of a slot.
    pub(super) fn pool(
        &self,
        place: Place,
        size: usize,
        draft_size: usize,
        others: &[&CpuTensor],
    ) -> Result<Pool<'_>, Error> {
        if !place.fits(self.pool.width(), size, draft_size, self.max_draft) {
            return invalid(format!(
                "a state of {size} numbers and {} drafts of {draft_size} do not lie apart at {place:?} of {}",
                self.max_draft,
                self.pool.width()
            ));
        }
        let numbers = self.pool.write::<f32>("the pool of states", self.pool.extent(), others)?;
        Ok(Pool::new(numbers, self.pool.stride))
    }
}
