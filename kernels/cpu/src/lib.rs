//! Kernels of the CPU runner: paged attention and sampling. No Python, no tensors: slices in, slices out.
