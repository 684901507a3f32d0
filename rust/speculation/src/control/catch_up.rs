//! What it takes that a draft model catches up with sequences: an investment, spread over the steps to come.

/// Steps over which it is spread.
const STEPS: f32 = 16.0;

/// In nanoseconds.
#[derive(Default)]
pub(super) struct CatchUp {
    /// Not accounted for yet.
    owed: f32,
    /// What a token takes.
    token: f32,
}

impl CatchUp {
    pub fn token(&self) -> f32 {
        self.token
    }

    /// The draft model caught up with `tokens` tokens: the step took `more` than it would have without, if that was
    /// measured, and `lost` so much beside, where the rows that are current are few.
    pub fn invest(&mut self, tokens: usize, more: Option<f32>, lost: f32) {
        if let Some(more) = more {
            let weight = if self.token > 0.0 { 0.2 } else { 1.0 };
            self.token += weight * (more / tokens as f32 - self.token);
        }
        self.owed += self.token * tokens as f32 + lost;
    }

    /// The part of what is owed that a step accounts for.
    pub fn pay_off(&mut self) -> f32 {
        let part = self.owed / STEPS;
        self.owed -= part;
        part
    }

    /// No step accounts for what is owed any more; returns that.
    pub fn write_off(&mut self) -> f32 {
        std::mem::take(&mut self.owed)
    }

    /// Catching up is too dear: the cost of a token is believed less and less, and so measured again some day.
    pub fn refuse(&mut self) {
        self.token *= 0.98;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_takes_is_spread() {
        let mut catch_up = CatchUp::default();
        catch_up.invest(20, Some(200.0), 0.0);
        assert_eq!((catch_up.token, catch_up.owed, catch_up.pay_off()), (10.0, 200.0, 12.5));
        catch_up.invest(20, None, 16.0);
        assert_eq!(catch_up.token, 10.0, "nothing was measured");
        assert_eq!(catch_up.owed, 187.5 + 216.0, "and more is owed");
        (0..200).for_each(|_| catch_up.refuse());
        assert!(catch_up.token < 1.0);
        assert_eq!((catch_up.write_off(), catch_up.pay_off()), (403.5, 0.0));
    }
}
