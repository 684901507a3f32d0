//! Operations on registers of floats, in each instruction set: what the inner loops of matrix kernels are made of.
//!
//! A kernel is written once, as a macro over these names, and stands in a module for each set that it is written for.
//! The operations are the same everywhere, but for the number of lanes; [`portable`] fuses where the target does.

/// Arrays that the compiler keeps in what registers there are.
pub mod portable {
    use crate::element::Element;
    use crate::math;

    /// Floats in a register.
    pub const LANES: usize = 8;
    /// One instruction where the target says so; elsewhere a product and a sum.
    const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
    /// A register.
    pub type Floats = [f32; LANES];

    /// Zeros.
    #[inline(always)]
    pub fn zero() -> Floats {
        [0.0; LANES]
    }

    /// A number in every lane.
    #[inline(always)]
    pub fn splat(value: f32) -> Floats {
        [value; LANES]
    }

    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub unsafe fn load(from: *const f32) -> Floats {
        // SAFETY: as the caller says.
        unsafe { from.cast::<Floats>().read() }
    }

    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub unsafe fn store(to: *mut f32, values: Floats) {
        // SAFETY: as the caller says.
        unsafe { to.cast::<Floats>().write(values) }
    }

    /// bfloat16 numbers.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub unsafe fn widen(from: *const u16) -> Floats {
        // SAFETY: as the caller says.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }
            .map(|half| f32::from_bits(u32::from(half) << 16))
    }

    /// a * b + c.
    #[inline(always)]
    pub fn fused(a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|at| math::mul_add::<FUSED>(a[at], b[at], c[at]))
    }

    /// a + b.
    #[inline(always)]
    pub fn plus(a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|at| a[at] + b[at])
    }

    /// a - b.
    #[inline(always)]
    pub fn minus(a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|at| a[at] - b[at])
    }

    /// The larger, and b where there is a NaN.
    #[inline(always)]
    pub fn larger(a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|at| if a[at] > b[at] { a[at] } else { b[at] })
    }

    /// [`math::exp`].
    #[inline(always)]
    pub fn exp(x: Floats) -> Floats {
        x.map(math::exp::<FUSED>)
    }

    /// Numbers of either type.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
        // SAFETY: as the caller says; the two types of elements differ in their size.
        unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
    }
}

/// 16 registers of 8 lanes.
#[cfg(target_arch = "x86_64")]
pub mod avx2 {
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
        /// Zeros.
        no_integers() -> Integers = _mm256_setzero_si256();
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
        /// There are so many.
        load(from: *const f32) -> Floats = _mm256_loadu_ps(from);
        /// # Safety
        /// There are so many.
        store(to: *mut f32, values: Floats) -> () = _mm256_storeu_ps(to, values);
        /// The low bytes.
        ///
        /// # Safety
        /// There are so many.
        store_bytes(to: *mut i8, values: Integers) -> () = {
            let lows = _mm256_set1_epi32(0x0c08_0400);
            let packed = _mm256_shuffle_epi8(values, lows);
            to.cast::<i32>().write_unaligned(_mm256_extract_epi32::<0>(packed));
            to.cast::<i32>().add(1).write_unaligned(_mm256_extract_epi32::<4>(packed));
        };
        /// bfloat16 numbers.
        ///
        /// # Safety
        /// There are so many.
        widen(from: *const u16) -> Floats = {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        };
    }

    /// Numbers of either type.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
        // SAFETY: as the caller says; the two types of elements differ in their size.
        unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
    }
}

/// 32 registers of 16 lanes.
#[cfg(target_arch = "x86_64")]
pub mod avx512 {
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
        /// Zeros.
        no_integers() -> Integers = _mm512_setzero_si512();
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
        /// There are so many.
        load(from: *const f32) -> Floats = _mm512_loadu_ps(from);
        /// # Safety
        /// There are so many.
        store(to: *mut f32, values: Floats) -> () = _mm512_storeu_ps(to, values);
        /// The low bytes.
        ///
        /// # Safety
        /// There are so many.
        store_bytes(to: *mut i8, values: Integers) -> () = _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(values));
        /// bfloat16 numbers.
        ///
        /// # Safety
        /// There are so many.
        widen(from: *const u16) -> Floats = {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        };
    }

    /// Numbers of either type.
    ///
    /// # Safety
    /// There are so many.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
        // SAFETY: as the caller says; the two types of elements differ in their size.
        unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
    }
}

/// Functions with the features of an instruction set.
#[macro_export]
#[doc(hidden)]
macro_rules! operations {
    ($features:literal; $($(#[$meta:meta])* $name:ident($($arg:ident: $type:ty),*) -> $output:ty = $body:expr;)*) => {
        $(
            $(#[$meta])*
            #[target_feature(enable = $features)]
            #[inline]
            pub fn $name($($arg: $type),*) -> $output {
                $body
            }
        )*
    };
    ($features:literal, unsafe;
     $($(#[$meta:meta])* $name:ident($($arg:ident: $type:ty),*) -> $output:ty = $body:expr;)*) => {
        $(
            $(#[$meta])*
            #[target_feature(enable = $features)]
            #[inline]
            pub unsafe fn $name($($arg: $type),*) -> $output {
                // SAFETY: as the caller says.
                unsafe { $body }
            }
        )*
    };
}

/// The polynomial of [`crate::math::exp`], and the number whose low bits are the power of two that it is to be
/// multiplied with.
#[macro_export]
#[doc(hidden)]
macro_rules! exp_steps {
    ($x:ident, $splat:ident, $fused:ident, $plus:ident, $minus:ident, $times:ident, $larger:ident) => {{
        let round = $splat(12_582_912.0);
        let x = $larger($x, $splat(-87.3));
        let shifted = $fused(x, $splat(std::f32::consts::LOG2_E), round);
        let n = $minus(shifted, round);
        let r = $fused(n, $splat(-0.693_359_4), x);
        let r = $fused(n, $splat(2.121_944_4e-4), r);
        let mut p = $fused($splat(1.987_569_1e-4), r, $splat(1.398_2e-3));
        p = $fused(p, r, $splat(8.333_452e-3));
        p = $fused(p, r, $splat(4.166_579_6e-2));
        p = $fused(p, r, $splat(1.666_666_5e-1));
        p = $fused(p, r, $splat(0.5));
        ($plus($fused(p, $times(r, r), r), $splat(1.0)), shifted)
    }};
}

#[cfg(test)]
mod tests {
    /// Numbers below 0, the ends and what is none.
    fn numbers() -> Vec<f32> {
        let mut numbers: Vec<f32> = (0..8_000).map(|step| -0.011 * step as f32).collect();
        numbers.extend([f32::NEG_INFINITY, f32::NAN, -1e30, -87.3, -90.0, -0.0, -87.299_995, -1e-20]);
        numbers
    }

    macro_rules! exp_is_that_of_math {
        ($module:ident, $fused:literal, $($feature:meta)?) => {
            $(#[$feature])?
            fn check() {
                use crate::registers::$module::*;
                for x in numbers().chunks_exact(LANES) {
                    let mut found = [0.0; LANES];
                    #[allow(unused_unsafe, reason = "portable operations are safe to call")]
                    // SAFETY: there are so many.
                    unsafe { store(found.as_mut_ptr(), exp(load(x.as_ptr()))) };
                    for (x, found) in x.iter().zip(found) {
                        assert_eq!(found.to_bits(), crate::math::exp::<$fused>(*x).to_bits(), "{x}");
                    }
                }
            }
        };
    }

    #[test]
    fn exp_has_the_same_bits_in_every_instruction_set() {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::isa::InstructionSet;
            exp_is_that_of_math!(avx2, true, target_feature(enable = "avx2,fma"));
            if InstructionSet::Avx2.runs_here() {
                // SAFETY: it does.
                unsafe { check() };
            }
            mod wide {
                use super::numbers;
                exp_is_that_of_math!(avx512, true, target_feature(enable = "avx512f"));
                pub fn run() {
                    // SAFETY: its caller has looked.
                    unsafe { check() };
                }
            }
            if InstructionSet::Avx512.runs_here() {
                wide::run();
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            exp_is_that_of_math!(portable, true,);
            check();
        }
    }
}
