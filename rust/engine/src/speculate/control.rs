//! Whether to speculate and how long: decided by measured time and acceptance, at worst as fast as not at all.
//!
//! ```text
//!  measured step ─► observe ─┬─ plain: Curve of plain steps ──────────┐
//!                            └─ with drafts: DraftCosts, Results      ├─► Model of time ─► lengths ─► rows
//!                                    │                                │        └─► promise
//!  Purse, CatchUp ───────────────────┴─► Level: off, probe, on, check ┘
//! ```
//!
//! Two things are decided. *How long* drafts are follows from a model of time ([`super::model`]), by number of rows:
//! the lengths with the most expected tokens a second ([`super::lengths`]). *Plain* steps are those planned without
//! drafts; the others hold what waiting for the last step's tokens costs.
//!
//! *Whether* there are any is not left to the model, which may be wrong: what decides is what came out. A step with
//! drafts *earns* the time that plain steps would take for its tokens and *spends* its own ([`super::trial`]). Drafts
//! are off where they earn less than they spend ([`super::level`]), and what trying may lose is bounded
//! ([`super::purse`]). Of steps whose time holds more than the step it is only known what they should have taken: there
//! nothing is tried. What does not pay with few sequences is not tried with more. There is no clock and no chance in
//! here: the same observations lead to the same decisions. O(rows · drafts) a decision, no allocation.

use super::cost::{Curve, Fit};
use super::lengths::{Choice, Chooser, Length, Offers};
use super::level::{Circumstances, LEVELS, Level, Mode, Turn, level};
use super::model::{Model, STALL};
use super::outcome::StepOutcome;
use super::purse::{CatchUp, Purse};
use super::trial::Brought;

/// The most of what it took the draft model to catch up that one step may leave to pay, in plain steps.
const LATE: f32 = 20.0;

/// Steps after which the line through plain steps' times is drawn anew; with each where fewer were measured.
const REFIT: u64 = 8;
const SURE: usize = 8;

/// Steps in a row that may carry drafts without their time being known.
const UNJUDGED: u32 = 64;

/// The least probability of what is sent along with a prompt is within these.
const LIKELY: (f32, f32) = (0.7, 0.98);

/// Decides for the batch.
pub(super) struct Control {
    /// Some source can be judged only by trying it.
    blind: bool,
    plain: Curve,
    /// The line through it, as it was within the last `REFIT` steps.
    fit: Fit,
    /// What plain steps took over what the model says of them, on average, each at most [`STALL`]: above 1 where
    /// something else holds up the machine, below where the model is too dear.
    held_up: f32,
    levels: Box<[Level]>,
    /// Of the rows that steps have now, in `levels`.
    level: usize,
    /// Steps in a row that would belong to another level.
    elsewhere: u32,
    now: u64,
    /// Steps in a row whose time is not known.
    unmeasured: u32,
    purse: Purse,
    catch_up: CatchUp,
    last_speculative: bool,
    chooser: Chooser,
}

impl Control {
    /// `blind`: some source's acceptance and yield show only in steps with drafts.
    pub fn new(blind: bool) -> Self {
        Self {
            blind,
            plain: Curve::default(),
            fit: Curve::default().fit(None, 0.0, 0),
            held_up: 1.0,
            levels: (0..LEVELS).map(|_| Level::default()).collect(),
            level: 0,
            elsewhere: 0,
            now: 0,
            unmeasured: 0,
            purse: Purse::default(),
            catch_up: CatchUp::default(),
            last_speculative: false,
            chooser: Chooser::default(),
        }
    }

    /// Whether steps carry drafts.
    pub fn active(&self) -> bool {
        self.levels[self.level].active()
    }

    /// Whether the next step should carry drafts; `measured` says that its time will be known. What has not proven
    /// itself is tried only where it is judged, and what has goes on without for a while.
    pub fn wants_drafts(&self, measured: bool) -> bool {
        let level = &self.levels[self.level];
        level.active() && (measured || (level.mode == Mode::On && self.unmeasured < UNJUDGED))
    }

    /// Whether it is time to tell what drafts would bring, with [`promise`](Self::promise).
    pub fn wants_promise(&self) -> bool {
        self.levels[self.level].mode == Mode::Off && self.now.is_multiple_of(8)
    }

    /// Gains of drafts that are not sent, so that it is seen when they would pay.
    pub fn promise(&mut self, offers: &Offers) {
        let best = self.best(offers);
        self.note_promise(offers.rows(), best);
    }

    /// Whether it pays that the draft model catches up with `lacks` tokens of one of `rows` sequences, of which some
    /// `remaining` are yet to come.
    pub fn pays_to_catch_up(&self, rows: usize, lacks: usize, remaining: f32) -> bool {
        let Some(plain) = self.fit.at(rows as f32) else { return false };
        let saved = 1.0 - 1.0 / self.levels[self.level].promise.max(1.0);
        self.catch_up.cost(lacks) <= remaining * saved * plain / rows as f32
    }

    /// The least probability that makes a draft token worth its time beside a prompt, where each token costs as much.
    pub fn likely(&self, rows: usize) -> f32 {
        self.model(rows).filter(|model| model.reached > 0).map_or(LIKELY.1, |model| {
            let token = (model.time(rows, 0) - model.plain) / rows as f32;
            (1.05 * token * rows as f32 / model.plain).clamp(LIKELY.0, LIKELY.1)
        })
    }

    /// The lengths of a step with these drafts, in the order of its rows.
    pub fn plan(&mut self, offers: &Offers, lengths: &mut Vec<Length>) -> Choice {
        let best = self.best(offers);
        self.note_promise(offers.rows(), best);
        self.assign(best, offers, lengths)
    }

    /// The same where the draft model cannot draft for all that it usually could: that says nothing of what it is
    /// worth.
    pub fn plan_late(&mut self, offers: &Offers, lengths: &mut Vec<Length>) -> Choice {
        if offers.iterations() == 0 {
            self.catch_up.doubt();
        }
        let best = self.best(offers);
        self.assign(best, offers, lengths)
    }

    fn assign(&mut self, mut best: Option<Choice>, offers: &Offers, lengths: &mut Vec<Length>) -> Choice {
        if let Some(choice) = best
            && choice.tokens == 0
            && self.levels[self.level].mode == Mode::Probe
            && let Some(model) = self.model(offers.rows())
        {
            // Nothing is learned from a probe without drafts, unless they would be far off.
            let most = model.reach(offers.rows()).0;
            let tried = self.chooser.choose(offers, 0, 1, most, |drafted| model.time(drafted, 0));
            best = Some(if tried.rate > 0.9 * choice.rate { tried } else { choice });
        }
        let choice = best.unwrap_or_default();
        Chooser::assign(offers, &choice, lengths);
        choice
    }

    fn note_promise(&mut self, rows: usize, best: Option<Choice>) {
        if let (Some(best), Some(model)) = (best, self.model(rows)) {
            let promise = best.rate * model.plain / rows as f32;
            self.levels[self.level].note_promise(promise);
        }
    }

    /// The best lengths that the model knows.
    fn best(&mut self, offers: &Offers) -> Option<Choice> {
        let rows = offers.rows();
        let model = self.model(rows)?;
        let (most, iterations) = model.reach(rows);
        let most_iterations = iterations.min(offers.iterations());
        // All would be too many each step: those near the last best, and one after the other of the rest.
        let last = self.levels[self.level].iterations.min(most_iterations);
        let other = self.now as usize % (most_iterations + 1);
        let tried = [0, other, last.saturating_sub(1), last, (last + 1).min(most_iterations)];
        let mut best: Option<Choice> = None;
        for (at, &iterations) in tried.iter().enumerate() {
            if tried[..at].contains(&iterations) {
                continue;
            }
            let time = |drafted| model.time(drafted, iterations);
            let choice = self.chooser.choose(offers, iterations, 0, most, time);
            if best.is_none_or(|best| choice.rate > best.rate) {
                best = Some(choice);
            }
        }
        self.levels[self.level].iterations = best.map_or(0, |best| best.iterations);
        best
    }

    fn model(&self, rows: usize) -> Option<Model> {
        self.levels[self.level].costs.model(&self.fit, rows, self.now)
    }

    /// A step took so long.
    pub fn observe(&mut self, step: &StepOutcome) {
        if step.rows == 0 {
            return;
        }
        self.move_to(level(step.rows));
        // The first step of a kind waits for one of the other kind, or overlaps with it.
        let settled = step.speculative == self.last_speculative;
        self.last_speculative = step.speculative;
        if step.duration_ns == 0 {
            self.unmeasured = self.unmeasured.saturating_add(1);
            if step.speculative
                && let Some(model) = self.model(step.rows)
            {
                self.judge(step, &model);
            }
            return;
        }
        (self.now, self.unmeasured) = (self.now + 1, 0);
        let time = step.duration_ns as f32;
        if !step.speculative && (settled || self.plain.measured(step.rows, self.now) == 0) {
            self.plain.observe(step.rows, time, self.now);
        }
        let measured = self.plain.measured(step.rows, self.now);
        if measured < SURE || self.now.is_multiple_of(REFIT) {
            self.fit = self.plain.fit(None, 0.0, self.now);
        }
        let Some(plain) = self.fit.at(step.rows as f32).filter(|&plain| plain > 0.0) else { return };
        if !step.speculative && settled {
            self.held_up += 0.01 * ((time / plain).min(STALL) - self.held_up);
        }
        self.purse.fill(time, plain);
        if step.speculative
            && let Some(model) = self.model(step.rows)
        {
            self.levels[self.level].costs.observe(step, &model, settled, self.now);
            self.judge(step, &model);
        }
        self.turn(step, plain, measured);
    }

    /// The level follows the rows, but not each to and fro at a border.
    fn move_to(&mut self, level: usize) {
        let near = level.abs_diff(self.level) <= 1;
        self.elsewhere = if level == self.level { 0 } else { self.elsewhere + 1 };
        if level == self.level || (near && self.elsewhere < 4 && self.levels[self.level].visited) {
            self.levels[self.level].visited = true;
            return;
        }
        self.elsewhere = 0;
        let from = std::mem::replace(&mut self.level, level);
        if !self.levels[level].visited && self.levels[from].visited && from.abs_diff(level) <= 2 {
            // What is nearly so is the best guess.
            self.levels[level] = self.levels[from].guess(level > from);
        }
        self.levels[level].visited = true;
    }

    /// What a step with drafts earned and spent. Where its time is not known, it spent what is expected.
    fn judge(&mut self, step: &StepOutcome, model: &Model) {
        let level = &mut self.levels[self.level];
        let (time, plain) = (step.duration_ns as f32, model.plain);
        let expected = model.time(step.drafted, step.device_iterations);
        // To catch up is an investment, which is paid off by and by.
        let bought = match (step.catches_up(), step.duration_ns) {
            (false, _) => 0.0,
            (true, 0) => self.catch_up.buy(step.caught_up),
            (true, _) => self.catch_up.bought((time - expected).clamp(0.0, LATE * plain), step.caught_up),
        };
        // What stalls the machine now and then is no fault of the drafts, and plain steps would be stalled as often.
        let known = step.duration_ns > 0 && !step.catches_up();
        let own = if known { time.min(STALL * expected.max(plain)) } else { expected };
        let plain_now = plain * self.held_up;
        let earned = (step.rows + step.accepted) as f32 / step.rows as f32 * plain_now;
        let spent = own + self.catch_up.pay();
        level.results.add(Brought { earned, own, spent, plain: plain_now }, step.drafted);
        // In a trial what was bought is paid from the purse at once, whatever becomes of it. The gains are of the last
        // steps together, as far as drafts can have brought them: a machine that has become faster would fill it
        // otherwise.
        let gained = (earned - own).min((level.results.fast.ratio() - 1.0) * own);
        let paid = if level.mode == Mode::Probe { bought } else { 0.0 };
        self.purse.add(gained - paid, plain);
    }

    /// Changes the mode if it is time.
    fn turn(&mut self, step: &StepOutcome, plain: f32, measured: usize) {
        let turn = self.levels[self.level].turn(Circumstances {
            now: self.now,
            speculative: step.speculative,
            drafted: step.drafted,
            plain,
            measured,
            purse: self.purse.held(),
            blind: self.blind,
        });
        match turn {
            Turn::Begun => self.catch_up.forgive(),
            // With more sequences too, as their tokens are dearer.
            Turn::Failed => {
                if let Some((wait, until)) = self.levels[self.level].fail(self.now) {
                    self.levels[self.level..].iter_mut().for_each(|level| level.keep_off(wait, until));
                }
            }
            Turn::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(drafted: usize, accepted: usize, speculative: bool, duration_ns: u64) -> StepOutcome {
        StepOutcome {
            rows: 1,
            drafted,
            accepted,
            device_iterations: 0,
            caught_up: 0,
            speculative,
            duration_ns,
        }
    }

    /// Steps until the mode is another than before.
    fn until_another_mode(control: &mut Control, step: StepOutcome) {
        let before = control.levels[1].mode;
        let steps = (0..1000).take_while(|_| {
            control.observe(&step);
            control.levels[1].mode == before
        });
        assert!(steps.count() < 999, "{before:?} for ever");
    }

    #[test]
    fn nothing_is_tried_where_no_time_is_told() {
        let mut control = Control::new(true);
        until_another_mode(&mut control, step(0, 0, false, 100));
        assert_eq!(control.levels[1].mode, Mode::Probe);
        assert!(control.wants_drafts(true) && !control.wants_drafts(false));
        until_another_mode(&mut control, step(4, 4, true, 150));
        assert_eq!(control.levels[1].mode, Mode::On);
        assert!(control.wants_drafts(true) && control.wants_drafts(false));
        // It goes on for a while, and then only where it is judged.
        (0..UNJUDGED).for_each(|_| control.observe(&step(4, 4, true, 0)));
        assert!(control.wants_drafts(true) && !control.wants_drafts(false));
        control.observe(&step(4, 4, true, 150));
        assert!(control.wants_drafts(false));
    }

    #[test]
    fn steps_without_a_time_measure_nothing_and_owe_what_they_should_have_taken() {
        let mut control = Control::new(true);
        until_another_mode(&mut control, step(0, 0, false, 100));
        control.observe(&StepOutcome { device_iterations: 4, caught_up: 20, ..step(4, 4, true, 350) });
        let (now, plain) = (control.now, control.fit.at(1.0));
        assert!(control.catch_up.cost(20) > 0.0);
        let owed = control.catch_up.clone();
        control.observe(&StepOutcome { device_iterations: 4, caught_up: 20, ..step(4, 4, true, 0) });
        assert_eq!((control.now, control.fit.at(1.0)), (now, plain));
        assert_eq!(control.catch_up.cost(20), owed.cost(20), "nothing was measured");
        assert!(control.catch_up.pay() > owed.clone().pay(), "and more is owed");
    }
}
