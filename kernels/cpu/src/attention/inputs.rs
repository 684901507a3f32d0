//! The inputs of attention.

use crate::columns::Columns;
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

/// The inputs of attention. What the cache has of this step's tokens is there already; see [`crate::paged::append`] and
/// [`crate::latents::append`].
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
    /// \[positions, rotated elements of a head\]; see [`crate::rope`].
    pub angles: &'a [f32],
    /// Queries, and the layer's cache.
    pub source: Source<'a, T>,
}

/// Queries, not rotated yet, and what they attend to.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a, T> {
    /// Keys and values of heads.
    Heads(OfHeads<'a, T>),
    /// A latent of each token, which all heads share: one key and value head.
    Latents(OfLatents<'a, T>),
}

/// See [`crate::paged`].
#[derive(Debug, Clone, Copy)]
pub struct OfHeads<'a, T> {
    /// \[tokens, width\], of which the queries are read.
    pub qkv: &'a [T],
    /// From one token of `qkv` to the next: [`Heads::qkv_width`], or that of queries alone.
    pub width: usize,
    /// Keys of the layer.
    pub keys: &'a [T],
    /// Values of the layer.
    pub values: &'a [T],
}

/// See [`crate::latents`]. [`Heads::dim`] counts the numbers of the latent and of the rotated key.
#[derive(Debug, Clone, Copy)]
pub struct OfLatents<'a, T> {
    /// What meets latents, \[tokens, query heads * rank\].
    pub absorbed: Columns<'a, T>,
    /// What is rotated, \[tokens, query heads * rotated elements\].
    pub rotating: Columns<'a, T>,
    /// Of the layer: \[block\]\[token\]\[rank + rotated elements\].
    pub latents: &'a [T],
    /// Numbers of a latent: the first of a token's, which are its value.
    pub rank: usize,
}

impl<T> Inputs<'_, T> {
    /// Elements of a head's value, and so of its output.
    pub fn value_dim(&self) -> usize {
        match self.source {
            Source::Heads(_) => self.heads.dim,
            Source::Latents(OfLatents { rank, .. }) => rank,
        }
    }
}
