//! A quantity by a count (time by rows, by draft tokens), measured per bucket of counts, with straight lines between.
//!
//! Each count up to 8 has its own bucket, then there are four an octave. A bucket holds a moving average. What was
//! not measured for `MAX_AGE` steps is forgotten, so that it is tried again. O(1) a measurement, O(buckets) a look-up.

const BUCKETS: usize = 45;
const MAX_AGE: u64 = 1024;

/// The weight of a new measurement, once there are a few.
const WEIGHT: f32 = 0.15;

fn bucket(count: usize) -> usize {
    if count <= 8 {
        return count;
    }
    let octave = count.ilog2() as usize;
    (4 * octave - 4 + ((count >> (octave - 2)) & 3)).min(BUCKETS - 1)
}

#[derive(Clone, Copy, Default)]
struct Point {
    count: f32,
    value: f32,
    samples: u32,
    last: u64,
}

#[derive(Clone)]
pub(super) struct Curve([Point; BUCKETS]);

impl Default for Curve {
    fn default() -> Self {
        Self([Point::default(); BUCKETS])
    }
}

impl Curve {
    pub fn observe(&mut self, count: usize, value: f32, now: u64) {
        let point = &mut self.0[bucket(count)];
        // Others on the machine make a step longer, never half as long: the average was wrong then.
        if now > point.last + MAX_AGE || value < 0.5 * point.value {
            point.samples = 0;
        }
        point.samples += 1;
        let weight = (1.0 / point.samples as f32).max(WEIGHT);
        point.count += weight * (count as f32 - point.count);
        point.value += weight * (value - point.value);
        point.last = now;
    }

    fn known(&self, now: u64) -> impl DoubleEndedIterator<Item = &Point> {
        self.0.iter().filter(move |point| point.samples > 0 && now <= point.last + MAX_AGE)
    }

    /// How often about this count was measured lately.
    pub fn samples(&self, count: usize, now: u64) -> u32 {
        let point = &self.0[bucket(count)];
        if now <= point.last + MAX_AGE { point.samples } else { 0 }
    }

    /// The greatest count that was measured; 0 if none was.
    pub fn reach(&self, now: u64) -> f32 {
        self.known(now).next_back().map_or(0.0, |point| point.count)
    }

    /// The value at `count`, where `origin` stands for an unmeasured one at 0. Beyond the last point the line from the
    /// first to the last goes on, with `slope` if there is only one.
    pub fn at(&self, count: f32, origin: Option<f32>, slope: f32, now: u64) -> Option<f32> {
        let origin = origin.filter(|_| self.samples(0, now) == 0).map(|value| (0.0, value));
        let measured = self.known(now).map(|point| (point.count, point.value));
        let (mut first, mut below) = (None, None::<(f32, f32)>);
        for (x, y) in origin.into_iter().chain(measured) {
            if x >= count {
                return Some(below.map_or(y, |(u, v)| v + (y - v) * (count - u) / (x - u).max(1e-3)));
            }
            first = first.or(Some((x, y)));
            below = Some((x, y));
        }
        let ((x, y), (u, v)) = (first?, below?);
        let slope = if u - x >= 0.5 { ((v - y) / (u - x)).max(0.0) } else { slope };
        Some(v + slope * (count - u))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        let buckets: Vec<usize> = (0..100_000).map(bucket).collect();
        assert!(buckets.windows(2).all(|two| two[1] == two[0] || two[1] == two[0] + 1));
        assert_eq!([7, 8, 9, 10, 15, 16, 19].map(bucket), [7, 8, 8, 9, 11, 12, 12]);
        assert_eq!(bucket(usize::MAX), BUCKETS - 1);
    }

    #[test]
    fn lines_join_the_points_and_go_on_beyond_them() {
        let mut curve = Curve::default();
        assert_eq!(curve.at(3.0, None, 1.0, 0), None);
        assert_eq!(curve.at(3.0, Some(5.0), 2.0, 0), Some(11.0));
        curve.observe(4, 9.0, 0);
        assert_eq!([2.0, 4.0, 8.0].map(|at| curve.at(at, Some(5.0), 2.0, 0).unwrap()), [7.0, 9.0, 13.0]);
        curve.observe(0, 6.0, 0);
        assert_eq!(curve.at(0.0, Some(5.0), 2.0, 0), Some(6.0), "a measured origin replaces the given one");
        assert_eq!((curve.samples(4, 0), curve.samples(3, 0), curve.reach(0)), (1, 0, 4.0));
        assert_eq!(curve.at(4.0, None, 1.0, MAX_AGE + 1), None, "forgotten");
    }

    #[test]
    fn noise_is_averaged_and_a_far_too_long_time_replaced() {
        let mut curve = Curve::default();
        curve.observe(3, 2000.0, 0);
        for now in 1..100 {
            curve.observe(3, [98.0, 100.0, 102.0][now as usize % 3], now);
        }
        assert!((curve.at(3.0, None, 0.0, 100).unwrap() - 100.0).abs() < 1.0);
    }
}
