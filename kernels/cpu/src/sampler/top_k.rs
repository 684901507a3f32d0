//! Top-k: the k most likely tokens (Fan, Lewis and Dauphin, 2018). O(n + k log k).

use super::order::Row;

/// Keeps the first `k` in order; 0 (or less) keeps all.
pub fn keep(row: &mut Row, k: i32) {
    if let Ok(k) = usize::try_from(k)
        && 0 < k
        && k < row.vocabulary()
    {
        row.keep_first(k);
    }
}
