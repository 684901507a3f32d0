//! Decides whether steps carry drafts and how long those are: never noticeably slower than without drafts.
//!
//! ```text
//!  what the device reports ─► Times: a step's time by rows, prompts, draft tokens, iterations ─► lengths with the most
//!                               │                                                             expected tokens a second
//!                               └─► gain = tokens per row - time / time of a plain step ─► credit, budget ─► on or off
//!
//!   off ── worth trying, wait over, budget > 0 ──► on ◄── every CHECK_EVERY steps ──► a few plain steps (check)
//!    └◄─────────── credit used up: wait twice as long ───────────┘
//! ```
//!
//! The unit of gains is a *plain* step, one that was planned without drafts. Batches are grouped by the power of
//! two above their rows. Each such bucket has a *credit*: drafts begin with `TRIAL_CREDIT`, every step with drafts
//! adds its gain less `MARGIN`, and drafts stop where none is left. What all trials may lose together is a *budget* of
//! `BUDGET_SHARE` of all time. The model of time only proposes; what steps really gained decides. There is no clock
//! and no chance in here: the same observations lead to the same decisions. O(rows · drafts) a decision.

mod catch_up;
mod curve;
mod lengths;
mod recent;
#[cfg(test)]
mod tests;
mod times;

pub(super) use times::Batch;

use super::offers::{Length, Offers};
use super::outcome::StepOutcome;
use catch_up::CatchUp;
use lengths::{Decision, assign, decide};
use times::{BUCKETS, Times, bucket};

/// The part of all time that drafts may lose; plain steps of it at the start, and at most.
const BUDGET_SHARE: f32 = 0.006;
const BUDGET: (f32, f32) = (3.0, 20.0);

/// Plain steps that drafts may lose before they stop: in a trial, and once they have paid.
const TRIAL_CREDIT: f32 = 2.0;
const MAX_CREDIT: f32 = 8.0;

/// Drafts must gain so much of a plain step with each step.
const MARGIN: f32 = 0.03;

/// An expected speedup below this is not tried.
const WORTH: f32 = 1.06;

/// An expected speedup this many times as high as when drafts failed is tried at once.
const BETTER: f32 = 1.2;

/// Steps until drafts that failed are tried again: the least, and the most.
const WAIT: (u64, u64) = (32, 4096);

/// Plain steps of a batch bucket before drafts are tried, plain steps of a check, and steps with drafts between two.
const PLAIN_FIRST: u32 = 3;
const CHECK: u32 = 4;
const CHECK_EVERY: u32 = 256;

/// Steps in a row that may carry drafts without their time being known.
const MAX_UNMEASURED: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Off,
    On,
    /// Plain steps that are left, which tell what a step takes by now.
    Check(u32),
}

/// The control's state for batches of about the same number of rows.
#[derive(Clone, Default)]
struct BatchBucket {
    mode: Mode,
    /// Plain steps that drafts may still lose.
    credit: f32,
    /// Drafts have reached `MAX_CREDIT` since they were last begun with.
    proven: bool,
    /// The speedup that the model expects of drafts, and what it was when they failed.
    speedup: f32,
    failed_speedup: f32,
    wait: u64,
    retry_at: u64,
    /// Steps with drafts since the last check.
    unchecked: u32,
}

/// Decides for the batch.
#[derive(Default)]
pub(super) struct Control {
    /// Some source's acceptance shows only in steps with drafts.
    blind: bool,
    times: Times,
    catch_up: CatchUp,
    buckets: [BatchBucket; BUCKETS],
    /// The bucket of the last step.
    at: usize,
    /// Steps in a row whose time does not tell what drafts take.
    unmeasured: u32,
    /// Nanoseconds that trials may lose; none until a plain step was measured.
    budget: Option<f32>,
}

impl Control {
    /// `blind`: some source's acceptance and yield show only in steps with drafts.
    pub fn new(blind: bool) -> Self {
        Self { blind, ..Self::default() }
    }

    fn here(&self) -> &BatchBucket {
        &self.buckets[self.at]
    }

    /// Whether steps carry drafts.
    pub fn active(&self) -> bool {
        self.here().mode == Mode::On
    }

    /// Whether a step of this batch may have drafts: those on trial need that its time tells what they take, proven ones
    /// go on without for a while.
    pub fn allows(&self, batch: Batch) -> bool {
        self.times.tells(batch) || (self.here().proven && self.unmeasured < MAX_UNMEASURED)
    }

    /// Whether it is time to [`expect`](Self::expect) something of drafts that are not sent.
    pub fn wants_offers(&self) -> bool {
        self.here().mode == Mode::Off && self.times.now().is_multiple_of(8)
    }

    /// The best lengths; takes note of what these drafts would bring.
    pub fn expect(&mut self, offers: &Offers, batch: Batch) -> Decision {
        let decision = self.best(offers, batch);
        if let Some(plain) = self.times.plain(batch.rows) {
            let speedup = decision.rate * plain / batch.rows as f32;
            let here = &mut self.buckets[self.at];
            here.speedup += 0.3 * (speedup - here.speedup);
        }
        decision
    }

    /// Whether it pays that the draft model catches up with `lacks` tokens of one of `rows` sequences, of which some
    /// `remaining` are yet to come.
    pub fn pays_to_catch_up(&self, rows: usize, lacks: usize, remaining: f32) -> bool {
        let Some(plain) = self.times.plain(rows) else { return false };
        let saved = 1.0 - 1.0 / self.here().speedup.max(1.0);
        self.catch_up.token() * lacks as f32 <= remaining * saved * plain / rows as f32
    }

    /// The draft model catches up with no row, as that is too dear.
    pub fn refuse_catch_up(&mut self) {
        self.catch_up.refuse();
    }

    /// The lengths of a step with these drafts, in the order of its rows, as decided.
    pub fn assign(&self, offers: &Offers, batch: Batch, mut decision: Decision, lengths: &mut Vec<Length>) {
        if decision.tokens == 0
            && !self.here().proven
            && let Some(time) = self.times.with_drafts(batch, 0)
        {
            // A trial without drafts teaches nothing, unless drafts would be far off.
            let tried = decide(offers, 0, (1, self.times.most(batch.rows).1), time);
            decision = if tried.rate > 0.9 * decision.rate { tried } else { decision };
        }
        assign(offers, &decision, lengths);
    }

    /// The best lengths that the model of time knows; none before a plain step was measured.
    pub fn best(&self, offers: &Offers, batch: Batch) -> Decision {
        let (reach, most) = self.times.most(batch.rows);
        let of = |iterations: usize| {
            let time = self.times.with_drafts(batch, iterations)?;
            Some(decide(offers, iterations, (0, most), time))
        };
        let decisions = (0..=offers.iterations().min(reach)).filter_map(of);
        decisions.max_by(|a, b| a.rate.total_cmp(&b.rate)).unwrap_or_default()
    }

    /// One pass of the draft model for the rows that it may draft for.
    pub fn one_pass(&self, offers: &Offers) -> Decision {
        decide(offers, 1, (1, usize::MAX), |_| 1.0)
    }

    /// A step is over.
    pub fn observe(&mut self, step: &StepOutcome) {
        if step.rows == 0 {
            return;
        }
        let batch = Batch { rows: step.rows, prompt_tokens: step.prompt_tokens };
        self.at = bucket(step.rows);
        let spent = self.times.observe(step, batch);
        self.unmeasured = if spent.is_some() { 0 } else { self.unmeasured.saturating_add(1) };
        let Some(plain) = self.times.plain(step.rows) else { return };
        let gain = if step.speculative { self.account(step, batch, plain, spent) } else { 0.0 };
        let time = spent.unwrap_or(plain);
        let budget = self.budget.unwrap_or(BUDGET.0 * plain) + BUDGET_SHARE * time + gain * plain;
        self.budget = Some(budget.min(BUDGET.1 * plain));
        self.switch(step, spent.is_some());
    }

    /// The gain of a step that was planned with drafts, in plain steps. A step that was not measured counts with its
    /// expected time, and one that got none loses what it waited for them.
    fn account(&mut self, step: &StepOutcome, batch: Batch, plain: f32, measured: Option<f32>) -> f32 {
        let expected =
            self.times.with_drafts(batch, step.device_iterations).map_or(plain, |time| time(step.drafted));
        if step.drafted == 0 {
            let gain = 1.0 - expected / plain;
            let credit = &mut self.buckets[self.at].credit;
            *credit = (*credit + gain).min(MAX_CREDIT);
            return gain;
        }
        let worth = (step.rows + step.accepted) as f32 / step.rows as f32;
        let mut spent = measured.unwrap_or(expected);
        if step.catches_up() {
            let more = measured.map(|time| (time - expected).clamp(0.0, 20.0 * plain));
            let lost = (expected - worth * plain).max(0.0);
            self.catch_up.invest(step.caught_up, more, lost);
            spent = expected - lost;
        }
        let gain = worth - (spent + self.catch_up.pay_off()) / plain;
        let here = &mut self.buckets[self.at];
        here.credit = (here.credit + gain - MARGIN).min(MAX_CREDIT);
        gain
    }

    /// Changes the mode if it is time, behind a step whose time was measured or not.
    fn switch(&mut self, step: &StepOutcome, measured: bool) {
        // Beside prompts that are known, what lies between measured numbers of rows will do.
        let known = self.times.plain_samples(step.rows) >= PLAIN_FIRST || step.prompt_tokens > 0;
        let now = self.times.now();
        let affordable = self.budget.is_some_and(|budget| budget > 0.0);
        let here = &mut self.buckets[self.at];
        let better = here.speedup >= WORTH && here.speedup > BETTER * here.failed_speedup;
        let due = now >= here.retry_at && (self.blind || here.speedup >= WORTH);
        match here.mode {
            Mode::Off if measured && known && affordable && (due || better) => {
                (here.mode, here.proven, here.credit) = (Mode::On, false, TRIAL_CREDIT);
            }
            Mode::On if measured && step.speculative => {
                here.unchecked += 1;
                if here.credit >= MAX_CREDIT && !here.proven {
                    (here.proven, here.wait) = (true, here.wait / 4);
                }
                if here.credit < 0.0 {
                    here.mode = Mode::Off;
                    here.failed_speedup = here.speedup.max(1.0);
                    here.wait = (2 * here.wait).clamp(WAIT.0, WAIT.1);
                    here.retry_at = now + here.wait;
                    // What was invested is lost.
                    let lost = self.catch_up.write_off();
                    self.budget = self.budget.map(|budget| budget - lost);
                } else if here.unchecked >= CHECK_EVERY || !known {
                    (here.mode, here.unchecked) = (Mode::Check(CHECK), 0);
                }
            }
            Mode::Check(0) => here.mode = Mode::On,
            Mode::Check(left) if !step.speculative => here.mode = Mode::Check(left - 1),
            _ => {}
        }
    }
}
