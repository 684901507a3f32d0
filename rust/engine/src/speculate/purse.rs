//! What drafts may cost before they have paid: a purse for trying them, and a debt for catching up.
//!
//! ```text
//!  all time ─ some thousandths ─► Purse ◄─ gains of steps with drafts
//!                                            └─► their losses; empty: nothing is tried
//!  step in which the draft model catches up ─► CatchUp: debt ─► a sixteenth of what is left, each step with drafts
//! ```
//!
//! Both are in nanoseconds. O(1).

/// The part of all time that trying may lose.
const SHARE: f32 = 0.006;

/// Plain steps that the purse holds at the start, at most, and at least.
const PURSE: (f32, f32, f32) = (3.0, 20.0, -12.0);

/// Steps over which is paid what it took the draft model to catch up with a sequence.
const PAID_IN: f32 = 16.0;

/// What is left, from step to step, of a price that nobody pays.
const DOUBT: f32 = 0.98;

/// What trying may lose; below zero, what it has lost beyond that.
#[derive(Debug, Default)]
pub(super) struct Purse {
    /// None until a plain step was measured.
    held: Option<f32>,
}

impl Purse {
    pub fn held(&self) -> f32 {
        self.held.unwrap_or(0.0)
    }

    /// Its share of a step of any kind, which took `time`.
    pub fn fill(&mut self, time: f32, plain: f32) {
        self.set(self.held.unwrap_or(PURSE.0 * plain), SHARE * time, plain);
    }

    /// What a step with drafts gained, or lost.
    pub fn add(&mut self, gained: f32, plain: f32) {
        self.set(self.held(), gained, plain);
    }

    /// Its bounds grow with the time of a plain step; what it held at another number of rows it keeps.
    fn set(&mut self, held: f32, more: f32, plain: f32) {
        let (least, most) = ((PURSE.2 * plain).min(held), (PURSE.1 * plain).max(held));
        self.held = Some((held + more).clamp(least, most));
    }
}

/// What it took the draft model to catch up with sequences: an investment, which later steps pay off.
#[derive(Debug, Clone, Default)]
pub(super) struct CatchUp {
    debt: f32,
    /// Of a token, as last measured.
    each: f32,
}

impl CatchUp {
    /// A step took `over` longer, as the draft model caught up with `tokens`: that is owed.
    pub fn bought(&mut self, over: f32, tokens: usize) -> f32 {
        self.debt += over;
        let each = over / tokens as f32;
        self.each += if self.each > 0.0 { 0.2 } else { 1.0 } * (each - self.each);
        over
    }

    /// The same where it is not known how much longer: what is owed is what it should have taken.
    pub fn buy(&mut self, tokens: usize) -> f32 {
        let over = self.cost(tokens);
        self.debt += over;
        over
    }

    /// What a step with drafts pays.
    pub fn pay(&mut self) -> f32 {
        let paid = self.debt / PAID_IN;
        self.debt -= paid;
        paid
    }

    /// A trial begins anew: what was bought before says nothing of it.
    pub fn forgive(&mut self) {
        self.debt = 0.0;
    }

    /// Nobody catches up, as that is too dear: what it takes is believed less and less, and measured again some day.
    pub fn doubt(&mut self) {
        self.each *= DOUBT;
    }

    /// What it would take to catch up with so many tokens.
    pub fn cost(&self, tokens: usize) -> f32 {
        tokens as f32 * self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purse_is_filled_by_all_time_and_bounded() {
        let mut purse = Purse::default();
        assert_eq!(purse.held(), 0.0);
        purse.fill(100.0, 100.0);
        assert_eq!(purse.held(), 300.6);
        purse.add(-10_000.0, 100.0);
        assert_eq!(purse.held(), -1200.0);
        (0..10_000).for_each(|_| purse.fill(100.0, 100.0));
        assert_eq!(purse.held(), 2000.0);
        purse.fill(10.0, 10.0);
        assert_eq!(purse.held(), 2000.0, "what it held is not lost with shorter steps");
    }

    #[test]
    fn what_was_bought_is_paid_by_and_by() {
        let mut late = CatchUp::default();
        late.bought(160.0, 80);
        assert_eq!((late.cost(10), late.pay(), late.pay()), (20.0, 10.0, 9.375));
        let rest: f32 = (0..200).map(|_| late.pay()).sum();
        assert!((rest - 140.625).abs() < 0.1, "{rest}");
        late.bought(100.0, 10);
        late.forgive();
        assert_eq!((late.pay(), late.cost(10) > 20.0), (0.0, true));
        assert_eq!(late.buy(10), late.cost(10), "what is not measured is owed as it was");
        assert!(late.pay() > 0.0);
        (0..200).for_each(|_| late.doubt());
        assert!(late.cost(10) < 1.0, "{}", late.cost(10));
    }
}
