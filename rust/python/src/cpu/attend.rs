//! Attention of one layer on Python's buffers: what is checked before the kernels run.

use pyengine_kernels_cpu::attention::{self, Inputs, OfHeads, Source};
use pyengine_kernels_cpu::paged::{self, Heads};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::step::{CpuStep, bad_step};
use super::tensor::{CpuTensor, by_element, floats, invalid};
use pyengine_base::error::Error;

/// Attention of one layer.
pub(super) struct Attend {
    pub step: Py<CpuStep>,
    /// \[tokens, (heads + 2 * kv heads) * head_dim\], or queries alone where nothing is stored.
    pub qkv: Py<CpuTensor>,
    pub angles: Py<CpuTensor>,
    pub keys: Py<CpuTensor>,
    pub values: Py<CpuTensor>,
    pub out: Py<CpuTensor>,
    pub num_heads: usize,
    pub scale: f32,
    pub mask: LayerMask,
    /// Whether keys and values of the step's tokens are stored; another layer has done so otherwise.
    pub stores: bool,
}

/// What a layer does to its scores; see [`attention::Mask`].
pub(super) struct LayerMask {
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    pub soft_cap: Option<f32>,
    pub sinks: Option<Py<CpuTensor>>,
    pub temperatures: Option<Py<CpuTensor>>,
}

impl LayerMask {
    fn view(&self, num_heads: usize, context: usize) -> Result<attention::Mask<'_>, Error> {
        let &Self { window, chunk, soft_cap, ref sinks, ref temperatures } = self;
        if window == Some(0) || chunk == Some(0) || soft_cap.is_some_and(|cap| cap.is_nan() || cap <= 0.0) {
            return invalid("a window, a chunk and a soft cap are more than 0".into());
        }
        let sinks = floats(sinks.as_ref(), "sinks", num_heads)?;
        let temperatures = floats(temperatures.as_ref(), "temperatures", context)?;
        Ok(attention::Mask { window, chunk, soft_cap, sinks, temperatures })
    }
}

impl Attend {
    /// Stores the step's keys and values, and attends.
    pub(super) fn run(&self, threads: &Threads) -> Result<(), Error> {
        let (qkv, out) = (self.qkv.get(), self.out.get());
        let (keys, values) = (self.keys.get(), self.values.get());
        let (heads, num_blocks) = cache_shape(keys, values, self.num_heads)?;
        let step = self.step.get().view()?;
        let angles = self.angles.get().read_all::<f32>("angles")?;
        let context = angles.len() / heads.dim;
        let mask = self.mask.view(self.num_heads, context)?;
        step.check(heads.block_size, num_blocks, context).map_err(bad_step)?;
        let width = if self.stores { heads.qkv_width() } else { heads.query * heads.dim };
        by_element!(qkv, T => {
            let inputs = qkv.read::<T>("qkv", step.num_tokens * width)?;
            let cache = keys.extent();
            if self.stores {
                // The cache is written first; these loans end before it is read.
                paged::append(
                    threads,
                    &step,
                    heads,
                    inputs,
                    angles,
                    &keys.write_blocks::<T>("keys", values, &[qkv, out])?,
                    &values.write_blocks::<T>("values", keys, &[qkv, out])?,
                );
            }
            let inputs = Inputs {
                step,
                heads,
                scale: self.scale,
                mask,
                angles,
                source: Source::Heads(OfHeads {
                    qkv: inputs,
                    width,
                    keys: keys.read::<T>("keys", cache)?,
                    values: values.read::<T>("values", cache)?,
                }),
            };
            let length = step.num_tokens * heads.query * heads.dim;
            attention::attend(threads, &inputs, out.write::<T>("out", length, &[keys, values, qkv])?);
            Ok(())
        })
    }
}

/// The heads and blocks of a cache: keys are \[blocks, kv heads, head_dim, block_size\].
fn cache_shape(keys: &CpuTensor, values: &CpuTensor, num_heads: usize) -> Result<(Heads, usize), Error> {
    let &[blocks, kv, dim, block_size] = keys.buffer.shape() else {
        return invalid("keys must be [blocks, kv heads, head_dim, block_size]".into());
    };
    if values.buffer.shape() != [blocks, kv, block_size, dim] || values.stride != keys.stride {
        return invalid("values must be [blocks, kv heads, block_size, head_dim]".into());
    }
    let heads = Heads { query: num_heads, kv, dim, block_size, stride: keys.stride };
    if kv == 0
        || block_size == 0
        || dim == 0
        || !dim.is_multiple_of(8)
        || !num_heads.is_multiple_of(kv)
        || num_heads == 0
    {
        return invalid(format!(
            "attention does not do {heads:?}: head_dim is a multiple of 8, kv divides query"
        ));
    }
    Ok((heads, blocks))
}
