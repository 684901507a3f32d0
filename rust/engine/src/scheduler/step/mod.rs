//! One step: which rows it has, how they are written, and what comes back.

pub(crate) mod buffers;
mod commit;
mod fill;
mod finish;
mod padding;
pub(super) mod plan;
pub(super) mod sequence_table;
mod sharing;
