//! What is usual of the latest few values: the least but for a quarter of them, so that what happens now and then does
//! not show.

/// Values that are kept, and values without which nothing is said: one alone may be what happens now and then.
const KEPT: usize = 15;
const LEAST: usize = 3;

#[derive(Clone, Copy, Default)]
pub(super) struct Recent {
    values: [f32; KEPT],
    seen: usize,
}

impl Recent {
    pub fn observe(&mut self, value: f32) {
        self.values[self.seen % KEPT] = value;
        self.seen += 1;
    }

    /// None if too little was observed. O(1): a sort of a few.
    pub fn usual(&self) -> Option<f32> {
        if self.seen < LEAST {
            return None;
        }
        let mut kept = self.values;
        let kept = &mut kept[..self.seen.min(KEPT)];
        kept.sort_by(f32::total_cmp);
        Some(kept[kept.len() / 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rare_does_not_count_and_what_is_old_is_forgotten() {
        let mut recent = Recent::default();
        assert_eq!(recent.usual(), None);
        let usual = [5.0, 900.0, 6.0].map(|value| {
            recent.observe(value);
            recent.usual()
        });
        assert_eq!(usual, [None, None, Some(5.0)]);
        (0..KEPT).for_each(|_| recent.observe(2.0));
        assert_eq!(recent.usual(), Some(2.0));
    }
}
