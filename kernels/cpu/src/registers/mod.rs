//! Operations on registers, in each instruction set: what the inner loops of matrix kernels are made of.
//!
//! A kernel is written once, as a macro over these names, and stands in a module for each set that it is written for. The
//! operations are the same everywhere, but for the number of lanes; [`portable`] fuses where the target does.
//!
//! ```text
//!  portable                 floats, words (32-bit integers), products of bytes
//!  avx2      ◄── avx_vnni   products of bytes as one instruction
//!  avx512    ◄── avx512_vnni, avx512_bf16   the same, and products of pairs of bfloat16
//! ```
//!
//! A set that stands on another takes its operations from there.

pub mod portable;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
pub mod avx512_vnni;
#[cfg(target_arch = "x86_64")]
pub mod avx_vnni;

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
                    // SAFETY: the pointer has a register of them.
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
