//! A linear layer for each head: products of a head's columns with weights of its own.
//!
//! ```text
//!  x        │ head 0 │ head 1 │ ...            [rows, heads * inputs]
//!               │        │
//!  weights  [outputs of head 0, inputs], then head 1's ...
//!               ▼        ▼
//!  out      │   head 0   │   head 1   │ ...    [rows, heads * outputs of a head]
//! ```
//!
//! A piece of work is a head and a block of rows, which one thread computes.

use super::{Linear, Out, row_block, row_blocks};
use crate::columns::Columns;
use crate::element::Element;
use crate::isa::InstructionSet;
use crate::threads::{Shared, Threads};

/// Each head's x W^T, with the weights of all heads one below the other in `linear`, stacked head by head. All sums are
/// float32, and a row's results are the same bits whatever rows come with it. O(rows * inputs * outputs of all heads).
///
/// # Panics
/// Columns, weights and `out` are not those of `heads` heads, or weights were not stacked by head.
pub fn linear_by_head<T: Element, U: Element>(
    threads: &Threads,
    linear: &Linear,
    heads: usize,
    x: Columns<'_, T>,
    out: &mut [U],
) {
    let (inputs, outputs) = (linear.inputs, linear.outputs);
    if outputs == 0 || out.is_empty() {
        return;
    }
    let (rows, of_head) = (out.len() / outputs, outputs / heads);
    assert!(x.width() == heads * inputs && outputs == heads * of_head, "columns and outputs of each head");
    let whole = |first: usize, count: usize| first / of_head == (first + count - 1) / of_head;
    assert!(
        linear.sections.iter().all(|section| whole(section.first, section.outputs)),
        "weights of each head"
    );
    let blocks = row_blocks(rows);
    let numbers = &Shared::new(out);
    threads.share(heads * blocks, rows * inputs * outputs, |piece| {
        let (head, block) = (piece / blocks, piece % blocks);
        let rows = row_block(rows, block);
        let mut own = Vec::with_capacity(rows.len() * inputs);
        for row in rows.clone() {
            own.extend_from_slice(&x.row(row)[head * inputs..][..inputs]);
        }
        let mut out = Out { numbers, first: rows.start, rows: rows.len(), width: outputs, inputs };
        for section in linear.sections.iter().filter(|section| section.first / of_head == head) {
            section.add(InstructionSet::best(), threads, T::rows(&own), &mut out);
        }
    });
}
