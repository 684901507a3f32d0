//! Whether to speculate and how long: decided by measured time and acceptance, at worst as fast as not at all.
//!
//! The model of time, per number of rows: `plain(rows) + extra(draft tokens)`, or with a draft model
//! `plain(rows) + drafting(iterations)`. *Plain* is measured in steps that were planned without drafts, the others
//! in those planned with them, so that they hold what waiting for the last step's tokens costs.
//! Lengths come from it ([`super::lengths`]); the modes are drawn in [`super::level`].
//!
//! The model may be wrong, so what decides is what came out: a step with drafts *earns* the time that plain
//! steps would take for its tokens and *spends* its own. Off when it earns less than it spends. What trying may
//! lose is bounded by a purse that gets a little over a hundredth of all time. There is no clock and no chance in here:
//! the same observations lead to the same decisions. What does not pay with few sequences is not tried with more.
//! O(rows · drafts) a decision, no allocation.

use super::cost::Curve;
use super::lengths::{Choice, Chooser, Length, Offers};
use super::level::{CHECK, LEVELS, Level, Mode, check_interval, level};
use super::model::Model;

/// The part of all time that trying may lose.
const PURSE_SHARE: f32 = 0.0125;

/// Plain steps that the purse holds at the start, at most, and at least.
const PURSE: (f32, f32, f32) = (3.0, 20.0, -12.0);

/// Steps before a probe is repeated: the least, and the most.
const WAIT: (u64, u64) = (32, 4096);

/// Less than this over plain steps is not worth the trouble.
const WORTH: f32 = 1.01;

/// Plain steps that are measured before anything is tried.
const PLAIN_FIRST: usize = 3;

/// Plain steps' time that may be lost in a row before drafts are given up: a cumulative sum test (Page, 1954), quick
/// where much is lost and patient where little is.
const LOSS: f32 = 4.0;

/// Drafts pay for certain when the mean gain of a trial's steps is so many of its standard errors.
const CERTAIN: f32 = 1.65;

/// Steps of a trial before it may end well or badly, and after which it must.
const TRIAL: (u32, u32) = (8, 64);

/// Plain steps' time that a trial may lose.
const TRIAL_LOSS: f32 = 1.5;

/// A step that takes so many times as long as others counts no more than this.
const STALL: f32 = 2.0;

/// Steps over which is paid what it took the draft model to catch up with a sequence, and the most of it that one step
/// may leave to pay, in plain steps.
const PAID_IN: f32 = 16.0;
const LATE: f32 = 20.0;

/// The least part of the time of a row more that a draft token takes: less than what is measured is noise.
const ROW_SHARE: f32 = 0.5;

/// The least probability of what is sent along with a prompt is within these.
const LIKELY: (f32, f32) = (0.7, 0.98);

/// What a step that only decodes took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOutcome {
    /// Sequences in it.
    pub rows: usize,
    /// Draft tokens that were verified in it, of all rows.
    pub drafted: usize,
    /// How many of them were accepted.
    pub accepted: usize,
    /// Iterations of the device's draft model in it.
    pub device_iterations: usize,
    /// Tokens that the draft model computed besides, as it had not been asked for them before.
    pub caught_up: usize,
    /// Whether it was planned while [`active`](super::Speculator::active) held, with drafts or without.
    pub speculative: bool,
    /// From the step before it to it, as throughput sees it.
    pub duration_ns: u64,
}

/// When the model was so far off over the last few steps, it forgets what is older than `RECENT` steps.
const SURPRISE: f32 = 0.15;
const RECENT: u64 = 16;

/// Decides for the batch.
pub(super) struct Control {
    /// Some source can be judged only by trying it.
    blind: bool,
    plain: Curve,
    /// What plain steps took over what the model says of them, on average, each at most [`STALL`]: above 1 where
    /// something else holds up the machine, below where the model is too dear.
    held_up: f32,
    levels: Box<[Level]>,
    level: usize,
    /// Steps in a row that would belong to another level.
    elsewhere: u32,
    now: u64,
    purse: Option<f32>,
    /// What it took the draft model to catch up, as far as it is not paid yet, and of each token.
    debt: f32,
    catching_up: f32,
    last_speculative: bool,
    chooser: Chooser,
}

impl Control {
    /// `blind`: some source's acceptance and yield show only in steps with drafts.
    pub fn new(blind: bool) -> Self {
        Self {
            blind,
            plain: Curve::default(),
            held_up: 1.0,
            levels: (0..LEVELS).map(|_| Level::default()).collect(),
            level: 0,
            elsewhere: 0,
            now: 0,
            purse: None,
            debt: 0.0,
            catching_up: 0.0,
            last_speculative: false,
            chooser: Chooser::default(),
        }
    }

    /// Whether the next step should carry drafts.
    pub fn active(&self) -> bool {
        matches!(self.levels[self.level].mode, Mode::Probe | Mode::On)
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
        let Some(plain) = self.plain.fit(None, 0.0, self.now).at(rows as f32) else { return false };
        let saved = 1.0 - 1.0 / self.levels[self.level].promise.max(1.0);
        lacks as f32 * self.catching_up <= remaining * saved * plain / rows as f32
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
            let level = &mut self.levels[self.level];
            level.promise += 0.3 * (promise - level.promise);
            level.failed_promise += 0.02 * (1.0 - level.failed_promise);
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
        let fit = self.plain.fit(None, 0.0, self.now);
        let plain = fit.at(rows as f32).filter(|&plain| plain > 0.0 && rows > 0)?;
        let level = &self.levels[self.level];
        let more = fit.at(2.0 * rows as f32).unwrap_or(plain) - plain;
        // A token of a draft takes about as long as one of another row, but for the reading of its keys and values.
        let less = plain - fit.at(0.5 * rows as f32).unwrap_or(plain);
        let least = ROW_SHARE * less / (0.5 * rows as f32);
        // What is not known is taken for cheap, so that it is tried and measured.
        let slope = (more / rows as f32).max(plain / (16 * rows.max(16)) as f32);
        let drafting = level.drafting.fit(Some((0.0, 0.0)), 0.05 * plain, self.now);
        let drafted = level.drafted.fit(Some((0.0, 0.0)), 0.0, self.now);
        // Tokens cost no more than they did together with the draft model.
        let tokens = drafted.at(drafted.reach()).unwrap_or(0.0);
        let most = drafting.at(drafting.reach()).unwrap_or(0.0).max(0.0) / tokens;
        let slope = if tokens > 0.0 { slope.min(most) } else { slope };
        Some(Model {
            plain,
            extra: level.extra.fit(Some((0.0, 0.0)), slope, self.now),
            drafting,
            drafted,
            reached: level.reached,
            least,
        })
    }

    /// A step took so long.
    pub fn observe(&mut self, step: &StepOutcome) {
        if step.rows == 0 || step.duration_ns == 0 {
            return;
        }
        self.now += 1;
        self.move_to(level(step.rows));
        let time = step.duration_ns as f32;
        // The first step of a kind waits for one of the other kind, or overlaps with it.
        let settled = step.speculative == self.last_speculative;
        self.last_speculative = step.speculative;
        if !step.speculative && (settled || self.plain.measured(step.rows, self.now) == 0) {
            self.plain.observe(step.rows, time, self.now);
        }
        let Some(model) = self.model(step.rows) else { return };
        if !step.speculative && settled {
            self.held_up += 0.01 * ((time / model.plain).min(STALL) - self.held_up);
        }
        let purse = self.purse.unwrap_or(PURSE.0 * model.plain);
        self.earn(purse, PURSE_SHARE * time, model.plain);
        if step.speculative {
            self.judge(step, &model, settled);
        }
        self.turn(step, &model);
    }

    /// Adds to the purse, or takes from it. Its bounds grow with the step's time; what it held at another number of
    /// rows it keeps.
    fn earn(&mut self, purse: f32, more: f32, plain: f32) {
        let (least, most) = ((PURSE.2 * plain).min(purse), (PURSE.1 * plain).max(purse));
        self.purse = Some((purse + more).clamp(least, most));
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
            let mut guess = self.levels[from].clone();
            match guess.mode {
                Mode::Off => {}
                // What pays with some sequences need not with more: their tokens are dearer.
                _ if level > from => guess.mode = Mode::Off,
                _ => guess.begin(),
            }
            self.levels[level] = guess;
        }
        self.levels[level].visited = true;
    }

    /// What a step with drafts earned and spent.
    fn judge(&mut self, step: &StepOutcome, model: &Model, settled: bool) {
        let time = step.duration_ns as f32;
        let now = self.now;
        let level = &mut self.levels[self.level];
        let expected = model.time(step.drafted, step.device_iterations);
        // One step that took far too long says nothing of others like it; the second in a row does.
        let stalled = time > STALL * expected.max(model.plain);
        let late = step.caught_up > 2 * step.rows;
        let credible = settled && !late && (!stalled || level.stalled);
        level.stalled = stalled && !late;
        if credible {
            let over = time - model.plain;
            level.reached = level.reached.max(step.drafted);
            level.surprise += 0.3 * ((time / expected).min(2.0) - 1.0 - level.surprise);
            if level.surprise.abs() > SURPRISE {
                // The device does other work than before: what was measured then says little.
                level.surprise = 0.0;
                for curve in [&mut level.extra, &mut level.drafting, &mut level.drafted] {
                    curve.forget_older(RECENT, now);
                }
            }
            if step.device_iterations == 0 {
                level.extra.observe(step.drafted, over, now);
            } else {
                level.drafting.observe(step.device_iterations, over, now);
                level.drafted.observe(step.device_iterations, step.drafted as f32, now);
            }
        }
        // What stalls the machine now and then is no fault of the drafts, and plain steps would be stalled as often.
        // To catch up is an investment, which is paid off by and by.
        let over = (time - expected).clamp(0.0, LATE * model.plain);
        let own = if late { expected } else { time.min(STALL * expected.max(model.plain)) };
        if late {
            self.debt += over;
            let each = over / step.caught_up as f32;
            self.catching_up += if self.catching_up > 0.0 { 0.2 } else { 1.0 } * (each - self.catching_up);
        }
        let paid = self.debt / PAID_IN;
        self.debt -= paid;
        let spent = own + paid;
        let plain = model.plain * self.held_up;
        let earned = (step.rows + step.accepted) as f32 / step.rows as f32 * plain;
        level.fast.add(earned, spent, plain, 0.95);
        level.slow.add(earned, spent, plain, 0.99);
        level.trial.add((earned - spent) / plain);
        // What it took to catch up is not lost yet.
        level.lost = (level.lost + own - earned).max(0.0);
        level.drafts += step.drafted;
        level.steps += 1;
        // What was bought is paid at once, whatever becomes of it. The gains are of the last steps together, as far as
        // drafts can have brought them: a machine that has become faster would fill the purse otherwise.
        let bought = if late { over } else { 0.0 };
        let gained = (earned - own).min((level.fast.ratio() - 1.0) * own);
        self.earn(self.purse.unwrap_or(0.0), gained - bought, model.plain);
    }

    /// Changes the mode if it is time.
    fn turn(&mut self, step: &StepOutcome, model: &Model) {
        let (now, purse) = (self.now, self.purse.unwrap_or(0.0));
        let measured = self.plain.measured(step.rows, now);
        let level = &mut self.levels[self.level];
        let (fast, slow, trial) = (level.fast.ratio(), level.slow.ratio(), level.trial);
        let losing = level.lost > LOSS * model.plain;
        let fails = match level.mode {
            Mode::Off => {
                let due = now >= level.next_probe && (self.blind || level.promise >= WORTH);
                // A better promise than the one that was not kept need not wait.
                let promising = level.promise >= 1.03
                    && level.promise > 1.08 * level.failed_promise
                    && now + level.wait >= level.next_probe + WAIT.0.min(level.wait) / 2;
                if measured >= PLAIN_FIRST && purse > 0.0 && (due || promising) {
                    level.begin();
                    self.debt = 0.0;
                }
                false
            }
            Mode::Probe if step.speculative => {
                let pays = fast >= 1.03 && trial.certainty() >= CERTAIN;
                if level.steps >= TRIAL.0 && (pays || (level.steps >= TRIAL.1 && slow >= WORTH)) {
                    (level.mode, level.proven) = (Mode::On, true);
                }
                let certain = level.steps >= TRIAL.0 / 2 && trial.certainty() < -1.0;
                losing
                    || (trial.gain < -TRIAL_LOSS && certain)
                    || (level.steps >= TRIAL.0 && level.drafts == 0)
                    || (level.steps >= TRIAL.0
                        && trial.mean() < -0.03
                        && (certain || level.steps >= 2 * TRIAL.0))
                    || (level.steps >= TRIAL.1 && slow < WORTH)
            }
            Mode::On if step.speculative => {
                level.checked += 1;
                if level.checked as f32 > check_interval(slow) {
                    level.checked = 0;
                    level.mode = Mode::Check { left: CHECK };
                }
                if level.steps > 128 {
                    level.wait = 0;
                }
                let idle = slow < 1.0 || (slow < 1.02 && level.promise < WORTH);
                let lost = losing && (fast < 1.0 || level.lost > 5.0 * LOSS * model.plain);
                lost || (fast < 1.0 && purse < 0.0) || (level.steps >= TRIAL.1 / 2 && idle)
            }
            Mode::Check { left: 0 } => {
                level.mode = if level.proven { Mode::On } else { Mode::Probe };
                false
            }
            Mode::Check { left } if !step.speculative => {
                level.mode = Mode::Check { left: left - 1 };
                false
            }
            _ => false,
        };
        if fails {
            self.fail();
        } else if self.active() && measured == 0 {
            // What plain steps would take is a guess.
            self.levels[self.level].mode = Mode::Check { left: CHECK / 2 };
        }
    }

    /// Off, and for twice as long as last time; with more sequences too, as their tokens are dearer.
    fn fail(&mut self) {
        let now = self.now;
        let level = &mut self.levels[self.level];
        level.mode = Mode::Off;
        level.wait = (2 * level.wait).clamp(WAIT.0, WAIT.1);
        if level.drafts == 0 && level.promise >= WORTH {
            // Nobody had a draft just then.
            level.wait = level.wait.min(4 * WAIT.0);
            level.next_probe = now + level.wait;
            return;
        }
        let (wait, next_probe) = (level.wait, now + level.wait);
        for level in &mut self.levels[self.level..] {
            if matches!(level.mode, Mode::Off | Mode::Probe) {
                level.mode = Mode::Off;
                level.wait = level.wait.max(wait);
                level.next_probe = level.next_probe.max(next_probe);
                level.failed_promise = level.failed_promise.max(level.promise).max(1.0);
            }
        }
    }
}
