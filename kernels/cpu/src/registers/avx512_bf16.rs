//! The operations of [`avx512`](super::avx512), with products of pairs of bfloat16 as one instruction.

use std::arch::x86_64::{__m512bh, _mm512_dpbf16_ps};

pub use super::avx512::*;

crate::operations! { "avx512f,avx512bf16";
    /// sums + in each lane the products of its two bfloat16 numbers with those of x, the odd one first; subnormal numbers
    /// count as zero.
    dot_pairs(sums: Floats, pairs: Integers, x: Integers) -> Floats =
        _mm512_dpbf16_ps(sums, as_pairs(x), as_pairs(pairs));
    as_pairs(bits: Integers) -> __m512bh =
        // SAFETY: both are 64 bytes that hold any bits.
        unsafe { std::mem::transmute::<Integers, __m512bh>(bits) };
}
