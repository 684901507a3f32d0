//! Products of many rows with dense weights, where registers are few: all that a tile reads is in the nearest cache.
//!
//! ```text
//!  panel 0          panel 1 ...        a piece: some panels and a block of rows
//!  ┌──┬──┬──┬──┐    ┌──┬──┬──┬──┐
//!  │0 │1 │2 │3 │    │4 │5 │6 │7 │      a unit: PART outputs of a panel for a block of inputs, opened: float32, side by
//!  ├──┼──┼──┼──┤    ├──┼──┼──┼──┤      side, 16 KiB. All tiles of rows go through it, and each opens its share of the
//!  │8 │9 │  │  │    │  │  │  │  │      next unit and asks the memory for its share of a later one.
//!  └──┴──┴──┴──┘    └──┴──┴──┴──┘
//! ```
//!
//! Rows are laid out once, by block of inputs and tile: the numbers of a tile's rows for one input lie side by side.

use std::cell::RefCell;
use std::ops::Range;

use super::panels::{Line, Plain, WIDTH};
use super::wide_kernels::{Kernel, MOST_ROWS, Opened, Opening, PART, Tile};
use super::{Out, Section, panels_between, row_block, row_blocks, tiles};
use crate::element::{Element, Rows};
use crate::threads::{Shared, Threads};

/// Inputs of a unit.
const BLOCK: usize = Opened::INPUTS;

/// Most panels in a piece of work: rows come from the second cache for all of them.
const MOST_PANELS: usize = 4;

thread_local! {
    /// The rows of the layer that this thread computes, laid out.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// The unit that is multiplied, and the one that is opened meanwhile.
    static UNITS: RefCell<[Opened; 2]> = const { RefCell::new([Opened::ZERO; 2]) };
}

impl Section {
    /// A dense product of more rows than a tile has: `lines` is \[panels, lines of a panel\].
    pub(super) fn add_wide<W: Plain, U: Element>(
        &self,
        threads: &Threads,
        lines: &[Line<W>],
        x: Rows<'_>,
        kernel: Kernel<W>,
        out: &mut Out<'_, U>,
    ) {
        let (panels, rows) = (self.bias.len(), out.rows);
        let per_panel = lines.len().checked_div(panels).unwrap_or(0);
        let stride = per_panel * kernel.inputs;
        // Each thread has two pieces or more, so that none waits long for the last one.
        let together = (panels * row_blocks(rows) / (2 * threads.count())).clamp(1, MOST_PANELS);
        let later = panels_between(threads, rows) * together;
        ROWS.with_borrow_mut(|tiled| {
            match x {
                Rows::Floats(x) => lay_out(threads, x, rows, stride, kernel.flip, tiled),
                Rows::Halves(x) => lay_out(threads, x, rows, stride, kernel.flip, tiled),
            }
            self.pieces(threads, out, together, |panels, rows, sums| {
                let units = Units { lines, per_panel, panels, later, block: BLOCK / kernel.inputs };
                let x = &tiled[rows.start * stride..rows.end * stride];
                UNITS.with_borrow_mut(|opened| multiply(&units, kernel, x, rows.len(), opened, sums));
            });
        });
    }
}

/// Adds the products of one piece: `x` is its rows, laid out, `sums` \[panels, rows\].
fn multiply<W: Plain>(
    units: &Units<'_, W>,
    kernel: Kernel<W>,
    x: &[f32],
    rows: usize,
    [now, next]: &mut [Opened; 2],
    sums: &mut [Line<f32>],
) {
    let (mut now, mut next) = (now, next);
    let mut unit = units.first();
    (kernel.add)(Tile::EMPTY, &mut [], &mut units.opening(unit, next), usize::MAX);
    while let Some(Unit { block, panel, lane }) = unit {
        std::mem::swap(&mut now, &mut next);
        unit = units.after(unit);
        let mut opening = units.opening(unit, next);
        let inputs = units.block(block).len() * kernel.inputs;
        let x = &x[block * BLOCK * rows..][..inputs * rows];
        for tile in tiles(rows, MOST_ROWS) {
            let share = opening.left().div_ceil((rows - tile.start).div_ceil(MOST_ROWS));
            let x = &x[tile.start * inputs..tile.end * inputs];
            let sums = &mut sums[panel * rows..][tile];
            (kernel.add)(Tile { weights: &now.0[..inputs], x, lane }, sums, &mut opening, share);
        }
    }
}

/// The units of a piece, in the order in which they are multiplied.
struct Units<'a, W> {
    /// Of all panels.
    lines: &'a [Line<W>],
    per_panel: usize,
    panels: Range<usize>,
    /// The distance from these panels to the panels that this thread most likely takes next.
    later: usize,
    /// Lines of a block of inputs.
    block: usize,
}

/// Its block of inputs, its panel within the piece, and its first output there.
#[derive(Clone, Copy)]
struct Unit {
    block: usize,
    panel: usize,
    lane: usize,
}

impl<W: Plain> Units<'_, W> {
    fn first(&self) -> Option<Unit> {
        (self.per_panel > 0).then_some(Unit { block: 0, panel: 0, lane: 0 })
    }

    fn after(&self, unit: Option<Unit>) -> Option<Unit> {
        let Unit { block, panel, lane } = unit?;
        if lane + PART < WIDTH {
            return Some(Unit { block, panel, lane: lane + PART });
        }
        self.after_panel(block, panel).map(|(block, panel)| Unit { block, panel, lane: 0 })
    }

    fn after_panel(&self, block: usize, panel: usize) -> Option<(usize, usize)> {
        match panel + 1 < self.panels.len() {
            true => Some((block, panel + 1)),
            false => ((block + 1) * self.block < self.per_panel).then_some((block + 1, 0)),
        }
    }

    /// The lines of a panel that are of this block.
    fn block(&self, block: usize) -> Range<usize> {
        block * self.block..self.per_panel.min((block + 1) * self.block)
    }

    /// How a unit is opened; nothing is where there is none.
    fn opening<'b>(&'b self, unit: Option<Unit>, to: &'b mut Opened) -> Opening<'b, W> {
        let Some(Unit { block, panel, lane }) = unit else { return Opening::nothing(to) };
        let of = |panel: usize, block: usize| {
            let first = (self.panels.start + panel) * self.per_panel;
            self.lines.get(first..first + self.per_panel).map(|lines| &lines[self.block(block)])
        };
        let ahead = match self.after_panel(block, panel) {
            Some((block, panel)) => of(panel, block),
            None => of(self.later, 0),
        };
        let lines = of(panel, block).unwrap_or_default();
        Opening::new(lines, lane, ahead.unwrap_or(lines), to)
    }
}

/// Writes `x`, `rows` rows, to `tiled`: by block of rows, block of inputs and tile the numbers \[inputs, rows of the
/// tile\], filled up with zeros to `stride` inputs. The numbers of input `at` lie where `at ^ flip` says.
fn lay_out<T: Element>(
    threads: &Threads,
    x: &[T],
    rows: usize,
    stride: usize,
    flip: usize,
    tiled: &mut Vec<f32>,
) {
    let width = x.len() / rows;
    // Every number is written below.
    tiled.resize(rows * stride, 0.0);
    let tiled = Shared::new(tiled);
    let blocks = stride.div_ceil(BLOCK);
    threads.share(row_blocks(rows) * blocks, rows * stride, |piece| {
        let (rows, first) = (row_block(rows, piece / blocks), piece % blocks * BLOCK);
        let inputs = BLOCK.min(stride - first);
        // SAFETY: pieces are of different rows or inputs.
        let to = unsafe { tiled.part(rows.start * stride + first * rows.len(), inputs * rows.len()) };
        for tile in tiles(rows.len(), MOST_ROWS) {
            let to = &mut to[tile.start * inputs..tile.end * inputs];
            let count = tile.len();
            for (at, row) in tile.map(|row| rows.start + row).enumerate() {
                let x = &x[row * width..][first..width.min(first + inputs)];
                for (input, x) in x.iter().enumerate() {
                    to[(input ^ flip) * count + at] = x.to_f32();
                }
                for input in x.len()..inputs {
                    to[(input ^ flip) * count + at] = 0.0;
                }
            }
        }
    });
}
