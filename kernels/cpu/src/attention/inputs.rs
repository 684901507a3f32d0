//! The inputs of attention.

use crate::paged::Heads;
use crate::step::Step;

/// What a layer does to the scores of a query besides scaling them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mask<'a> {
    /// Number of keys that a query sees, the last of them its own; None: all keys before it.
    pub window: Option<usize>,
    /// Positions in a chunk; a query sees only keys of its own chunk (Meta, "Llama 4", 2025).
    pub chunk: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A logit for each query head, which takes a share of the softmax and has no value; empty is none.
    pub sinks: &'a [f32],
    /// Multiplies the scores of the query at each position; empty is 1.
    pub temperatures: &'a [f32],
}

/// The inputs of attention. The keys and values of this step's tokens are in the cache already; see
/// [`crate::paged::append`].
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a, T> {
    /// Rows and pages.
    pub step: Step<'a>,
    /// Shape.
    pub heads: Heads,
    /// Multiplies the scores.
    pub scale: f32,
    /// Which keys a query sees, and what becomes of its scores.
    pub mask: Mask<'a>,
    /// \[tokens, width\], of which the queries are read, not rotated yet.
    pub qkv: &'a [T],
    /// From one token of `qkv` to the next: [`Heads::qkv_width`], or that of queries alone.
    pub width: usize,
    /// \[positions, head_dim\]; see [`crate::rope`].
    pub angles: &'a [f32],
    /// Keys of the layer; see [`crate::paged`].
    pub keys: &'a [T],
    /// Values of the layer.
    pub values: &'a [T],
}
