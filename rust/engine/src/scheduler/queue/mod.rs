//! Requests before they run: messages that bring them, the queue, and who is admitted next.

mod admission;
mod inbox;
pub(super) mod policy;
pub(super) mod requests;
mod submit;
