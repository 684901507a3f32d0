//! What steps with drafts brought: as ratios that forget, and as a mean that is certain or is not.
//!
//! ```text
//!  earned   the time that plain steps would take for the step's tokens
//!  own      the time that the step took
//!  spent    the same, and its part of what it took the draft model to catch up
//!
//!  ratio = Σ earned / Σ spent, above 1 where drafts pay        gain = (earned - spent) / plain, of one step
//! ```
//!
//! O(1).

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

/// The gains of the steps since a trial began, in plain steps.
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

/// What a step with drafts brought, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brought {
    pub earned: f32,
    pub own: f32,
    pub spent: f32,
    /// What a plain step takes.
    pub plain: f32,
}

/// What steps with drafts brought since they were last begun with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Results {
    pub steps: u32,
    /// Draft tokens in them.
    pub drafts: usize,
    /// Over some 20 and some 100 steps.
    pub fast: Balance,
    pub slow: Balance,
    pub trial: Trial,
    /// Lost since things last went well: a cumulative sum (Page, 1954), quick to grow where much is lost and patient
    /// where little is.
    pub lost: f32,
}

impl Results {
    pub fn add(&mut self, brought: Brought, drafted: usize) {
        let Brought { earned, own, spent, plain } = brought;
        self.fast.add(earned, spent, plain, 0.95);
        self.slow.add(earned, spent, plain, 0.99);
        self.trial.add((earned - spent) / plain);
        // What it took to catch up is not lost yet.
        self.lost = (self.lost + own - earned).max(0.0);
        self.drafts += drafted;
        self.steps += 1;
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
