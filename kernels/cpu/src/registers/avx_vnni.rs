//! The operations of [`avx2`](super::avx2), with products of bytes as one instruction.

use std::arch::x86_64::_mm256_dpbusd_avx_epi32;

pub use super::avx2::*;

crate::operations! { "avx2,fma,avxvnni";
    /// sums + in each lane the products of its four unsigned bytes with the signed ones of x.
    dot_bytes(sums: Integers, bytes: Integers, x: Integers) -> Integers = _mm256_dpbusd_avx_epi32(sums, bytes, x);
}
