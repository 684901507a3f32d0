//! Arithmetic that compiles to vectors, and the choice of instruction set.
//!
//! A kernel is written once as an `#[inline(always)]` function with `const FMA: bool`; `multiversion!`
//! compiles it again for AVX2 with FMA and for AVX-512, with the same bits, and picks at run time.

/// Whether the processor has AVX2 and FMA. The answer is cached by the standard library.
#[inline]
pub fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether the processor has AVX-512 F, BW, DQ and VL too. The answer is cached as well.
#[inline]
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has_fma() && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// `a * b + c`; fused where that is one instruction, and two instead of a library call elsewhere.
#[inline(always)]
pub fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x <= 0, within 2 units in the last place; 0 below -87.3, where f32 gets subnormal.
///
/// Range reduction by ln 2 in two parts, then the polynomial of degree 5 for e^r on
/// [-ln2/2, ln2/2] of Cephes' `expf` (S. L. Moshier). NaN gives 0.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the integer in the low bits
    let x0 = if x > -87.3 { x } else { -87.3 };
    let shifted = mul_add::<FMA>(x0, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -0.693_359_4, x0);
    let r = mul_add::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = mul_add::<FMA>(1.987_569_1e-4, r, 1.398_2e-3);
    p = mul_add::<FMA>(p, r, 8.333_452e-3);
    p = mul_add::<FMA>(p, r, 4.166_579_6e-2);
    p = mul_add::<FMA>(p, r, 1.666_666_5e-1);
    p = mul_add::<FMA>(p, r, 0.5);
    p = mul_add::<FMA>(p, r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > -87.3 { p * scale } else { 0.0 }
}

/// e and r of x = 2^e * (1 + r), r between √½ - 1 and √2 - 1; of a normal x above 0.
#[inline(always)]
pub fn parts(x: f32) -> (f32, f32) {
    const HALF_SQRT: u32 = 0x3f35_04f3; // √½
    let shifted = x.to_bits().wrapping_sub(HALF_SQRT);
    (((shifted as i32) >> 23) as f32, f32::from_bits((shifted & 0x007f_ffff) + HALF_SQRT) - 1.0)
}

/// ln(2^e * (1 + r)), rounded after every operation and none fused: Cephes' `logf` (S. L. Moshier).
#[inline(always)]
pub fn ln_of_parts(e: f32, r: f32) -> f32 {
    let square = r * r;
    let mut p = 7.037_683_6e-2 * r - 1.151_461e-1;
    p = p * r + 1.167_699_9e-1;
    p = p * r - 1.242_014_1e-1;
    p = p * r + 1.424_932_3e-1;
    p = p * r - 1.666_805_8e-1;
    p = p * r + 2.000_071_5e-1;
    p = p * r - 2.499_999_4e-1;
    p = p * r + 3.333_333e-1;
    let mut y = p * r * square;
    y += e * -2.121_944_4e-4;
    y -= square * 0.5;
    (r + y) + e * 0.693_359_4
}

/// ln x of a normal x above 0, within 2 units in the last place; the same bits on every device.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (e, r) = parts(x);
    ln_of_parts(e, r)
}

/// tanh x, within 2e-7.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let shrunk = exp::<FMA>(-2.0 * x.abs());
    ((1.0 - shrunk) / (1.0 + shrunk)).copysign(x)
}

/// The bits of 2^-127, the smallest power of two that an exponent means.
pub const SMALLEST_POWER: u32 = 1 << 22;

/// Half of 2^(`exponent` - 127), for an exponent below 255.
#[inline(always)]
pub fn half_power(exponent: u8) -> f32 {
    f32::from_bits((u32::from(exponent) << 23).max(SMALLEST_POWER)) * 0.5
}

/// Asks for `slice` to be brought towards the processor, for the pages of a cache lie too far apart
/// for the hardware to foresee them. Does nothing where there is no such instruction.
#[inline(always)]
pub fn prefetch<T>(slice: &[T]) {
    for line in slice.chunks(CACHE_LINE / size_of::<T>().clamp(1, CACHE_LINE)) {
        prefetch_line(line.as_ptr());
    }
}

/// Asks for the line of the cache at an address, whatever is there.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 processor has SSE, and a prefetch changes nothing that can be seen.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Memory that will be wanted next, asked for little by little, so that it works while the processor computes.
#[derive(Debug)]
pub struct Ahead {
    next: *const u8,
    lines: usize,
    share: usize,
}

impl Ahead {
    /// All of `wanted` within `steps` calls of [`Self::ask`].
    pub fn within<T>(steps: usize, wanted: &[T]) -> Self {
        let lines = size_of_val(wanted).div_ceil(CACHE_LINE);
        Self { next: wanted.as_ptr().cast(), lines, share: lines.div_ceil(steps.max(1)) }
    }

    /// Asks for the part that is due.
    #[inline(always)]
    pub fn ask(&mut self) {
        let due = self.share.min(self.lines);
        for line in 0..due {
            prefetch_line(self.next.wrapping_add(line * CACHE_LINE));
        }
        self.next = self.next.wrapping_add(due * CACHE_LINE);
        self.lines -= due;
    }
}

/// Bytes of a line of the cache.
pub const CACHE_LINE: usize = 64;

/// Compiles `body::<.., FMA>` for all three instruction sets and calls the one that the machine runs.
///
/// `multiversion!(pub fn name<T: Bound>(args) -> Output = body);`
#[macro_export]
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$t:ident : $bound:path>)? ($($arg:ident : $ty:ty),* $(,)?)
        $(-> $output:ty)? = $body:ident) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name $(<$t: $bound>)? ($($arg: $ty),*) $(-> $output)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn with_fma $(<$t: $bound>)? ($($arg: $ty),*) $(-> $output)? {
                    $body::<$($t,)? true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
                fn with_avx512 $(<$t: $bound>)? ($($arg: $ty),*) $(-> $output)? {
                    $body::<$($t,)? true>($($arg),*)
                }
                if $crate::math::has_avx512() {
                    // SAFETY: `has_avx512` has just said that the processor runs these.
                    return unsafe { with_avx512($($arg),*) };
                }
                if $crate::math::has_fma() {
                    // SAFETY: `has_fma` has just said that the processor runs AVX2 and FMA.
                    return unsafe { with_fma($($arg),*) };
                }
            }
            $body::<$($t,)? false>($($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_exact_one() {
        for step in 0..200_000 {
            let x = -87.2 * (step as f32) / 200_000.0;
            let exact = f64::from(x).exp();
            for ours in [exp::<false>(x), exp::<true>(x)] {
                let error = (f64::from(ours) - exact).abs() / exact;
                assert!(error < 3e-7, "exp({x}) = {ours}, exactly {exact}");
            }
        }
    }

    #[test]
    fn the_ends_of_exp() {
        assert_eq!(exp::<false>(0.0), 1.0);
        for x in [f32::NEG_INFINITY, f32::NAN, -1e30, -90.0] {
            assert_eq!(exp::<false>(x), 0.0);
            assert_eq!(exp::<true>(x), 0.0);
        }
    }
}
