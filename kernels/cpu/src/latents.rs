//! The paged cache of one layer's latents, and writing to it (DeepSeek-AI, "DeepSeek-V2", 2024).
//!
//! A token has one latent, which the keys and values of all heads are computed from, and behind it one rotated key,
//! which all heads share. They lie token by token, for the latent is key and value in one:
//!
//! ```text
//! latents  [block][block_size][rank + rotated elements]
//! ```

use crate::columns::Columns;
use crate::element::Element;
use crate::norm::normalize_heads;
use crate::paged::Heads;
use crate::rope::rotate;
use crate::step::Step;
use crate::threads::{Shared, Threads};

/// The norm of latents.
#[derive(Debug, Clone, Copy)]
pub struct LatentNorm<'a, T> {
    /// \[rank\].
    pub weight: &'a [T],
    /// Added to the mean of the squares.
    pub epsilon: f32,
}

/// Normalizes the latent of every token of `step`, rotates the key behind it, and stores both where `slot_mapping` says.
///
/// `rows` is \[tokens, rank + rotated elements\], `angles` \[positions, rotated elements\]. O(tokens * width).
///
/// # Panics
/// A slice is shorter than the step needs; see [`Step::check`].
pub fn append<T: Element>(
    threads: &Threads,
    step: &Step<'_>,
    heads: Heads,
    rows: Columns<'_, T>,
    norm: LatentNorm<'_, T>,
    angles: &[f32],
    latents: &Shared<'_, T>,
) {
    let Heads { dim, block_size, stride, .. } = heads;
    let rank = norm.weight.len();
    let turned = dim - rank;
    threads.share(step.num_tokens, 8 * step.num_tokens * dim, |token| {
        let slot = step.slot_mapping[token] as usize;
        let place = slot / block_size * stride + slot % block_size * dim;
        // SAFETY: each token has a slot of its own.
        let (latent, key) = unsafe { (latents.part(place, rank), latents.part(place + rank, turned)) };
        let (from, rotating) = rows.row(token).split_at(rank);
        latent.copy_from_slice(from);
        normalize_heads(latent, norm.weight, norm.epsilon);
        let mut rotated = vec![0.0; turned];
        let angles = &angles[step.positions[token] as usize * turned..][..turned];
        rotate::<T, false>(rotating, angles, 1.0, &mut rotated);
        key.iter_mut().zip(&rotated).for_each(|(to, &from)| *to = T::from_f32(from));
    });
}
