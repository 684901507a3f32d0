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
use crate::threads::{Shared, Threads};

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

/// Rotates the keys of every token of `step` and stores them with its values where `slot_mapping` says. `qkv` is
/// \[tokens, qkv_width\]. A head is a piece of work: no two of them share a line of the processor's caches.
/// O(tokens * kv heads * head_dim).
///
/// Keys and values may lie in one piece of memory, as long as their blocks do not overlap.
///
/// # Panics
/// A slice is shorter than the step needs; see [`Step::check`].
pub fn append<T: Element>(
    threads: &Threads,
    step: &Step<'_>,
    heads: Heads,
    qkv: &[T],
    angles: &[f32],
    keys: &Shared<'_, T>,
    values: &Shared<'_, T>,
) {
    threads.share(heads.kv, 4 * step.num_tokens * heads.kv * heads.dim, |head| {
        append_head(step, heads, head, qkv, angles, keys, values);
    });
}

#[inline(always)]
fn append_head_body<T: Element, const FMA: bool>(
    step: &Step<'_>,
    heads: Heads,
    head: usize,
    qkv: &[T],
    angles: &[f32],
    keys: &Shared<'_, T>,
    values: &Shared<'_, T>,
) {
    let Heads { query, kv, dim, block_size, stride } = heads;
    let (mut rotated, mut key) = (vec![0.0; dim], vec![T::ZERO; dim]);
    for token in 0..step.num_tokens {
        let slot = step.slot_mapping[token] as usize;
        let (block, offset) = (slot / block_size, slot % block_size);
        let page = block * stride + head * heads.page();
        // SAFETY: each head's part of a page is one piece's.
        let (keys, values) =
            unsafe { (keys.part(page, heads.page()), values.part(page + offset * dim, dim)) };
        let angles = &angles[step.positions[token] as usize * dim..][..dim];
        let row = &qkv[token * heads.qkv_width()..][..heads.qkv_width()];
        rotate::<T, FMA>(&row[(query + head) * dim..][..dim], angles, 1.0, &mut rotated);
        key.iter_mut().zip(&rotated).for_each(|(to, &from)| *to = T::from_f32(from));
        keys[offset..].iter_mut().step_by(block_size).zip(&key).for_each(|(to, &from)| *to = from);
        values.copy_from_slice(&row[(query + kv + head) * dim..][..dim]);
    }
}

crate::multiversion!(
    fn append_head<T: Element>(
        step: &Step<'_>, heads: Heads, head: usize, qkv: &[T], angles: &[f32], keys: &Shared<'_, T>,
        values: &Shared<'_, T>,
    ) = append_head_body
);
