//! Some columns of a buffer: what one kernel reads of the rows that another wrote.

/// Rows of `width` numbers, `stride` apart.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a, T> {
    numbers: &'a [T],
    width: usize,
    stride: usize,
}

impl<'a, T> Columns<'a, T> {
    /// Columns that begin with the first of `numbers`.
    ///
    /// # Panics
    /// Rows overlap.
    pub fn new(numbers: &'a [T], width: usize, stride: usize) -> Self {
        assert!(width <= stride, "rows apart from each other");
        Self { numbers, width, stride }
    }

    /// Numbers in a row.
    #[inline]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The columns of one row.
    ///
    /// # Panics
    /// There is no such row.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [T] {
        &self.numbers[row * self.stride..][..self.width]
    }
}
