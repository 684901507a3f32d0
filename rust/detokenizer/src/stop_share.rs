//! Estimates the share of the detokenizer's time that the search for stop strings takes.
//!
//! Decoding and searching alternate at every token, so that measuring each would cost more than the work. One row in
//! [`EVERY`] is measured, and stands for all rows. O(1) a row.

use super::stream::Meter;
use pyengine_telemetry::now_ns;

/// One row in this many is measured.
const EVERY: u32 = 16;
/// After this much measured time earlier measurements count half.
const MEMORY_NS: u64 = 1_000_000;

/// The clock on one row.
#[derive(Debug, Default)]
pub(super) struct RowClock {
    began: u64,
    search_began: u64,
    searched: u64,
}

impl RowClock {
    fn start() -> Self {
        Self { began: now_ns(), ..Self::default() }
    }
}

impl Meter for RowClock {
    fn search(&mut self) {
        self.search_began = now_ns();
    }

    fn done(&mut self) {
        self.searched += now_ns() - self.search_began;
    }
}

/// The share of searching, from the rows measured so far.
#[derive(Debug, Default)]
pub(super) struct StopShare {
    rows: u32,
    searched: u64,
    whole: u64,
}

impl StopShare {
    /// A clock if the next row is to be measured.
    pub fn clock(&mut self) -> Option<RowClock> {
        self.rows = (self.rows + 1) % EVERY;
        (self.rows == 1).then(RowClock::start)
    }

    /// Adds a measured row.
    pub fn add(&mut self, clock: &RowClock) {
        self.whole += now_ns() - clock.began;
        self.searched += clock.searched;
        if self.whole > MEMORY_NS {
            self.whole /= 2;
            self.searched /= 2;
        }
    }

    /// How much of `duration` went into searching.
    pub fn of(&self, duration: u64) -> u64 {
        if self.whole == 0 {
            0
        } else {
            (duration as u128 * self.searched as u128 / self.whole as u128) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_in_sixteen_is_measured_and_shares_are_between_nothing_and_all() {
        let mut share = StopShare::default();
        assert_eq!(share.of(1000), 0);
        let measured = (0..160).filter_map(|_| share.clock()).count();
        assert_eq!(measured, 10);
        let mut clock = RowClock::start();
        clock.search();
        clock.done();
        share.add(&clock);
        assert!(share.of(1000) <= 1000);
        share = StopShare { rows: 0, searched: 3 << 50, whole: 4 << 50 };
        assert_eq!(share.of(4000), 3000);
        share.add(&clock);
        assert!(share.of(4000).abs_diff(3000) < 5);
    }
}
