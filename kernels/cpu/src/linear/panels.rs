//! Packed weights: whole lines of the cache, in huge pages where the system has them.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::slab::{self, Slab};

/// Outputs in a panel.
pub const WIDTH: usize = 64;

/// A number for each output of a panel.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Line<T>(pub [T; WIDTH]);

/// Number types of lines: all bits zero is zero, and nothing needs to be dropped.
pub trait Plain: Copy + Default + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u8 {}

/// Lines of zeros, to be written once and read by all threads.
#[derive(Debug)]
pub struct Lines<T: Plain> {
    start: NonNull<Line<T>>,
    length: usize,
    /// Where they are; nowhere, if there are none.
    _slab: Option<Arc<Slab>>,
}

// SAFETY: it owns its lines, as a `Box` of plain numbers does.
unsafe impl<T: Plain> Send for Lines<T> {}
// SAFETY: as above; it is changed by `&mut` only.
unsafe impl<T: Plain> Sync for Lines<T> {}

impl<T: Plain> Lines<T> {
    /// `length` lines of zeros. A step reads all weights once, in order: in small pages every 4 kB would miss the
    /// TLB and stop the processor's prefetcher.
    pub fn zeros(length: usize) -> Self {
        if length == 0 {
            return Self { start: NonNull::dangling(), length, _slab: None };
        }
        let bytes = length.checked_mul(size_of::<Line<T>>()).expect("fewer bytes than there are addresses");
        let (start, slab) = slab::zeros(bytes);
        Self { start: start.cast(), length, _slab: Some(slab) }
    }

    /// Bytes of all lines.
    pub fn nbytes(&self) -> usize {
        self.length * size_of::<Line<T>>()
    }
}

impl<T: Plain> Deref for Lines<T> {
    type Target = [Line<T>];

    fn deref(&self) -> &[Line<T>] {
        // SAFETY: the lines are its own, at a line of the cache; zeros are numbers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T: Plain> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [Line<T>] {
        // SAFETY: as in `deref`, and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// Writes `from` \[outputs, width\] as panels of `per_panel` lines: an output's number in line `at` is made of its
/// `N` elements from `N * at` on, fewer at the end; lines after the end stay as they are.
pub fn pack<const N: usize, S: Copy, T: Plain>(
    from: &[S],
    width: usize,
    lines: &mut [Line<T>],
    per_panel: usize,
    pack: impl Fn(&[S]) -> T,
) {
    // A block of this many lines stays in the nearest cache while all outputs of a panel are written to them.
    const BLOCK: usize = 32;
    if width == 0 || per_panel == 0 {
        return;
    }
    for (panel, rows) in lines.chunks_exact_mut(per_panel).zip(from.chunks(width * WIDTH)) {
        for (block, lines) in panel.chunks_mut(BLOCK).enumerate() {
            for (output, row) in rows.chunks_exact(width).enumerate() {
                let row = row.get(block * BLOCK * N..).unwrap_or_default();
                for (line, elements) in lines.iter_mut().zip(row.chunks(N)) {
                    line.0[output] = pack(elements);
                }
            }
        }
    }
}
