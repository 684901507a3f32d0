//! Kernels of the CPU runner: paged attention, what stands between the matrix products, and sampling.
//!
//! No Python, no tensors: slices in, slices out. Every kernel gives a row the same result whatever
//! other rows there are and however many threads work.

pub mod activation;
pub mod attention;
pub mod element;
pub mod elementwise;
pub mod experts;
pub mod isa;
pub mod linear;
pub mod math;
pub mod norm;
pub mod paged;
pub mod peaks;
mod processors;
pub mod random;
mod registers;
pub mod rope;
pub mod sampler;
pub mod step;
pub mod threads;
