//! Rotary position embedding in the half-split form (Su et al., "RoFormer", as Llama applies it).
//!
//! The table holds `head_dim` numbers per position: the cosines of the first half, then the sines.

use crate::element::Element;
use crate::math::mul_add;
use crate::threads::{Shared, Threads};

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

/// Rotates the first `heads` heads of every row of `rows` in place, each row by the angles of its position: those
/// whose queries and keys are normalized behind their rotation. O(rows * heads * head_dim).
///
/// `table` is \[positions, head_dim\]. Rounds once, at the end.
///
/// # Errors
/// The first position that the table lacks.
///
/// # Panics
/// The slices do not have as many whole rows as there are positions, or a row has fewer heads.
pub fn rotate_rows<T: Element>(
    threads: &Threads,
    rows: &mut [T],
    positions: &[i32],
    table: &[f32],
    head_dim: usize,
    heads: usize,
) -> Result<(), i32> {
    let width = rows.len() / positions.len().max(1);
    assert!(rows.len() == width * positions.len() && heads * head_dim <= width, "whole rows");
    let limit = table.len() / head_dim;
    let inside = |&position: &i32| usize::try_from(position).is_ok_and(|position| position < limit);
    if let Some(&outside) = positions.iter().find(|position| !inside(position)) {
        return Err(outside);
    }
    let operations = positions.len() * heads * head_dim;
    let rows = Shared::new(rows);
    threads.share(positions.len(), operations, |row| {
        // SAFETY: each row is one piece.
        let queries_and_keys = unsafe { rows.part(row * width, heads * head_dim) };
        let angles = &table[positions[row] as usize * head_dim..][..head_dim];
        rotate_heads(queries_and_keys, angles);
    });
    Ok(())
}

#[inline(always)]
fn rotate_heads_body<T: Element, const FMA: bool>(heads: &mut [T], angles: &[f32]) {
    let half = angles.len() / 2;
    let (cosines, sines) = angles.split_at(half);
    for head in heads.chunks_exact_mut(2 * half) {
        let (low, high) = head.split_at_mut(half);
        for i in 0..half {
            let (a, b) = (low[i].to_f32(), high[i].to_f32());
            low[i] = T::from_f32(mul_add::<FMA>(a, cosines[i], -(b * sines[i])));
            high[i] = T::from_f32(mul_add::<FMA>(b, cosines[i], a * sines[i]));
        }
    }
}

crate::multiversion!(
    fn rotate_heads<T: Element>(heads: &mut [T], angles: &[f32]) = rotate_heads_body
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_turn_by_their_positions() {
        let threads = Threads::new(2).unwrap();
        let table = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0];
        let row = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let mut rows = [row, row].concat();
        rotate_rows(&threads, &mut rows, &[1, 0], &table, 4, 1).unwrap();
        assert_eq!(rows[..8], [-3.0, 2.0, 1.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(rows[8..], row);
        assert_eq!(rotate_rows(&threads, &mut rows, &[0, 2], &table, 4, 1), Err(2));
        assert_eq!(rotate_rows(&threads, &mut rows, &[-1, 0], &table, 4, 1), Err(-1));
    }

    #[test]
    fn a_quarter_turn() {
        let mut out = [0.0; 4];
        rotate::<f32, false>(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 1.0, 0.0], 2.0, &mut out);
        assert_eq!(out, [-6.0, 4.0, 2.0, 8.0]);
    }
}
