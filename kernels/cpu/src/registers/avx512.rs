//! 32 registers of 16 lanes.

use crate::element::Element;
use std::arch::x86_64::*;

/// Floats in a register.
pub const LANES: usize = 16;
/// A register.
pub type Floats = __m512;
/// A register of 32-bit integers.
pub type Integers = __m512i;

crate::operations! { "avx512f";
    /// Zeros.
    zero() -> Floats = _mm512_setzero_ps();
    /// A number in every lane.
    splat(value: f32) -> Floats = _mm512_set1_ps(value);
    /// a * b + c.
    fused(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fmadd_ps(a, b, c);
    /// a + b.
    plus(a: Floats, b: Floats) -> Floats = _mm512_add_ps(a, b);
    /// a - b.
    minus(a: Floats, b: Floats) -> Floats = _mm512_sub_ps(a, b);
    /// a * b.
    times(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
    /// The larger, and b where there is a NaN.
    larger(a: Floats, b: Floats) -> Floats = _mm512_max_ps(a, b);
    /// |a|.
    size(a: Floats) -> Floats = _mm512_abs_ps(a);
    /// The largest lane; there is no NaN.
    largest(a: Floats) -> f32 = _mm512_reduce_max_ps(a);
    /// An integer in every lane.
    splat_integer(value: i32) -> Integers = _mm512_set1_epi32(value);
    /// The nearest floats.
    to_floats(integers: Integers) -> Floats = _mm512_cvtepi32_ps(integers);
    /// bfloat16 numbers in the low halves of words.
    widen_low(pairs: Integers) -> Floats = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    /// The bfloat16 numbers in the high halves.
    widen_high(pairs: Integers) -> Floats = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
    /// a + b.
    plus_integers(a: Integers, b: Integers) -> Integers = _mm512_add_epi32(a, b);
    /// The sum of all lanes.
    total(a: Integers) -> i32 = _mm512_reduce_add_epi32(a);
    /// The nearest integers, of two the even one, as far as they fit signed bytes; a NaN becomes 0.
    to_bytes(a: Floats) -> Integers =
        _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(_mm512_cvtps_epi32(a)));
    /// [`crate::math::exp`].
    exp(x: Floats) -> Floats = {
        let (p, shifted) = crate::exp_steps!(x, splat, fused, plus, minus, times, larger);
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        let scale = _mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f80_0000));
        let kept = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, splat(-87.3));
        _mm512_maskz_mul_ps(kept, p, _mm512_castsi512_ps(scale))
    };
}

crate::operations! { "avx512f", unsafe;
    /// # Safety
    /// The pointer has a register of them.
    load_words(from: *const u32) -> Integers = _mm512_loadu_si512(from.cast());
    /// [`crate::math::half_power`].
    ///
    /// # Safety
    /// The pointer has a register of them.
    load_half_powers(from: *const u8) -> Floats = {
        let powers = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
        let powers = _mm512_max_epi32(powers, _mm512_set1_epi32(crate::math::SMALLEST_POWER as i32));
        _mm512_mul_ps(_mm512_castsi512_ps(powers), _mm512_set1_ps(0.5))
    };
    /// # Safety
    /// The pointer has a register of them.
    load(from: *const f32) -> Floats = _mm512_loadu_ps(from);
    /// # Safety
    /// The pointer has a register of them.
    store(to: *mut f32, values: Floats) -> () = _mm512_storeu_ps(to, values);
    /// The low bytes.
    ///
    /// # Safety
    /// The pointer has a register of them.
    store_bytes(to: *mut i8, values: Integers) -> () = _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(values));
    /// bfloat16 numbers.
    ///
    /// # Safety
    /// The pointer has a register of them.
    widen(from: *const u16) -> Floats = {
        let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
    };
}

/// Numbers of either type.
///
/// # Safety
/// The pointer has a register of them.
#[target_feature(enable = "avx512f")]
#[inline]
pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
    // SAFETY: as the caller says; the two types of elements differ in their size.
    unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
}

// Of bytes.
crate::operations! { "avx512f,avx512bw";
    /// The low 4 bits of every byte.
    low_halves(bytes: Integers) -> Integers = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
    /// The high ones.
    high_halves(bytes: Integers) -> Integers = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15));
    /// For every byte, which is below 16, that of the table.
    looked_up(table: &[u8; 16], bytes: Integers) -> Integers = {
        // SAFETY: 16 bytes.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bytes)
    };
}
