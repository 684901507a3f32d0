//! Attention of one layer over latents, on Python's buffers: what is checked before the kernels run.

use pyengine_kernels_cpu::attention::{self, Inputs, Mask, OfLatents, Source};
use pyengine_kernels_cpu::latents::{self, LatentNorm};
use pyengine_kernels_cpu::paged::Heads;
use pyengine_kernels_cpu::threads::{Shared, Threads};
use pyo3::prelude::*;

use super::step::{CpuStep, bad_step};
use super::tensor::{CpuTensor, by_element, floats, invalid};
use pyengine_base::error::Error;

/// Attention of one layer over latents.
pub(super) struct AttendLatents {
    pub step: Py<CpuStep>,
    /// \[tokens, heads * rank\].
    pub absorbed: Py<CpuTensor>,
    /// \[tokens, heads * rotated elements\], perhaps columns.
    pub rotating: Py<CpuTensor>,
    /// \[tokens, rank + rotated elements\]: latents and keys.
    pub rows: Py<CpuTensor>,
    /// Of the latents' norm, \[rank\].
    pub weight: Py<CpuTensor>,
    pub epsilon: f32,
    pub angles: Py<CpuTensor>,
    /// \[blocks, block_size, rank + rotated elements\].
    pub latents: Py<CpuTensor>,
    /// \[tokens, heads * rank\].
    pub out: Py<CpuTensor>,
    pub num_heads: usize,
    pub scale: f32,
    pub temperatures: Option<Py<CpuTensor>>,
}

impl AttendLatents {
    /// Stores the step's latents, and attends.
    pub(super) fn run(&self, threads: &Threads) -> Result<(), Error> {
        let (heads, rank, blocks) = self.shape()?;
        let (cache, rows, out) = (self.latents.get(), self.rows.get(), self.out.get());
        let (absorbed, rotating) = (self.absorbed.get(), self.rotating.get());
        let step = self.step.get().view()?;
        let angles = self.angles.get().read_all::<f32>("angles")?;
        let context = angles.len() / (heads.dim - rank);
        let temperatures = floats(self.temperatures.as_ref(), "temperatures", context)?;
        step.check(heads.block_size, blocks, context).map_err(bad_step)?;
        by_element!(out, T => {
            let norm = LatentNorm { weight: self.weight.get().read::<T>("weight", rank)?, epsilon: self.epsilon };
            {
                // The cache is written first; this loan ends before it is read.
                let written = cache.write::<T>("latents", cache.extent(), &[rows, out, absorbed, rotating, self.weight.get()])?;
                let given = rows.columns::<T>("rows", step.num_tokens)?;
                latents::append(threads, &step, heads, given, norm, angles, &Shared::new(written));
            }
            let inputs = Inputs {
                step,
                heads,
                scale: self.scale,
                mask: Mask { temperatures, ..Mask::default() },
                angles,
                source: Source::Latents(OfLatents {
                    absorbed: absorbed.columns::<T>("absorbed", step.num_tokens)?,
                    rotating: rotating.columns::<T>("rotating", step.num_tokens)?,
                    latents: cache.read::<T>("latents", cache.extent())?,
                    rank,
                }),
            };
            let length = step.num_tokens * heads.query * rank;
            attention::attend(threads, &inputs, out.write::<T>("out", length, &[cache, absorbed, rotating])?);
            Ok(())
        })
    }

    /// The heads, the numbers of a latent and the blocks of the cache.
    fn shape(&self) -> Result<(Heads, usize, usize), Error> {
        let (cache, rank) = (self.latents.get(), self.weight.get().width());
        let &[blocks, block_size, dim] = cache.buffer.shape() else {
            return invalid("latents must be [blocks, block_size, rank + rotated elements]".into());
        };
        let query = self.num_heads;
        let turned = dim.saturating_sub(rank);
        if block_size == 0
            || query == 0
            || rank == 0
            || !rank.is_multiple_of(8)
            || turned % 2 != 0
            || turned == 0
        {
            return invalid(format!(
                "attention does not do {query} heads over latents of {rank} numbers, a multiple of 8, and {turned} \
                 rotated ones, an even number"
            ));
        }
        for (name, tensor, width) in [
            ("absorbed", &self.absorbed, query * rank),
            ("rotating", &self.rotating, query * turned),
            ("rows", &self.rows, dim),
            ("out", &self.out, query * rank),
            ("angles", &self.angles, turned),
        ] {
            if tensor.get().width() != width {
                return invalid(format!("{name} must have {width} columns, not {}", tensor.get().width()));
            }
        }
        Ok((Heads { query, kv: 1, dim, block_size, stride: cache.stride }, rank, blocks))
    }
}
