//! Greedy: the most likely token, the lowest id of equals. O(vocabulary / 32) once the row is loaded.

use super::order::{GROUP, Row};

/// The first in order of a row in which something is possible.
pub fn most_likely(row: &Row) -> u32 {
    let best = row.best();
    let group = row.peaks().iter().position(|&peak| peak == best).unwrap_or(0);
    let within = row.group(group).iter().position(|&logit| logit == best).unwrap_or(0);
    (group * GROUP + within) as u32
}
