//! Whether to speculate and how long: decided by measured time and acceptance, at worst as fast as not at all.
//!
//! ```text
//!            next probe due,                  pays
//!   ┌─ Off ─ or drafts promise ──► Probe ──────────────► On ◄──────── 4 plain steps ─┐
//!   └───◄── does not pay: wait twice as long ─┴─◄────────┴─┴── now and then ► Check ─┘
//! ```
//!
//! The model of time, per number of rows: `plain(rows) + extra(draft tokens)`, or with a draft model
//! `plain(rows) + drafting(iterations)`. *Plain* is measured in steps that were planned without drafts, the others
//! in those planned with them, so that they hold what waiting for the last step's tokens costs. Lengths come from it ([`super::lengths`]).
//!
//! The model may be wrong, so what decides is what came out: a step with drafts *earns* the time that plain
//! steps would take for its tokens and *spends* its own. Off when it earns less than it spends. What trying may
//! lose is bounded by a purse that gets a hundredth of all time. There is no clock and no chance in here:
//! the same observations lead to the same decisions. O(rows · drafts) a decision, no allocation.

use super::cost::{Curve, Fit};
use super::lengths::{Choice, Chooser, Length, Offers};

/// The part of all time that trying may lose.
const PURSE_SHARE: f32 = 0.01;

/// Plain steps that the purse holds at the start, at most, and at least.
const PURSE: (f32, f32, f32) = (6.0, 30.0, -20.0);

/// Steps before a probe is repeated: the least, and the most.
const WAIT: (u64, u64) = (32, 4096);

/// Less than this over plain steps is not worth the trouble.
const WORTH: f32 = 1.01;

/// Plain steps that are measured before anything is tried.
const PLAIN_FIRST: usize = 3;

/// Plain steps' time that may be lost in a row before drafts are given up: a cumulative sum test (Page, 1954), quick
/// where much is lost and patient where little is.
const LOSS: f32 = 5.0;

/// A step that takes so many times as long as others counts no more than this.
const STALL: f32 = 2.0;

/// Steps over which is paid what it took the draft model to catch up with a sequence, and the most of it that one step
/// may leave to pay, in plain steps.
const PAID_IN: f32 = 16.0;
const LATE: f32 = 50.0;

/// Plain steps of a check.
const CHECK: u32 = 4;

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

/// Numbers of rows that are told apart: up to 4 each its own, then two an octave.
const LEVELS: usize = 30;

fn level(rows: usize) -> usize {
    if rows <= 4 {
        return rows;
    }
    let octave = rows.ilog2() as usize;
    (1 + 2 * octave + ((rows >> (octave - 1)) & 1)).min(LEVELS - 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Off,
    Probe,
    On,
    /// Plain steps to see whether they would be faster by now.
    Check {
        left: u32,
    },
}

/// Sums that forget: what was earned against what was spent.
#[derive(Debug, Clone, Copy, Default)]
struct Balance {
    earned: f32,
    spent: f32,
}

impl Balance {
    fn add(&mut self, earned: f32, spent: f32, keep: f32) {
        self.earned = self.earned * keep + earned;
        self.spent = self.spent * keep + spent;
    }

    fn ratio(self) -> f32 {
        if self.spent > 0.0 { self.earned / self.spent } else { 1.0 }
    }
}

/// What is known for about so many rows.
#[derive(Debug, Clone, Default)]
struct Level {
    visited: bool,
    mode: Mode,
    /// Steps with drafts since the last change to [`Mode::Probe`].
    steps: u32,
    checked: u32,
    /// Over some 20 and some 100 steps.
    fast: Balance,
    slow: Balance,
    /// What was lost since things last went well.
    lost: f32,
    /// What it took the draft model to catch up, as far as it is not paid yet.
    debt: f32,
    wait: u64,
    next_probe: u64,
    /// Throughput with drafts over that without, as the model expects it; and what it was when a probe failed.
    promise: f32,
    failed_promise: f32,
    /// Time of a step with drafts of the host over a plain one, by draft tokens.
    extra: Curve,
    /// The same with the draft model, by its iterations, and how many draft tokens there were.
    drafting: Curve,
    drafted: Curve,
    /// Whether the last step took far longer than the model said.
    stalled: bool,
    /// How much longer steps took than the model said, of the last few.
    surprise: f32,
    /// Most draft tokens whose time was measured.
    reached: usize,
    /// Of the draft model, in the last best lengths.
    iterations: usize,
}

/// The model of time for a number of rows.
struct Model {
    plain: f32,
    extra: Fit,
    drafting: Fit,
    drafted: Fit,
    reached: usize,
}

impl Model {
    fn time(&self, drafted: usize, iterations: usize) -> f32 {
        let extra = |drafted| self.extra.at(drafted).unwrap_or(0.0);
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
    fn reach(&self, rows: usize) -> (usize, usize) {
        ((2 * self.reached).max(rows).max(4), (self.drafting.reach() * 2.0) as usize + 2)
    }
}

/// Decides for the batch.
pub(super) struct Control {
    /// Some source can be judged only by trying it.
    blind: bool,
    plain: Curve,
    /// Mean over median of plain steps, within [`STALL`]: what else holds up the machine.
    held_up: f32,
    levels: Box<[Level]>,
    level: usize,
    /// Steps in a row that would belong to another level.
    elsewhere: u32,
    now: u64,
    purse: Option<f32>,
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

    /// The lengths of a step with these drafts, in the order of its rows.
    pub fn plan(&mut self, offers: &Offers, lengths: &mut Vec<Length>) -> Choice {
        let mut best = self.best(offers);
        self.note_promise(offers.rows(), best);
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
        let purse = self.purse.unwrap_or(PURSE.0 * model.plain) + PURSE_SHARE * time;
        self.purse = Some(purse.min(PURSE.1 * model.plain));
        if step.speculative {
            self.judge(step, &model, settled);
        }
        self.turn(step, &model);
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
                Mode::Off => (guess.wait, guess.next_probe) = (0, self.now + WAIT.0),
                _ => guess.mode = Mode::Check { left: CHECK },
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
        if late {
            level.debt += (time - expected).clamp(0.0, LATE * model.plain);
        }
        let paid = level.debt / PAID_IN;
        level.debt -= paid;
        let spent = paid + if late { expected } else { time.min(STALL * expected.max(model.plain)) };
        let plain = model.plain * self.held_up.max(1.0);
        let earned = (step.rows + step.accepted) as f32 / step.rows as f32 * plain;
        level.fast.add(earned, spent, 0.95);
        level.slow.add(earned, spent, 0.99);
        level.lost = (level.lost + spent - earned).max(0.0);
        level.steps += 1;
        let purse = self.purse.unwrap_or(0.0) + earned - spent;
        self.purse = Some(purse.clamp(PURSE.2 * model.plain, PURSE.1 * model.plain));
    }

    /// Changes the mode if it is time.
    fn turn(&mut self, step: &StepOutcome, model: &Model) {
        let (now, purse) = (self.now, self.purse.unwrap_or(0.0));
        let measured = self.plain.measured(step.rows, now);
        let level = &mut self.levels[self.level];
        let (fast, slow) = (level.fast.ratio(), level.slow.ratio());
        let losing = level.lost > LOSS * model.plain;
        match level.mode {
            Mode::Off => {
                let due = now >= level.next_probe && (self.blind || level.promise >= WORTH);
                // A better promise than the one that was not kept need not wait.
                let promising = level.promise >= 1.03
                    && level.promise > 1.08 * level.failed_promise
                    && now + level.wait >= level.next_probe + WAIT.0.min(level.wait) / 2;
                if measured >= PLAIN_FIRST && purse > 0.0 && (due || promising) {
                    level.mode = Mode::Probe;
                    (level.steps, level.lost) = (0, 0.0);
                    (level.fast, level.slow) = Default::default();
                }
            }
            Mode::Probe if !step.speculative => {}
            Mode::Probe => match level.steps {
                _ if losing => level.fail(now),
                8.. if fast >= 1.03 => level.mode = Mode::On,
                8.. if fast < 0.97 => level.fail(now),
                24.. if slow >= WORTH => level.mode = Mode::On,
                24.. => level.fail(now),
                _ => {}
            },
            Mode::On if !step.speculative => {}
            Mode::On => {
                level.checked += 1;
                let idle = slow < 1.0 || (slow < 1.02 && level.promise < WORTH);
                if losing || (level.steps >= 64 && idle) || (purse < 0.0 && fast < 1.0) {
                    level.fail(now);
                } else if level.checked as f32 > check_interval(slow) {
                    level.checked = 0;
                    level.mode = Mode::Check { left: CHECK };
                }
                if level.steps > 128 {
                    level.wait = 0;
                }
            }
            Mode::Check { left: 0 } => level.mode = Mode::On,
            Mode::Check { left } if !step.speculative => level.mode = Mode::Check { left: left - 1 },
            Mode::Check { .. } => {}
        }
    }
}

/// Steps between two checks, so that what they lose is half a percent.
fn check_interval(ratio: f32) -> f32 {
    let lost = CHECK as f32 * (1.0 - 1.0 / ratio.max(1.0));
    (lost / 0.005).clamp(64.0, 1024.0)
}

impl Level {
    /// Off, and for twice as long as last time.
    fn fail(&mut self, now: u64) {
        self.mode = Mode::Off;
        self.wait = (2 * self.wait).clamp(WAIT.0, WAIT.1);
        self.next_probe = now + self.wait;
        self.failed_promise = self.promise.max(1.0);
    }
}
