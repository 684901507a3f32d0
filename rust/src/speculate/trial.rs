//! What steps with drafts brought: as ratios that forget, and as a mean that is certain or is not.
//!
//! Earned is the time that plain steps would take for the step's tokens, spent is its own. O(1).

/// Sums that forget: what was earned against what was spent, and what plain steps would have spent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Balance {
    earned: f32,
    spent: f32,
    plain: f32,
}

impl Balance {
    pub fn add(&mut self, earned: f32, spent: f32, plain: f32, keep: f32) {
        self.earned = self.earned * keep + earned;
        self.spent = self.spent * keep + spent;
        self.plain = self.plain * keep + plain;
    }

    /// No more than drafts can have brought: what makes steps with drafts shorter than plain ones is not the drafts.
    pub fn ratio(self) -> f32 {
        if self.spent > 0.0 { self.earned / self.spent.max(self.plain) } else { 1.0 }
    }
}

/// The gains of the steps since a probe began, in plain steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trial {
    pub steps: u32,
    pub gain: f32,
    squares: f32,
}

impl Trial {
    pub fn add(&mut self, gain: f32) {
        self.steps += 1;
        self.gain += gain;
        self.squares += gain * gain;
    }

    pub fn mean(self) -> f32 {
        self.gain / self.steps.max(1) as f32
    }

    /// The mean in standard errors.
    pub fn certainty(self) -> f32 {
        let steps = self.steps.max(2) as f32;
        let variance = (self.squares - self.gain * self.gain / steps).max(0.0) / (steps - 1.0);
        self.gain / (variance * steps).sqrt().max(1e-3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_drafts_can_have_brought() {
        let mut balance = Balance::default();
        assert_eq!(balance.ratio(), 1.0);
        (0..50).for_each(|_| balance.add(10.0, 8.0, 10.0, 0.9));
        assert_eq!(balance.ratio(), 1.0, "steps became shorter, and no draft was right");
        (0..50).for_each(|_| balance.add(15.0, 12.0, 10.0, 0.9));
        assert!((balance.ratio() - 1.25).abs() < 0.01, "{balance:?}");
    }

    #[test]
    fn certainty_grows_with_steps_and_falls_with_noise() {
        let of = |steps: u32, noise: f32| {
            let mut trial = Trial::default();
            (0..steps).for_each(|at| trial.add(0.1 + if at % 2 == 0 { noise } else { -noise }));
            assert!((trial.mean() - 0.1).abs() < 1e-4);
            trial.certainty()
        };
        assert!(of(10, 0.1) > 1.65 && of(10, 0.5) < 1.65 && of(100, 0.5) > 1.65);
        assert!(Trial::default().certainty() == 0.0);
    }
}
