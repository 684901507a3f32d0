//! How a product with dense weights is shared out; that of many rows where there are 32 registers or none (see
//! [`super::wide`]).
//!
//! ```text
//!  few rows    │ panels 0 1 2 3 │ 4 5 6 7 │ ...    a piece: each of its panels is a stream that the memory serves
//!
//!  many rows   │ panel 0, block 0 │ block 1 │ ...        each block stays in the cache for all tiles of rows, and the
//!              └──── tile, tile, tile ... ──┘            block behind it is asked for meanwhile
//! ```

use super::dense_kernels::{Kernel, Tile};
use super::panels::{Line, Plain};
use super::{Out, Section, panels_between, tiles};
use crate::element::Element;
use crate::threads::Threads;

/// Most panels in a piece of work of few rows: they lie side by side, and between two pieces the memory waits.
const MOST_PANELS: usize = 4;

/// Bytes of a panel's lines that all tiles of a piece go through before the next: they stay in the second cache.
const BLOCK_BYTES: usize = 128 << 10;

impl Section {
    /// A dense product: `lines` is \[panels, lines of a panel\], `x` has rows `stride` apart, as wide as the lines say.
    pub(super) fn add_dense<W: Plain, X: Sync, U: Element>(
        &self,
        threads: &Threads,
        lines: &[Line<W>],
        x: &[X],
        stride: usize,
        kernel: Kernel<W, X>,
        out: &mut Out<'_, U>,
    ) {
        if out.rows <= kernel.most_rows() {
            self.add_few(threads, lines, x, stride, kernel, out);
        } else {
            self.add_many(threads, lines, x, stride, kernel, out);
        }
    }

    /// Adds rows that are one tile: weights are read but once, in order, as fast as the memory gives them.
    fn add_few<W: Plain, X: Sync, U: Element>(
        &self,
        threads: &Threads,
        lines: &[Line<W>],
        x: &[X],
        stride: usize,
        kernel: Kernel<W, X>,
        out: &mut Out<'_, U>,
    ) {
        let panels = self.bias.len();
        let per_panel = lines.len().checked_div(panels).unwrap_or(0);
        let most = kernel.most_panels[out.rows - 1];
        // Each thread has two pieces or more, so that none waits long for the last one.
        let together = (panels / (2 * threads.count())).clamp(1, MOST_PANELS);
        self.pieces(threads, out, together, |panels, rows, mut sums| {
            let mut panel = panels.start;
            while panel < panels.end {
                let count = most.min(1 << (panels.end - panel).ilog2());
                let (now, later) = sums.split_at_mut(count * rows.len());
                let lines = &lines[panel * per_panel..(panel + count) * per_panel];
                (kernel.add)(Tile { lines, panels: count, x, stride, ahead: &[] }, now);
                (panel, sums) = (panel + count, later);
            }
        });
    }

    /// Adds rows that are several tiles: a block of weights stays in the cache for all of them.
    fn add_many<W: Plain, X: Sync, U: Element>(
        &self,
        threads: &Threads,
        lines: &[Line<W>],
        x: &[X],
        stride: usize,
        kernel: Kernel<W, X>,
        out: &mut Out<'_, U>,
    ) {
        let per_panel = lines.len().checked_div(self.bias.len()).unwrap_or(0);
        let inputs_per_line = stride.checked_div(per_panel).unwrap_or(1);
        let step = panels_between(threads, out.rows);
        // Equal blocks: one is computed for as long as the memory needs for the next.
        let blocks = (per_panel * size_of::<Line<W>>()).div_ceil(BLOCK_BYTES).max(1);
        let block = per_panel.div_ceil(blocks).max(1);
        self.pieces(threads, out, 1, |panels, rows, sums| {
            let panel = panels.start;
            let mut blocks = lines[panel * per_panel..][..per_panel].chunks(block).enumerate().peekable();
            while let Some((index, lines_now)) = blocks.next() {
                let x = &x[rows.start * stride + index * block * inputs_per_line..];
                let after = match blocks.peek() {
                    Some(&(_, next)) => next,
                    None => lines
                        .get((panel + step) * per_panel..)
                        .map_or(&[][..], |next| &next[..block.min(next.len())]),
                };
                for tile in tiles(rows.len(), kernel.most_rows()) {
                    let x = &x[tile.start * stride..];
                    let due = |row| after.len() * row / rows.len();
                    let ahead = &after[due(tile.start)..due(tile.end)];
                    (kernel.add)(Tile { lines: lines_now, panels: 1, x, stride, ahead }, &mut sums[tile]);
                }
            }
        });
    }
}
