//! The hot paths of pyengine, one folder per actor or subsystem.
//!
//! Only `python` depends on Python; the rest is plain Rust.

pub mod detokenizer;
pub mod error;
pub mod grammar;
pub mod kv_allocator;
pub mod mailbox;
mod memory;
pub mod messages;
pub mod scheduler;
mod shared_memory;
pub mod speculate;
pub mod telemetry;

#[cfg(feature = "python")]
mod python;
