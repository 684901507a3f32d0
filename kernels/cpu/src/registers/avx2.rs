//! 16 registers of 8 lanes.

use crate::element::Element;
use std::arch::x86_64::*;

/// Floats in a register.
pub const LANES: usize = 8;
/// A register.
pub type Floats = __m256;
/// A register of 32-bit integers.
pub type Integers = __m256i;

crate::operations! { "avx2,fma";
    /// Zeros.
    zero() -> Floats = _mm256_setzero_ps();
    /// A number in every lane.
    splat(value: f32) -> Floats = _mm256_set1_ps(value);
    /// a * b + c.
    fused(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fmadd_ps(a, b, c);
    /// a + b.
    plus(a: Floats, b: Floats) -> Floats = _mm256_add_ps(a, b);
    /// a - b.
    minus(a: Floats, b: Floats) -> Floats = _mm256_sub_ps(a, b);
    /// a * b.
    times(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
    /// The larger, and b where there is a NaN.
    larger(a: Floats, b: Floats) -> Floats = _mm256_max_ps(a, b);
    /// |a|.
    size(a: Floats) -> Floats = _mm256_andnot_ps(splat(-0.0), a);
    /// The largest lane; there is no NaN.
    largest(a: Floats) -> f32 = {
        let half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)))
    };
    /// An integer in every lane.
    splat_integer(value: i32) -> Integers = _mm256_set1_epi32(value);
    /// The nearest floats.
    to_floats(integers: Integers) -> Floats = _mm256_cvtepi32_ps(integers);
    /// bfloat16 numbers in the low halves of words.
    widen_low(pairs: Integers) -> Floats = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
    /// The bfloat16 numbers in the high halves.
    widen_high(pairs: Integers) -> Floats = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
    /// a + b.
    plus_integers(a: Integers, b: Integers) -> Integers = _mm256_add_epi32(a, b);
    /// The sum of all lanes.
    total(a: Integers) -> i32 = {
        let half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b00_00_11_10>(half));
        _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32::<1>(quarter)))
    };
    /// The nearest integers, of two the even one, as far as they fit signed bytes; a NaN becomes 0.
    to_bytes(a: Floats) -> Integers =
        _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(_mm256_cvtps_epi32(a)));
    /// [`crate::math::exp`].
    exp(x: Floats) -> Floats = {
        let (p, shifted) = crate::exp_steps!(x, splat, fused, plus, minus, times, larger);
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        let scale = _mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f80_0000));
        let kept = _mm256_cmp_ps::<_CMP_GT_OQ>(x, splat(-87.3));
        _mm256_and_ps(kept, times(p, _mm256_castsi256_ps(scale)))
    };
}

crate::operations! { "avx2,fma", unsafe;
    /// # Safety
    /// The pointer has a register of them.
    load_words(from: *const u32) -> Integers = _mm256_loadu_si256(from.cast());
    /// [`crate::math::half_power`].
    ///
    /// # Safety
    /// The pointer has a register of them.
    load_half_powers(from: *const u8) -> Floats = {
        let powers = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())));
        let powers = _mm256_max_epi32(powers, _mm256_set1_epi32(crate::math::SMALLEST_POWER as i32));
        _mm256_mul_ps(_mm256_castsi256_ps(powers), _mm256_set1_ps(0.5))
    };
    /// # Safety
    /// The pointer has a register of them.
    load(from: *const f32) -> Floats = _mm256_loadu_ps(from);
    /// # Safety
    /// The pointer has a register of them.
    store(to: *mut f32, values: Floats) -> () = _mm256_storeu_ps(to, values);
    /// The low bytes.
    ///
    /// # Safety
    /// The pointer has a register of them.
    store_bytes(to: *mut i8, values: Integers) -> () = {
        let lows = _mm256_set1_epi32(0x0c08_0400);
        let packed = _mm256_shuffle_epi8(values, lows);
        to.cast::<i32>().write_unaligned(_mm256_extract_epi32::<0>(packed));
        to.cast::<i32>().add(1).write_unaligned(_mm256_extract_epi32::<4>(packed));
    };
    /// bfloat16 numbers.
    ///
    /// # Safety
    /// The pointer has a register of them.
    widen(from: *const u16) -> Floats = {
        let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
    };
}

/// Numbers of either type.
///
/// # Safety
/// The pointer has a register of them.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
    // SAFETY: as the caller says; the two types of elements differ in their size.
    unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
}

// Of bytes. Products go by way of 16 bits, which two of 128 * 127 do not overflow.
crate::operations! { "avx2,fma";
    /// The low 4 bits of every byte.
    low_halves(bytes: Integers) -> Integers = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    /// The high ones.
    high_halves(bytes: Integers) -> Integers = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15));
    /// For every byte, which is below 16, that of the table.
    looked_up(table: &[u8; 16], bytes: Integers) -> Integers = {
        // SAFETY: 16 bytes.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bytes)
    };
    /// sums + in each lane the products of its four bytes, each less 128, with the signed ones of x.
    dot_bytes_less_128(sums: Integers, bytes: Integers, x: Integers) -> Integers = {
        // Their sizes are unsigned bytes, and x takes their signs.
        let signed = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
        plus_pairs(sums, _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed)))
    };
    /// sums + in each half of a lane the products of its two bytes, which are below 128, with the signed ones of x.
    dot_pairs(sums: Integers, bytes: Integers, x: Integers) -> Integers =
        _mm256_add_epi16(sums, _mm256_maddubs_epi16(bytes, x));
    /// sums + in each lane both halves of one of pairs.
    plus_pairs(sums: Integers, pairs: Integers) -> Integers =
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
