//! What all crates of the core share: its error, the memory that threads hold, and shared memory.

pub mod error;
pub mod memory;
pub mod shared_memory;
