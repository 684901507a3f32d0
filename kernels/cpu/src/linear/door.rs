//! Rows on their way into a linear layer: as its kernels take them, copied only if they must be.

use std::cell::RefCell;

use half::bf16;

use crate::element::{Element, Rows};
use crate::threads::{Shared, Threads};

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static HALVES: RefCell<Vec<bf16>> = const { RefCell::new(Vec::new()) };
}

/// Elements that a thread widens at a time.
const PIECE: usize = 1 << 14;

/// Calls `then` with `x`, rows of `inputs`, in float32 and `stride` apart, the gaps zero.
pub fn floats(threads: &Threads, x: Rows<'_>, inputs: usize, stride: usize, then: impl FnOnce(&[f32])) {
    match x {
        Rows::Floats(x) if inputs == stride => then(x),
        Rows::Floats(x) => FLOATS.with_borrow_mut(|scratch| {
            pad(x, inputs, stride, scratch);
            then(scratch);
        }),
        Rows::Halves(x) => FLOATS.with_borrow_mut(|scratch| {
            // Every element is written below, but for the gaps.
            scratch.resize(x.len() / inputs.max(1) * stride, 0.0);
            if inputs == stride {
                let shared = Shared::new(scratch);
                threads.share(x.len().div_ceil(PIECE), x.len(), |piece| {
                    let from = &x[piece * PIECE..x.len().min((piece + 1) * PIECE)];
                    // SAFETY: pieces do not overlap.
                    widen(from, unsafe { shared.part(piece * PIECE, from.len()) });
                });
            } else {
                for (from, to) in x.chunks_exact(inputs).zip(scratch.chunks_exact_mut(stride)) {
                    widen(from, &mut to[..inputs]);
                    to[inputs..].fill(0.0);
                }
            }
            then(scratch);
        }),
    }
}

/// The same in bfloat16.
pub fn halves(x: &[bf16], inputs: usize, stride: usize, then: impl FnOnce(&[bf16])) {
    if inputs == stride {
        return then(x);
    }
    HALVES.with_borrow_mut(|scratch| {
        pad(x, inputs, stride, scratch);
        then(scratch);
    });
}

/// Copies rows of `inputs` to rows of `stride`.
fn pad<T: Element>(x: &[T], inputs: usize, stride: usize, to: &mut Vec<T>) {
    to.clear();
    for row in x.chunks_exact(inputs.max(1)) {
        to.extend_from_slice(row);
        to.resize(to.len() + stride - inputs, T::ZERO);
    }
}

#[inline(always)]
fn widen_body<const FMA: bool>(from: &[bf16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

crate::multiversion!(fn widen(from: &[bf16], to: &mut [f32]) = widen_body);
