//! The matrices of a layer.

/// The matrices of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Heads, each with a matrix.
    pub heads: usize,
    /// Heads of keys and queries; divides `heads`.
    pub key_heads: usize,
    /// Rows of a matrix.
    pub key_dim: usize,
    /// Columns of a matrix.
    pub value_dim: usize,
    /// Decays of a head: 1, or one for each row of its matrix.
    pub decays: usize,
}

impl Shape {
    /// Numbers of a state: \[heads, key dim, value dim\].
    pub fn state_size(&self) -> usize {
        self.heads * self.matrix()
    }

    /// Numbers of a draft: \[heads, key dim + value dim + decays + 1\].
    pub fn draft_size(&self) -> usize {
        self.heads * self.record()
    }

    /// Numbers of a matrix.
    pub(super) fn matrix(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// Numbers of a head's draft: its key, value, decays and rate.
    pub(super) fn record(&self) -> usize {
        self.key_dim + self.value_dim + self.decays + 1
    }

    /// The head of keys and queries that serves `head`.
    pub(super) fn key_head(&self, head: usize) -> usize {
        head / (self.heads / self.key_heads)
    }
}
