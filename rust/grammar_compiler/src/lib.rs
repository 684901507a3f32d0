//! Grammars compiled: a description is lowered to the input of one of two backends, on threads with limits and a cache.
//!
//! ```text
//!   description (JSON) ──compiler: threads, limits, cache──► lowering ──► backends ──► Arc<dyn Compiled>
//! ```
//!
//! The traits of what comes out are in `pyengine-grammar`, which is all that the scheduler knows.

pub(crate) mod backends;
mod cancellation;
pub mod compiler;
pub mod context;
pub(crate) mod lowering;
mod plain;
#[cfg(test)]
mod tests {
    mod fuzz;
}
pub(crate) mod trie;
