//! Rotary position embedding in the half-split form (Su et al., "RoFormer", as Llama applies it).
//!
//! The table holds `head_dim` numbers per position: the cosines of the first half, then the sines.

use crate::element::Element;
use crate::math::mul_add;

/// Writes `scale` times the rotated `head` (one head of one token) to `out`; O(head_dim).
#[inline(always)]
pub fn rotate<T: Element, const FMA: bool>(head: &[T], angles: &[f32], scale: f32, out: &mut [f32]) {
    let half = head.len() / 2;
    let (cosines, sines) = angles[..2 * half].split_at(half);
    let (low, high) = head.split_at(half);
    let (out_low, out_high) = out[..2 * half].split_at_mut(half);
    for i in 0..half {
        let (a, b) = (low[i].to_f32(), high[i].to_f32());
        out_low[i] = mul_add::<FMA>(a, cosines[i], -(b * sines[i])) * scale;
        out_high[i] = mul_add::<FMA>(b, cosines[i], a * sines[i]) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn() {
        let mut out = [0.0; 4];
        rotate::<f32, false>(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 1.0, 0.0], 2.0, &mut out);
        assert_eq!(out, [-6.0, 4.0, 2.0, 8.0]);
    }
}
