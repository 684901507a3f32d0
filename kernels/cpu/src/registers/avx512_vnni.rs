//! The operations of [`avx512`](super::avx512), with products of bytes as one instruction.

use std::arch::x86_64::_mm512_dpbusd_epi32;

pub use super::avx512::*;

crate::operations! { "avx512f,avx512vnni";
    /// sums + in each lane the products of its four unsigned bytes with the signed ones of x.
    dot_bytes(sums: Integers, bytes: Integers, x: Integers) -> Integers = _mm512_dpbusd_epi32(sums, bytes, x);
}
