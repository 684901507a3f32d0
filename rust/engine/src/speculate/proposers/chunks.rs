//! A growing array that hardly moves: chunks of equal size, of which the first one grows to it.
//!
//! Pushing and indexing are O(1) with no pause to copy what is there, which for an index of millions of entries
//! would be tens of milliseconds. At most a chunk of memory is unused, in a small array half of it.

/// Elements of a chunk, as a power of two.
const BITS: usize = 10;
const SIZE: usize = 1 << BITS;

/// A growing array.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    length: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), length: 0 }
    }
}

impl<T> Chunks<T> {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn push(&mut self, value: T) {
        if self.length >> BITS == self.chunks.len() {
            // Many arrays stay small.
            let first = self.chunks.is_empty();
            self.chunks.push(if first { Vec::new() } else { Vec::with_capacity(SIZE) });
        }
        self.chunks[self.length >> BITS].push(value);
        self.length += 1;
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let first = self.chunks.first().map_or(0, Vec::capacity);
        (first + self.chunks.len().saturating_sub(1) * SIZE) * size_of::<T>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    /// Removes everything; memory is kept for up to `kept` elements.
    pub fn clear(&mut self, kept: usize) {
        self.chunks.truncate(kept.div_ceil(SIZE));
        self.chunks.iter_mut().for_each(Vec::clear);
        self.length = 0;
    }

    /// Frees the last chunk; whether there was one.
    pub fn drop_chunk(&mut self) -> bool {
        let chunk = self.chunks.pop();
        self.length = self.length.min(self.chunks.len() << BITS);
        chunk.is_some()
    }
}

impl<T> std::ops::Index<u32> for Chunks<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize >> BITS][at as usize & (SIZE - 1)]
    }
}

impl<T> std::ops::IndexMut<u32> for Chunks<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize >> BITS][at as usize & (SIZE - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_is_cleared() {
        let mut chunks = Chunks::default();
        (0..3000u32).for_each(|value| chunks.push(value));
        assert!((0..3000).all(|at| chunks[at] == at));
        chunks[2999] = 7;
        assert_eq!((chunks[2999], chunks.len()), (7, 3000));
        let bytes = chunks.bytes();
        assert!((3 * SIZE * 4..4 * SIZE * 4).contains(&bytes));
        chunks.clear(1);
        assert!(chunks.len() == 0 && chunks.bytes() < bytes);
        (0..1500).for_each(|value| chunks.push(value));
        assert_eq!(chunks[1400], 1400);
    }

    #[test]
    fn a_small_one_takes_little() {
        let mut chunks = Chunks::default();
        (0..9u32).for_each(|value| chunks.push(value));
        assert!(chunks.bytes() <= 256, "{}", chunks.bytes());
    }

    #[test]
    fn it_is_freed_piece_by_piece() {
        let mut chunks = Chunks::default();
        (0..2000u32).for_each(|value| chunks.push(value));
        assert!(chunks.drop_chunk());
        assert_eq!(chunks.len(), SIZE);
        assert!(chunks.drop_chunk() && !chunks.drop_chunk());
        assert_eq!(chunks.len(), 0);
    }
}
