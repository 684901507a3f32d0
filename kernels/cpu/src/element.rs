//! The element types of weights, activations and KV cache; all arithmetic is in f32.

use half::bf16;

/// A stored number. `to_f32` is exact; `from_f32` rounds to nearest even.
pub trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// The number as f32.
    fn to_f32(self) -> f32;
    /// The nearest number of this type.
    fn from_f32(value: f32) -> Self;
    /// Rows of this type, as kernels tell them apart.
    fn rows(of: &[Self]) -> Rows<'_>;
}

/// Rows of numbers of either type.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// float32.
    Floats(&'a [f32]),
    /// bfloat16.
    Halves(&'a [bf16]),
}

impl Rows<'_> {
    /// Elements of all rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Floats(of) => of.len(),
            Self::Halves(of) => of.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn rows(of: &[Self]) -> Rows<'_> {
        Rows::Floats(of)
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        // Not `half`'s own: this has no branch for NaN, so that loops over it become vectors.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded } as u16)
    }

    fn rows(of: &[Self]) -> Rows<'_> {
        Rows::Halves(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_agrees_with_half() {
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            let value = f32::from_bits(bits);
            let ours = <bf16 as Element>::from_f32(value);
            let theirs = bf16::from_f32(value);
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{value}");
            assert!(ours.is_nan() || Element::to_f32(ours) == theirs.to_f32());
        }
    }
}
