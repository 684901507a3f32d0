//! Kernels of the CPU runner: paged attention, layers with states, what stands between the matrix products, and sampling.
//!
//! No Python, no tensors: slices in, slices out. Every kernel gives a row the same result whatever
//! other rows there are and however many threads work.

pub mod activation;
pub mod adapters;
pub mod attention;
pub mod columns;
pub mod convolution;
pub mod element;
pub mod elementwise;
pub mod experts;
pub mod gated_norm;
pub mod isa;
pub mod latents;
pub mod linear;
pub mod math;
pub mod norm;
pub mod paged;
mod processors;
pub mod random;
pub mod recurrence;
mod registers;
pub mod rope;
pub mod sampler;
pub mod states;
pub mod step;
pub mod threads;
