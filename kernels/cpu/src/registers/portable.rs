//! Arrays that the compiler keeps in what registers there are.

use crate::element::Element;
use crate::math;

/// Floats in a register.
pub const LANES: usize = 8;
/// One instruction where the target says so; elsewhere a product and a sum.
const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
/// A register.
pub type Floats = [f32; LANES];
/// A register of 32-bit integers.
pub type Integers = [i32; LANES];

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
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn load(from: *const f32) -> Floats {
    // SAFETY: as the caller says.
    unsafe { from.cast::<Floats>().read() }
}

/// # Safety
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn store(to: *mut f32, values: Floats) {
    // SAFETY: as the caller says.
    unsafe { to.cast::<Floats>().write(values) }
}

/// bfloat16 numbers.
///
/// # Safety
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn widen(from: *const u16) -> Floats {
    // SAFETY: as the caller says.
    unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(|half| f32::from_bits(u32::from(half) << 16))
}

/// a * b.
#[inline(always)]
pub fn times(a: Floats, b: Floats) -> Floats {
    std::array::from_fn(|at| a[at] * b[at])
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
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn load_stored<T: Element>(from: *const T) -> Floats {
    // SAFETY: as the caller says; the two types of elements differ in their size.
    unsafe { if size_of::<T>() == 2 { widen(from.cast()) } else { load(from.cast()) } }
}

/// An integer in every lane.
#[inline(always)]
pub fn splat_integer(value: i32) -> Integers {
    [value; LANES]
}

/// # Safety
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn load_words(from: *const u32) -> Integers {
    // SAFETY: as the caller says.
    unsafe { from.cast::<Integers>().read() }
}

/// The nearest floats.
#[inline(always)]
pub fn to_floats(integers: Integers) -> Floats {
    integers.map(|integer| integer as f32)
}

/// bfloat16 numbers in the low halves of words.
#[inline(always)]
pub fn widen_low(pairs: Integers) -> Floats {
    pairs.map(|pair| f32::from_bits((pair as u32) << 16))
}

/// The bfloat16 numbers in the high halves.
#[inline(always)]
pub fn widen_high(pairs: Integers) -> Floats {
    pairs.map(|pair| f32::from_bits(pair as u32 & 0xffff_0000))
}

/// The low 4 bits of every byte.
#[inline(always)]
pub fn low_halves(bytes: Integers) -> Integers {
    bytes.map(|bytes| bytes & 0x0f0f_0f0f)
}

/// The high ones.
#[inline(always)]
pub fn high_halves(bytes: Integers) -> Integers {
    bytes.map(|bytes| bytes >> 4 & 0x0f0f_0f0f)
}

/// For every byte, which is below 16, that of the table.
#[inline(always)]
pub fn looked_up(table: &[u8; 16], bytes: Integers) -> Integers {
    bytes.map(|bytes| i32::from_le_bytes(bytes.to_le_bytes().map(|byte| table[usize::from(byte & 15)])))
}

/// [`math::half_power`].
///
/// # Safety
/// The pointer has a register of them.
#[inline(always)]
pub unsafe fn load_half_powers(from: *const u8) -> Floats {
    // SAFETY: as the caller says.
    unsafe { from.cast::<[u8; LANES]>().read() }.map(math::half_power)
}

/// sums + in each lane the products of its four unsigned bytes with the signed ones of x.
#[inline(always)]
pub fn dot_bytes(sums: Integers, bytes: Integers, x: Integers) -> Integers {
    std::array::from_fn(|at| {
        let products = bytes[at].to_le_bytes().into_iter().zip(x[at].to_le_bytes());
        products.fold(sums[at], |sum, (byte, x)| sum + i32::from(byte) * i32::from(x as i8))
    })
}
