//! The paged KV cache of one layer, and writing to it.
//!
//! A block holds `block_size` tokens of every head. Within a block and head, values lie token by
//! token, but keys dimension by dimension: the scores of a page's tokens are then sums over vectors
//! of neighbours, without a horizontal sum per key.
//!
//! ```text
//! keys    [block][kv head][head_dim][block_size]
//! values  [block][kv head][block_size][head_dim]
//! ```

use crate::element::Element;
use crate::rope::rotate;
use crate::step::Step;

/// Shape of attention and of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Elements of a head; a multiple of 8.
    pub dim: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Elements from one block's keys to the next one's, and of values: at least those of its heads. Layers whose
    /// heads differ in size share pages, each with a part of them.
    pub stride: usize,
}

impl Heads {
    /// Elements of one token's query, key and value together.
    pub fn qkv_width(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Query heads that share a key and value head.
    pub fn group(&self) -> usize {
        self.query / self.kv
    }

    /// Elements of one head of one block.
    pub fn page(&self) -> usize {
        self.dim * self.block_size
    }
}

#[inline(always)]
fn append_body<T: Element, const FMA: bool>(
    step: &Step<'_>,
    heads: Heads,
    qkv: &[T],
    angles: &[f32],
    keys: &mut [T],
    values: &mut [T],
) {
    let Heads { query, kv, dim, block_size, stride } = heads;
    let mut rotated = vec![0.0; dim];
    for token in 0..step.num_tokens {
        let slot = step.slot_mapping[token] as usize;
        let (block, offset) = (slot / block_size, slot % block_size);
        let angles = &angles[step.positions[token] as usize * dim..][..dim];
        let row = &qkv[token * heads.qkv_width()..][..heads.qkv_width()];
        for head in 0..kv {
            let page = block * stride + head * heads.page();
            let key = &row[(query + head) * dim..][..dim];
            rotate::<T, FMA>(key, angles, 1.0, &mut rotated);
            let lanes = keys[page..][..heads.page()].chunks_exact_mut(block_size);
            for (lane, &value) in lanes.zip(&rotated) {
                lane[offset] = T::from_f32(value);
            }
            let value = &row[(query + kv + head) * dim..][..dim];
            values[page + offset * dim..][..dim].copy_from_slice(value);
        }
    }
}

crate::multiversion!(
    /// Rotates the keys of every token of `step` and stores them with its values where `slot_mapping`
    /// says. `qkv` is \[tokens, qkv_width\]. O(tokens * kv heads * head_dim), one thread.
    ///
    /// # Panics
    /// A slice is shorter than the step needs; see [`Step::check`].
    pub fn append<T: Element>(
        step: &Step<'_>, heads: Heads, qkv: &[T], angles: &[f32], keys: &mut [T], values: &mut [T],
    ) = append_body
);
