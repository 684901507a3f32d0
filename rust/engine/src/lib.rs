//! The hot paths of pyengine, one folder per actor that owns it.
//!
//! Everything but [`python`] is plain Rust and knows nothing of Python.

pub mod detokenizer;
pub mod error;
pub mod grammar;
pub mod kv_allocator;
pub mod mailbox;
pub mod messages;
pub mod scheduler;
mod shared_memory;
pub mod speculate;
pub mod telemetry;

#[cfg(feature = "python")]
mod python;
