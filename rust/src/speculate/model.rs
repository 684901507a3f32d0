//! How long a step takes: `plain + extra(draft tokens)`, or with a draft model `plain + drafting(iterations)`.
//!
//! ```text
//!  plain ──┬─ + extra(tokens)                                                drafts of the host
//!          └─ + drafting(iterations) + extra(tokens) - extra(usual tokens)   those of a draft model
//! ```
//!
//! Made from what was measured for about so many rows; O(buckets) to make, O(log buckets) to ask.

use super::cost::Fit;

/// The model of time for a number of rows.
pub(super) struct Model {
    pub plain: f32,
    pub extra: Fit,
    pub drafting: Fit,
    pub drafted: Fit,
    pub reached: usize,
    /// The least that a draft token takes.
    pub least: f32,
}

impl Model {
    pub fn time(&self, drafted: usize, iterations: usize) -> f32 {
        let extra = |drafted| self.extra.at(drafted).unwrap_or(0.0).max(self.least * drafted);
        let over = if iterations == 0 {
            extra(drafted as f32)
        } else {
            // Iterations and tokens mostly grow together, so that their costs cannot be told apart: what was
            // measured with so many iterations holds for the tokens that there were, and only the difference is
            // the host's to tell.
            let usual = self.drafted.at(iterations as f32).unwrap_or(0.0);
            self.drafting.at(iterations as f32).unwrap_or(0.0) + extra(drafted as f32) - extra(usual)
        };
        (self.plain + over).max(self.plain * 0.5)
    }

    /// Most draft tokens and iterations whose time the model may be asked for: what lies further out is reached
    /// step by step.
    pub fn reach(&self, rows: usize) -> (usize, usize) {
        ((2 * self.reached).max(rows / 4).max(4), (self.drafting.reach() * 2.0) as usize + 2)
    }
}
