//! Tiles of a product with quantized weights, in each instruction set.
//!
//! ```text
//!  for each group   integer sums = offset of the row
//!                   for each line: four products of bytes at a time (VNNI), or their two steps (AVX2)
//!                   sum = fused(integer sum, scale of the output * scale of the row, sum)
//!                   sum = fused(minimum, minus the weighted sum of the row, sum)    if there are minimums
//! ```
//!
//! Integer sums are exact and float32 sums go group by group, so results are the same bits in every instruction set.

#![allow(
    clippy::needless_range_loop,
    reason = "indices make loops that even builds without LTO keep in registers"
)]

use std::ops::Range;

use super::activations::Activations;
use super::packed::{DOUBLED, Packed, SMALLEST_POWER, half_power};
use super::panels::{Line, WIDTH};
use crate::isa::InstructionSet;

/// [`DOUBLED`] in two words.
#[cfg(target_arch = "x86_64")]
const DOUBLED_HALVES: [i64; 2] = {
    let mut words = [0u64; 2];
    let mut code = DOUBLED.len();
    while code > 0 {
        code -= 1;
        words[code / 8] = words[code / 8] << 8 | DOUBLED[code] as u64;
    }
    [words[0] as i64, words[1] as i64]
};

/// Some rows of activations, and a panel of weights.
#[derive(Debug, Clone)]
pub struct Tile<'a> {
    /// The weights.
    pub packed: &'a Packed,
    /// The panel.
    pub panel: usize,
    /// The rows.
    pub x: &'a Activations,
    /// The first row.
    pub row: usize,
    /// Groups that will be wanted next, of all panels' one behind the other: the memory is asked for their lines.
    pub ahead: Range<usize>,
}

impl Tile<'_> {
    /// Kernels read without further checks.
    fn check(&self, rows: usize, scales: usize) {
        let Packed { lines, minimums, group, groups, .. } = self.packed;
        let (panels, end) = (self.panel + 1, self.row + rows);
        assert!(panels * self.packed.per_panel() <= lines.len() && panels * groups <= scales, "a panel");
        assert!(minimums.is_empty() || panels * groups <= minimums.len(), "minimums of a panel");
        let Activations { values, scales, offsets, weights } = self.x;
        assert!(end * groups * group <= values.len() && end * groups <= scales.len(), "rows of activations");
        assert!(end * groups <= offsets.len() && end * groups <= weights.len(), "rows of activations");
    }
}

/// Adds a tile's products to the sums of its rows.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Most rows of a tile.
    pub most_rows: usize,
    /// What it subtracts from every value by itself.
    pub zero: i32,
    /// Adds, for as many rows as there are sums.
    pub add: fn(Tile<'_>, &mut [Line<f32>]),
}

/// The kernel of an instruction set for the values of `packed`.
pub fn kernel(set: InstructionSet, packed: &Packed) -> Kernel {
    macro_rules! of {
        ($module:ident, $zero:literal) => {
            match packed.bits {
                4 if packed.is_microscaled() => {
                    Kernel { most_rows: $module::ROWS, zero: 0, add: $module::microscaled }
                }
                4 => Kernel { most_rows: $module::ROWS, zero: 0, add: $module::halves },
                _ => Kernel { most_rows: $module::ROWS, zero: $zero, add: $module::bytes },
            }
        };
    }
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Vnni | InstructionSet::Avx512Bf16 => of!(avx512_vnni, 0),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::AvxVnni => of!(avx_vnni, 0),
        // Without VNNI AVX-512 would gain little.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx512 => of!(avx2, 128),
        _ => of!(portable, 0),
    }
}

/// One kernel: `$step` adds one line of weights to the integer sums; `$load` reads scales of the type `$scale` from
/// the packed weights' `$scales`.
macro_rules! kernel {
    ($name:ident, $tile:ident, $inputs:literal, $scales:ident: $scale:ident by $load:ident, [$($feature:meta)?], { $($rows:literal => $registers:literal),* },
     |$line:ident, $x:ident, $stride:ident, $sums:ident| $step:block) => {
        pub fn $name(tile: Tile<'_>, sums: &mut [Line<f32>]) {
            tile.check(sums.len(), tile.packed.$scales.len());
            #[allow(unused_unsafe, reason = "portable kernels are safe to call")]
            // SAFETY: this kernel is chosen where the processor has these instructions.
            unsafe {
                match sums.len() {
                    $($rows => $tile::<$rows, $registers>(tile, sums),)*
                    _ => unreachable!("a tile has at most {ROWS} rows"),
                }
            }
        }

        $(#[$feature])?
        fn $tile<const R: usize, const V: usize>(tile: Tile<'_>, out: &mut [Line<f32>]) {
            let Tile { packed, panel, x: rows, row: first, ahead } = tile;
            let (group, groups) = (packed.group, packed.groups);
            let per_group = group / $inputs;
            let parts = WIDTH / (V * LANES);
            let lines_ahead = ahead.start * per_group..ahead.end * per_group;
            let mut lines_ahead = crate::math::Ahead::within(parts * groups, packed.lines.get(lines_ahead).unwrap_or(&[]));
            let mut scales_ahead = crate::math::Ahead::within(parts * groups, packed.$scales.get(ahead).unwrap_or(&[]));
            let $stride = groups * group;
            // SAFETY: a panel of lines, scales and minimums and so many rows of activations are there, as was
            // checked; from `lane` on, a line has `V` registers.
            unsafe {
                let lines = packed.lines.as_ptr().add(panel * groups * per_group).cast::<u32>();
                let scales = packed.$scales.as_ptr().add(panel * groups).cast::<$scale>();
                let minimums = match packed.minimums.is_empty() {
                    true => None,
                    false => Some(packed.minimums.as_ptr().add(panel * groups).cast::<f32>()),
                };
                let values = rows.values.as_ptr().add(first * $stride);
                for part in 0..parts {
                    let lane = part * V * LANES;
                    let mut totals = [[zero(); V]; R];
                    for row in 0..R {
                        for at in 0..V {
                            totals[row][at] = load(out[row].0.as_ptr().add(lane + at * LANES));
                        }
                    }
                    for index in 0..groups {
                        // Tiles of fewer rows come alone, and ask for nothing.
                        if 2 * R >= ROWS {
                            lines_ahead.ask();
                            scales_ahead.ask();
                        }
                        let mut $sums = [[splat_integer(0); V]; R];
                        for row in 0..R {
                            let offset = *rows.offsets.as_ptr().add((first + row) * groups + index);
                            $sums[row] = [splat_integer(offset); V];
                        }
                        for at in 0..per_group {
                            let $line = lines.add((index * per_group + at) * WIDTH + lane);
                            let $x = values.add(index * group + at * $inputs);
                            $step
                        }
                        for row in 0..R {
                            let place = (first + row) * groups + index;
                            let of_row = splat(*rows.scales.as_ptr().add(place));
                            for at in 0..V {
                                let of_output = $load(scales.add(index * WIDTH + lane + at * LANES));
                                let factor = times(of_output, of_row);
                                totals[row][at] = fused(floats($sums[row][at]), factor, totals[row][at]);
                            }
                        }
                        if let Some(minimums) = minimums {
                            for row in 0..R {
                                let place = (first + row) * groups + index;
                                let weight = splat(*rows.weights.as_ptr().add(place));
                                for at in 0..V {
                                    let minimum = load(minimums.add(index * WIDTH + lane + at * LANES));
                                    totals[row][at] = fused(minimum, weight, totals[row][at]);
                                }
                            }
                        }
                    }
                    for row in 0..R {
                        for at in 0..V {
                            store(out[row].0.as_mut_ptr().add(lane + at * LANES), totals[row][at]);
                        }
                    }
                }
            }
        }
    };
}

/// A kernel of values of 4 bits, of which `$decode` makes bytes.
macro_rules! half_kernel {
    ($name:ident, $tile:ident, $scales:ident: $scale:ident by $load:ident, $decode:ident, $features:tt, $tiles:tt) => {
        kernel!($name, $tile, 8, $scales: $scale by $load, $features, $tiles, |line, x, stride, sums| {
            let mut weights = [splat_integer(0); V];
            for at in 0..V {
                weights[at] = load_integers(line.add(at * LANES));
            }
            for half in 0..2 {
                let mut values = [splat_integer(0); V];
                for at in 0..V {
                    values[at] = $decode(if half == 0 { low(weights[at]) } else { high(weights[at]) });
                }
                for row in 0..R {
                    let x = splat_integer(x.add(row * stride + half * 4).cast::<i32>().read_unaligned());
                    for at in 0..V {
                        sums[row][at] = dot_halves(sums[row][at], values[at], x);
                    }
                }
            }
        });
    };
}

/// The kernels of one instruction set, from its operations on registers: for each number of rows how many registers
/// of a line are summed at once.
macro_rules! kernels {
    ([$($feature:meta)?], $most:literal, { $($rows:literal => $registers:literal),* $(,)? }) => {
        /// Most rows of a tile.
        pub const ROWS: usize = $most;

        kernel!(bytes, bytes_tile, 4, scales: f32 by load, [$($feature)?], { $($rows => $registers),* }, |line, x, stride, sums| {
            let mut weights = [splat_integer(0); V];
            for at in 0..V {
                weights[at] = load_integers(line.add(at * LANES));
            }
            for row in 0..R {
                let x = splat_integer(x.add(row * stride).cast::<i32>().read_unaligned());
                for at in 0..V {
                    sums[row][at] = dot_bytes(sums[row][at], weights[at], x);
                }
            }
        });

        half_kernel!(halves, halves_tile, scales: f32 by load, integers, [$($feature)?], { $($rows => $registers),* });

        half_kernel!(microscaled, microscaled_tile, exponents: u8 by load_half_powers, doubled, [$($feature)?],
                     { $($rows => $registers),* });
    };
}

/// An operation of an instruction set.
macro_rules! operations {
    ($features:literal; $($name:ident($($arg:ident: $type:ty),*) -> $output:ty = $body:expr;)*) => {
        $(
            #[target_feature(enable = $features)]
            #[inline]
            fn $name($($arg: $type),*) -> $output {
                $body
            }
        )*
    };
    ($features:literal, unsafe; $($name:ident($($arg:ident: $type:ty),*) $(-> $output:ty)? = $body:expr;)*) => {
        $(
            #[target_feature(enable = $features)]
            #[inline]
            unsafe fn $name($($arg: $type),*) $(-> $output)? {
                // SAFETY: as the caller says.
                unsafe { $body }
            }
        )*
    };
}

mod portable {
    use super::{DOUBLED, Line, Tile, WIDTH, half_power};

    const LANES: usize = 8;
    type Floats = [f32; LANES];
    type Integers = [i32; LANES];

    #[inline(always)]
    fn zero() -> Floats {
        [0.0; LANES]
    }

    #[inline(always)]
    fn splat(value: f32) -> Floats {
        [value; LANES]
    }

    #[inline(always)]
    fn splat_integer(value: i32) -> Integers {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Floats {
        // SAFETY: as the caller says.
        unsafe { from.cast::<Floats>().read() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: Floats) {
        // SAFETY: as the caller says.
        unsafe { to.cast::<Floats>().write(values) }
    }

    #[inline(always)]
    unsafe fn load_integers(from: *const u32) -> Integers {
        // SAFETY: as the caller says.
        unsafe { from.cast::<Integers>().read() }
    }

    #[inline(always)]
    fn times(a: Floats, b: Floats) -> Floats {
        std::array::from_fn(|at| a[at] * b[at])
    }

    /// Rounded once, as everywhere: one call for a group.
    #[inline(always)]
    fn fused(a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|at| a[at].mul_add(b[at], c[at]))
    }

    #[inline(always)]
    fn floats(integers: Integers) -> Floats {
        integers.map(|integer| integer as f32)
    }

    #[inline(always)]
    fn low(values: Integers) -> Integers {
        values.map(|value| value & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn high(values: Integers) -> Integers {
        values.map(|value| value >> 4 & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn integers(values: Integers) -> Integers {
        values
    }

    #[inline(always)]
    fn doubled(codes: Integers) -> Integers {
        codes.map(|codes| i32::from_le_bytes(codes.to_le_bytes().map(|code| DOUBLED[usize::from(code & 15)])))
    }

    #[inline(always)]
    unsafe fn load_half_powers(from: *const u8) -> Floats {
        // SAFETY: as the caller says.
        unsafe { from.cast::<[u8; LANES]>().read() }.map(half_power)
    }

    #[inline(always)]
    fn dot_bytes(sums: Integers, values: Integers, x: Integers) -> Integers {
        std::array::from_fn(|at| {
            let products = values[at].to_le_bytes().into_iter().zip(x[at].to_le_bytes());
            products.fold(sums[at], |sum, (value, x)| sum + i32::from(value) * i32::from(x as i8))
        })
    }

    use dot_bytes as dot_halves;

    kernels!([], 2, { 1 => 1, 2 => 1 });
}

/// Operations that all sets with registers of 8 lanes share.
macro_rules! eight_lanes {
    ($features:literal) => {
        use super::{DOUBLED_HALVES, Line, SMALLEST_POWER, Tile, WIDTH};
        use std::arch::x86_64::*;

        const LANES: usize = 8;
        type Floats = __m256;
        type Integers = __m256i;

        operations! { $features;
            zero() -> Floats = _mm256_setzero_ps();
            splat(value: f32) -> Floats = _mm256_set1_ps(value);
            splat_integer(value: i32) -> Integers = _mm256_set1_epi32(value);
            times(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
            fused(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fmadd_ps(a, b, c);
            floats(integers: Integers) -> Floats = _mm256_cvtepi32_ps(integers);
            low(values: Integers) -> Integers = _mm256_and_si256(values, _mm256_set1_epi8(15));
            high(values: Integers) -> Integers =
                _mm256_and_si256(_mm256_srli_epi16::<4>(values), _mm256_set1_epi8(15));
            integers(values: Integers) -> Integers = values;
            doubled(codes: Integers) -> Integers = {
                let table = _mm_set_epi64x(DOUBLED_HALVES[1], DOUBLED_HALVES[0]);
                _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
            };
            half_powers(exponents: __m128i) -> Floats = {
                let powers = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(exponents));
                let powers = _mm256_max_epi32(powers, _mm256_set1_epi32(SMALLEST_POWER as i32));
                _mm256_mul_ps(_mm256_castsi256_ps(powers), _mm256_set1_ps(0.5))
            };
        }

        operations! { $features, unsafe;
            load(from: *const f32) -> Floats = _mm256_loadu_ps(from);
            store(to: *mut f32, values: Floats) = _mm256_storeu_ps(to, values);
            load_integers(from: *const u32) -> Integers = _mm256_loadu_si256(from.cast());
            load_half_powers(from: *const u8) -> Floats = half_powers(_mm_loadl_epi64(from.cast()));
        }
    };
}

/// Products of bytes in two steps, by way of 16 bits, which two products of 128 * 127 do not overflow.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    eight_lanes!("avx2,fma");

    operations! { "avx2,fma";
        dot_bytes(sums: Integers, values: Integers, x: Integers) -> Integers = {
            // Values are moved down by 128: their sizes are unsigned bytes again, and x takes their signs.
            let signed = _mm256_xor_si256(values, _mm256_set1_epi8(-128));
            dot_halves(sums, _mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
        };
        dot_halves(sums: Integers, values: Integers, x: Integers) -> Integers = {
            let pairs = _mm256_maddubs_epi16(values, x);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        };
    }

    kernels!([target_feature(enable = "avx2,fma")], 4, { 1 => 4, 2 => 2, 3 => 1, 4 => 1 });
}

#[cfg(target_arch = "x86_64")]
mod avx_vnni {
    eight_lanes!("avx2,fma,avxvnni");

    operations! { "avx2,fma,avxvnni";
        dot_bytes(sums: Integers, values: Integers, x: Integers) -> Integers =
            _mm256_dpbusd_avx_epi32(sums, values, x);
    }

    use dot_bytes as dot_halves;

    kernels!([target_feature(enable = "avx2,fma,avxvnni")], 4, { 1 => 4, 2 => 2, 3 => 1, 4 => 1 });
}

#[cfg(target_arch = "x86_64")]
mod avx512_vnni {
    use super::{DOUBLED_HALVES, Line, SMALLEST_POWER, Tile, WIDTH};
    use std::arch::x86_64::*;

    const LANES: usize = 16;
    type Floats = __m512;
    type Integers = __m512i;

    operations! { "avx512f,avx512bw,avx512vnni";
        zero() -> Floats = _mm512_setzero_ps();
        splat(value: f32) -> Floats = _mm512_set1_ps(value);
        splat_integer(value: i32) -> Integers = _mm512_set1_epi32(value);
        times(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
        fused(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fmadd_ps(a, b, c);
        floats(integers: Integers) -> Floats = _mm512_cvtepi32_ps(integers);
        low(values: Integers) -> Integers = _mm512_and_si512(values, _mm512_set1_epi8(15));
        high(values: Integers) -> Integers =
            _mm512_and_si512(_mm512_srli_epi16::<4>(values), _mm512_set1_epi8(15));
        integers(values: Integers) -> Integers = values;
        doubled(codes: Integers) -> Integers = {
            let table = _mm_set_epi64x(DOUBLED_HALVES[1], DOUBLED_HALVES[0]);
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
        };
        half_powers(exponents: __m128i) -> Floats = {
            let powers = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(exponents));
            let powers = _mm512_max_epi32(powers, _mm512_set1_epi32(SMALLEST_POWER as i32));
            _mm512_mul_ps(_mm512_castsi512_ps(powers), _mm512_set1_ps(0.5))
        };
        dot_bytes(sums: Integers, values: Integers, x: Integers) -> Integers =
            _mm512_dpbusd_epi32(sums, values, x);
    }

    operations! { "avx512f,avx512bw,avx512vnni", unsafe;
        load(from: *const f32) -> Floats = _mm512_loadu_ps(from);
        store(to: *mut f32, values: Floats) = _mm512_storeu_ps(to, values);
        load_integers(from: *const u32) -> Integers = _mm512_loadu_si512(from.cast());
        load_half_powers(from: *const u8) -> Floats = half_powers(_mm_loadu_si128(from.cast()));
    }

    use dot_bytes as dot_halves;

    kernels!([target_feature(enable = "avx512f,avx512bw,avx512vnni")], 6,
             { 1 => 4, 2 => 4, 3 => 4, 4 => 2, 5 => 2, 6 => 2 });
}
