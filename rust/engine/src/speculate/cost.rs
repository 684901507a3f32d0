//! How a time grows with a count: measured per bucket of counts, monotone, straight lines between.
//!
//! ```text
//!  time │            ·──•            buckets: 0 1 ... 8-9 │10-11│12-13│14-15│16-19│...  (four an octave)
//!       │     •────•                 each the median of its last SAMPLES measurements,
//!       │ •──                        made monotone by pooling neighbours (PAVA), interpolated,
//!       └──────────────── count      continued beyond the last
//! ```
//!
//! A measurement is O(1); a fit is O(buckets), made when lengths are decided. What is not measured again for
//! `MAX_AGE` steps is forgotten, so that what was once too slow is tried again.

/// Measurements of a bucket that count.
const SAMPLES: usize = 9;

/// Buckets; the last begins at 16,384.
const BUCKETS: usize = 53;

/// Measurements older than so many steps are forgotten.
const MAX_AGE: u64 = 1024;

/// The bucket of a count: up to 8 its own, then four an octave.
fn bucket(count: usize) -> usize {
    if count <= 8 {
        return count;
    }
    let octave = count.ilog2() as usize;
    (4 * octave - 4 + ((count >> (octave - 2)) & 3)).min(BUCKETS - 1)
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    counts: [f32; SAMPLES],
    times: [f32; SAMPLES],
    measured: u8,
    next: u8,
    last: u64,
}

impl Cell {
    fn add(&mut self, count: f32, time: f32, now: u64) {
        if now - self.last > MAX_AGE {
            *self = Self::default();
        }
        let at = usize::from(self.next);
        (self.counts[at], self.times[at]) = (count, time);
        self.next = ((at + 1) % SAMPLES) as u8;
        self.measured = (self.measured + 1).min(SAMPLES as u8);
        self.last = now;
    }

    /// Mean count, median time, and how many measurements.
    fn point(&self, now: u64) -> Option<Point> {
        let measured = usize::from(self.measured);
        if measured == 0 || now - self.last > MAX_AGE {
            return None;
        }
        let mut times = self.times;
        let times = &mut times[..measured];
        times.sort_unstable_by(f32::total_cmp);
        let median = (times[(measured - 1) / 2] + times[measured / 2]) / 2.0;
        let count = self.counts[..measured].iter().sum::<f32>() / measured as f32;
        Some(Point { count, time: median, weight: measured as f32 })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Point {
    count: f32,
    time: f32,
    weight: f32,
}

/// Times by count, in nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    cells: [Cell; BUCKETS],
}

impl Default for Curve {
    fn default() -> Self {
        Self { cells: [Cell::default(); BUCKETS] }
    }
}

impl Curve {
    /// It took `time` with `count`, at step `now`.
    pub fn observe(&mut self, count: usize, time: f32, now: u64) {
        self.cells[bucket(count)].add(count as f32, time, now);
    }

    /// Forgets what was not measured in the last `recent` steps.
    pub fn forget_older(&mut self, recent: u64, now: u64) {
        let old = |cell: &&mut Cell| now - cell.last > recent;
        self.cells.iter_mut().filter(old).for_each(|cell| *cell = Cell::default());
    }

    /// How many of the last measurements are in the bucket of `count`.
    pub fn measured(&self, count: usize, now: u64) -> usize {
        let cell = &self.cells[bucket(count)];
        if now - cell.last > MAX_AGE { 0 } else { usize::from(cell.measured) }
    }

    /// The monotone line through what was measured. An `anchor` (count, time) is taken for a measurement if
    /// there is none at or below it; beyond the last point the line goes on as steeply as it did, or with
    /// `slope` if nothing is known.
    pub fn fit(&self, anchor: Option<(f32, f32)>, slope: f32, now: u64) -> Fit {
        let mut fit = Fit { points: [Point::default(); BUCKETS + 1], used: 0, slope };
        let mut anchor = anchor.map(|(count, time)| Point { count, time, weight: 1.0 });
        for point in self.cells.iter().filter_map(|cell| cell.point(now)) {
            if let Some(anchor) = anchor.take()
                && anchor.count < point.count
            {
                fit.push(anchor);
            }
            fit.push(point);
        }
        anchor.into_iter().for_each(|anchor| fit.push(anchor));
        fit.settle();
        fit
    }
}

/// A monotone line through the points of a [`Curve`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Fit {
    points: [Point; BUCKETS + 1],
    used: usize,
    slope: f32,
}

impl Fit {
    fn push(&mut self, point: Point) {
        self.points[self.used] = point;
        self.used += 1;
    }

    /// Makes it monotone and finds how it goes on beyond the last point.
    fn settle(&mut self) {
        let mut pools = [(0.0f32, 0.0f32, 0usize); BUCKETS + 1]; // weighted time, weight, points
        let mut depth = 0;
        for point in &self.points[..self.used] {
            let mut pool = (point.time * point.weight, point.weight, 1);
            while depth > 0 && pools[depth - 1].0 * pool.1 >= pool.0 * pools[depth - 1].1 {
                depth -= 1;
                let lower = pools[depth];
                pool = (pool.0 + lower.0, pool.1 + lower.1, pool.2 + lower.2);
            }
            pools[depth] = pool;
            depth += 1;
        }
        let levels = pools[..depth]
            .iter()
            .flat_map(|&(time, weight, points)| std::iter::repeat_n(time / weight, points));
        self.points[..self.used].iter_mut().zip(levels).for_each(|(point, time)| point.time = time);
        if let [first, .., before, last] | [first @ before, last] = &self.points[..self.used] {
            let steepness = |from: &Point| (last.time - from.time) / (last.count - from.count).max(0.5);
            // The last piece alone would follow the noise of a point, the whole line would miss a bend.
            self.slope = (steepness(first) + steepness(before)) / 2.0;
        }
    }

    /// The time with `count`; `None` if nothing is known.
    pub fn at(&self, count: f32) -> Option<f32> {
        let points = &self.points[..self.used];
        let above = points.partition_point(|point| point.count < count);
        match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
            (None, None) => None,
            (None, Some(first)) => Some(first.time),
            (Some(last), None) => Some(last.time + self.slope * (count - last.count)),
            (Some(below), Some(above)) => {
                let part = (count - below.count) / (above.count - below.count);
                Some(below.time + part * (above.time - below.time))
            }
        }
    }

    /// The greatest count that was measured; 0 if none was.
    pub fn reach(&self) -> f32 {
        self.points[..self.used].last().map_or(0.0, |point| point.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for count in 0..100_000 {
            let bucket = bucket(count);
            assert!(bucket == last || bucket == last + 1, "{count}");
            last = bucket;
        }
        assert_eq!(last, BUCKETS - 1);
        assert_eq!([7, 8, 9, 10, 15, 16, 19].map(bucket), [7, 8, 8, 9, 11, 12, 12]);
        assert_eq!(bucket(16_384), BUCKETS - 1);
    }

    #[test]
    fn a_line_is_found_through_noise_and_outliers() {
        let mut curve = Curve::default();
        for turn in 0..200u64 {
            let count = 1 + (turn as usize * 7) % 60;
            let noise = [0.98, 1.0, 1.02][turn as usize % 3];
            let time = (100.0 + 2.0 * count as f32) * noise * if turn % 17 == 0 { 30.0 } else { 1.0 };
            curve.observe(count, time, turn);
        }
        let fit = curve.fit(None, 0.0, 200);
        for count in [1, 10, 30, 60, 100] {
            let (got, real) = (fit.at(count as f32).unwrap(), 100.0 + 2.0 * count as f32);
            assert!((got / real - 1.0).abs() < 0.08, "{count}: {got} {real}");
        }
    }

    #[test]
    fn an_anchor_stands_in_and_old_times_are_forgotten() {
        let mut curve = Curve::default();
        assert!(curve.fit(None, 1.0, 0).at(3.0).is_none());
        assert_eq!(curve.fit(Some((0.0, 5.0)), 2.0, 0).at(3.0), Some(11.0));
        curve.observe(4, 9.0, 0);
        assert_eq!(curve.fit(Some((0.0, 5.0)), 2.0, 0).at(2.0), Some(7.0));
        assert_eq!(curve.fit(Some((0.0, 5.0)), 2.0, 0).at(8.0), Some(13.0));
        assert_eq!((curve.measured(4, 0), curve.measured(3, 0)), (1, 0));
        assert!(curve.fit(None, 1.0, MAX_AGE + 1).at(4.0).is_none());
        curve.observe(0, 6.0, 1);
        assert_eq!(curve.fit(Some((0.0, 5.0)), 2.0, 1).at(0.0), Some(6.0), "measured itself");
        curve.observe(2, 7.0, 40);
        curve.forget_older(8, 41);
        assert_eq!((curve.measured(2, 41), curve.measured(4, 41)), (1, 0));
    }

    proptest! {
        #[test]
        fn more_never_takes_less_time(points in prop::collection::vec((0usize..200, 0f32..100.0), 0..50)) {
            let mut curve = Curve::default();
            for (now, &(count, time)) in points.iter().enumerate() {
                curve.observe(count, time, now as u64);
            }
            let fit = curve.fit(None, 0.0, 50);
            let times: Vec<_> = (0..400).filter_map(|count| fit.at(count as f32)).collect();
            prop_assert_eq!(times.is_empty(), points.is_empty());
            prop_assert!(times.windows(2).all(|two| two[0] <= two[1] + 1e-3));
        }
    }
}
