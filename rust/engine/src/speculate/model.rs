//! How long a step takes: `plain + extra(draft tokens)`, or with a draft model `plain + drafting(iterations)`.
//!
//! ```text
//!  plain ──┬─ + extra(tokens)                                                drafts of the host
//!          └─ + drafting(iterations) + extra(tokens) - extra(usual tokens)   those of a draft model
//! ```
//!
//! Made from what was measured for about so many rows; O(buckets) to make, O(log buckets) to ask.

use super::cost::{Curve, Fit};
use super::outcome::StepOutcome;

/// A step that takes so many times as long as others counts no more than this.
pub(super) const STALL: f32 = 2.0;

/// The least part of the time of a row more that a draft token takes: less than what is measured is noise.
const ROW_SHARE: f32 = 0.5;

/// When the model was so far off over the last few steps, it forgets what is older than `RECENT` steps.
const SURPRISE: f32 = 0.15;
const RECENT: u64 = 16;

/// What was measured of steps with drafts, for about so many rows.
#[derive(Debug, Clone, Default)]
pub(super) struct DraftCosts {
    /// Time of a step with drafts of the host over a plain one, by draft tokens.
    extra: Curve,
    /// The same with the draft model, by its iterations, and how many draft tokens there were.
    drafting: Curve,
    drafted: Curve,
    /// Most draft tokens whose time was measured.
    reached: usize,
    /// Whether the last step took far longer than the model said.
    stalled: bool,
    /// How much longer steps took than the model said, of the last few.
    surprise: f32,
}

impl DraftCosts {
    /// A step with drafts took so long. The time of one that is not `settled` (the first of its kind) or in which the
    /// draft model had to catch up is not that of others like it.
    pub fn observe(&mut self, step: &StepOutcome, model: &Model, settled: bool, now: u64) {
        let time = step.duration_ns as f32;
        let expected = model.time(step.drafted, step.device_iterations);
        // One step that took far too long says nothing of others like it; the second in a row does.
        let stalled = time > STALL * expected.max(model.plain);
        let late = step.catches_up();
        let credible = settled && !late && (!stalled || self.stalled);
        self.stalled = stalled && !late;
        if !credible {
            return;
        }
        self.reached = self.reached.max(step.drafted);
        self.surprise += 0.3 * ((time / expected).min(2.0) - 1.0 - self.surprise);
        if self.surprise.abs() > SURPRISE {
            // The device does other work than before: what was measured then says little.
            self.surprise = 0.0;
            for curve in [&mut self.extra, &mut self.drafting, &mut self.drafted] {
                curve.forget_older(RECENT, now);
            }
        }
        let over = time - model.plain;
        if step.device_iterations == 0 {
            self.extra.observe(step.drafted, over, now);
        } else {
            self.drafting.observe(step.device_iterations, over, now);
            self.drafted.observe(step.device_iterations, step.drafted as f32, now);
        }
    }

    /// The model for exactly `rows`, of which `plain_steps` says what they take without drafts; None if that is not known.
    pub fn model(&self, plain_steps: &Fit, rows: usize, now: u64) -> Option<Model> {
        let plain = plain_steps.at(rows as f32).filter(|&plain| plain > 0.0 && rows > 0)?;
        let more = plain_steps.at(2.0 * rows as f32).unwrap_or(plain) - plain;
        // A token of a draft takes about as long as one of another row, but for the reading of its keys and values.
        let less = plain - plain_steps.at(0.5 * rows as f32).unwrap_or(plain);
        let least = ROW_SHARE * less / (0.5 * rows as f32);
        // What is not known is taken for cheap, so that it is tried and measured.
        let slope = (more / rows as f32).max(plain / (16 * rows.max(16)) as f32);
        let drafting = self.drafting.fit(Some((0.0, 0.0)), 0.05 * plain, now);
        let drafted = self.drafted.fit(Some((0.0, 0.0)), 0.0, now);
        // Tokens cost no more than they did together with the draft model.
        let tokens = drafted.at(drafted.reach()).unwrap_or(0.0);
        let most = drafting.at(drafting.reach()).unwrap_or(0.0).max(0.0) / tokens;
        let slope = if tokens > 0.0 { slope.min(most) } else { slope };
        let extra = self.extra.fit(Some((0.0, 0.0)), slope, now);
        Some(Model { plain, extra, drafting, drafted, reached: self.reached, least })
    }
}

/// The model of time for a number of rows, in nanoseconds.
pub(super) struct Model {
    pub plain: f32,
    extra: Fit,
    drafting: Fit,
    drafted: Fit,
    /// Most draft tokens whose time was measured; 0 if none was.
    pub reached: usize,
    /// The least that a draft token takes.
    least: f32,
}

impl Model {
    /// Of a step with so many draft tokens, `iterations` of the draft model among them.
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
        ((2 * self.reached).max(rows / 2).max(4), (self.drafting.reach() * 2.0) as usize + 2)
    }
}
