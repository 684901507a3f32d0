//! Decides whether steps carry drafts and how long those are: never noticeably slower than without drafts.
//!
//! ```text
//!  measured step ─┬─ without drafts: time by rows ────────────────┐
//!                 └─ with: time over that, by tokens, iterations ─┴─► lengths with the most expected tokens a second
//!                     └─► gain = tokens per row - time / time of a plain step ─► credit, budget ─► on or off
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

mod curve;
mod lengths;

pub(super) use lengths::likely;

use super::offers::{Length, Offers};
use super::outcome::StepOutcome;
use curve::Curve;
use lengths::{Decision, assign, decide};

/// Batch buckets: rows up to 1, 2, 4, 8, ...
const BUCKETS: usize = 16;

/// A step that takes longer than so many times the expected is counted as that long: other processes held up the machine.
const STALL: f32 = 2.0;

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

/// An expected speedup so many times as high as when drafts failed is tried at once.
const BETTER: f32 = 1.2;

/// Steps until drafts that failed are tried again: the least, and the most.
const WAIT: (u64, u64) = (32, 4096);

/// Plain steps of a batch bucket before drafts are tried, plain steps of a check, and steps with drafts between two.
const PLAIN_FIRST: u32 = 3;
const CHECK: u32 = 4;
const CHECK_EVERY: u32 = 256;

/// Steps in a row that may carry drafts without their time being known.
const MAX_UNMEASURED: u32 = 64;

/// Steps over which the cost of catching up is spread.
const CATCH_UP_STEPS: f32 = 16.0;

/// Bounds of the least probability of a draft token that is sent along with a prompt.
const LIKELY: (f32, f32) = (0.7, 0.98);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Off,
    On,
    /// So many plain steps are left, which tell what they take by now.
    Check(u32),
}

/// The control's state for batches of about so many rows.
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
    /// Time over that of a plain step: by draft tokens, and what drafting on the device adds, by iterations.
    verifying: Curve,
    drafting: Curve,
    /// Most draft tokens that were measured.
    reached: usize,
}

/// Decides for the batch.
#[derive(Default)]
pub(super) struct Control {
    /// Some source's acceptance shows only in steps with drafts.
    blind: bool,
    /// Time of plain steps in nanoseconds, by rows.
    plain: Curve,
    buckets: [BatchBucket; BUCKETS],
    /// The bucket of the last step.
    at: usize,
    /// Measured steps, and steps in a row that were not.
    now: u64,
    unmeasured: u32,
    /// Nanoseconds that trials may lose; none until a plain step was measured.
    budget: Option<f32>,
    /// Nanoseconds of catching up that are not accounted for yet, and those that a token takes.
    catch_up_owed: f32,
    catch_up_token: f32,
    last_speculative: bool,
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

    /// Whether the next step should carry drafts; `measured` says that its time will be known. Drafts on trial need
    /// that, proven ones go on without for a while.
    pub fn wants_drafts(&self, measured: bool) -> bool {
        self.active() && (measured || (self.here().proven && self.unmeasured < MAX_UNMEASURED))
    }

    /// Whether it is time to [`expect`](Self::expect) something of drafts that are not sent.
    pub fn wants_offers(&self) -> bool {
        self.here().mode == Mode::Off && self.now.is_multiple_of(8)
    }

    /// The best lengths; takes note of what these drafts would bring.
    pub fn expect(&mut self, offers: &Offers) -> Decision {
        let decision = self.best(offers);
        if let Some(plain) = self.plain_time(offers.len()) {
            let speedup = decision.rate * plain / offers.len() as f32;
            let here = &mut self.buckets[self.at];
            here.speedup += 0.3 * (speedup - here.speedup);
        }
        decision
    }

    /// Whether it pays that the draft model catches up with `lacks` tokens of one of `rows` sequences, of which some
    /// `remaining` are yet to come.
    pub fn pays_to_catch_up(&self, rows: usize, lacks: usize, remaining: f32) -> bool {
        let Some(plain) = self.plain_time(rows) else { return false };
        let saved = 1.0 - 1.0 / self.here().speedup.max(1.0);
        self.catch_up_token * lacks as f32 <= remaining * saved * plain / rows as f32
    }

    /// The draft model drafts for no row, as catching up is too dear: what it takes is believed less and less, and
    /// so measured again some day.
    pub fn refuse_catch_up(&mut self) {
        self.catch_up_token *= 0.98;
    }

    /// The least probability that makes a draft token worth its time beside a prompt, where each token costs as much.
    pub fn likely(&self, rows: usize) -> f32 {
        let measured = self.plain_time(rows).filter(|_| self.here().reached > 0);
        let least = measured.map(|plain| 1.05 * (self.time(plain, rows, rows, 0) / plain - 1.0));
        least.map_or(LIKELY.1, |least| least.clamp(LIKELY.0, LIKELY.1))
    }

    /// The lengths of a step with these drafts, in the order of its rows, as decided.
    pub fn assign(&self, offers: &Offers, mut decision: Decision, lengths: &mut Vec<Length>) {
        let rows = offers.len();
        if decision.tokens == 0
            && !self.here().proven
            && let Some(plain) = self.plain_time(rows)
        {
            // A trial without drafts teaches nothing, unless drafts would be far off.
            let most = self.most_tokens(rows);
            let tried = decide(offers, 0, (1, most), |tokens| self.time(plain, rows, tokens, 0));
            decision = if tried.rate > 0.9 * decision.rate { tried } else { decision };
        }
        assign(offers, &decision, lengths);
    }

    /// The best lengths that the model of time knows; none before a plain step was measured.
    pub fn best(&self, offers: &Offers) -> Decision {
        let rows = offers.len();
        let Some(plain) = self.plain_time(rows) else { return Decision::default() };
        let most = (0, self.most_tokens(rows));
        let reach = 2 * self.here().drafting.reach(self.now) as usize + 2;
        (0..=offers.iterations().min(reach))
            .map(|iterations| {
                decide(offers, iterations, most, |tokens| self.time(plain, rows, tokens, iterations))
            })
            .max_by(|a, b| a.rate.total_cmp(&b.rate))
            .unwrap_or_default()
    }

    /// One pass of the draft model for the rows that it may draft for.
    pub fn one_pass(&self, offers: &Offers) -> Decision {
        decide(offers, 1, (1, usize::MAX), |_| 1.0)
    }

    /// Most draft tokens whose time the model may be asked for: what lies further out is reached step by step.
    fn most_tokens(&self, rows: usize) -> usize {
        (2 * self.here().reached).max(rows / 2).max(4)
    }

    fn plain_time(&self, rows: usize) -> Option<f32> {
        self.plain.at(rows as f32, None, 0.0, self.now).filter(|_| rows > 0)
    }

    /// The time of a step with so many draft tokens, in nanoseconds.
    fn time(&self, plain: f32, rows: usize, tokens: usize, iterations: usize) -> f32 {
        // Until it is measured a draft token is taken for another row, or for cheap, so that it is tried.
        let more = self.plain_time(2 * rows).map_or(0.0, |twice| (twice / plain - 1.0) / rows as f32);
        let slope = more.max(1.0 / (16 * rows.max(16)) as f32);
        let over = match iterations {
            0 => None,
            _ => self.here().drafting.at(iterations as f32, Some(0.0), 0.05, self.now),
        };
        let verifying = self.here().verifying.at(tokens as f32, Some(1.0), slope, self.now);
        plain * (verifying.unwrap_or(1.0) + over.unwrap_or(0.0)).max(0.5)
    }

    /// A step took so long.
    pub fn observe(&mut self, step: &StepOutcome) {
        if step.rows == 0 {
            return;
        }
        self.at = (step.rows.next_power_of_two().ilog2() as usize).min(BUCKETS - 1);
        // The first step of a kind waits for one of the other kind, or overlaps with it.
        let settled = step.speculative == self.last_speculative;
        self.last_speculative = step.speculative;
        let (time, measured) = (step.duration_ns as f32, step.duration_ns > 0);
        self.now += u64::from(measured);
        self.unmeasured = if measured { 0 } else { self.unmeasured.saturating_add(1) };
        if measured && !step.speculative && (settled || self.plain.samples(step.rows, self.now) == 0) {
            let most = self.plain_time(step.rows).map_or(time, |plain| STALL * plain);
            self.plain.observe(step.rows, time.min(most), self.now);
        }
        let Some(plain) = self.plain_time(step.rows) else { return };
        let gain = if step.speculative { self.account(step, plain, settled) } else { 0.0 };
        let budget = self.budget.unwrap_or(BUDGET.0 * plain) + BUDGET_SHARE * time + gain * plain;
        self.budget = Some(budget.min(BUDGET.1 * plain));
        if measured {
            self.switch(step);
        }
    }

    /// The gain of a step with drafts, in plain steps. A step that was not measured counts with its expected time.
    fn account(&mut self, step: &StepOutcome, plain: f32, settled: bool) -> f32 {
        let expected = self.time(plain, step.rows, step.drafted, step.device_iterations);
        let (time, measured) = (step.duration_ns as f32, step.duration_ns > 0);
        let (catches_up, mut spent) = (step.caught_up > 2 * step.rows, expected);
        let worth = (step.rows + step.accepted) as f32 / step.rows as f32;
        if measured && !catches_up {
            spent = time.min(STALL * expected.max(plain));
            if settled {
                self.learn(step, plain, spent / plain);
            }
        }
        if catches_up {
            // An investment: its cost is spread over the steps to come.
            if measured {
                let each = (time - expected).clamp(0.0, 20.0 * plain) / step.caught_up as f32;
                let weight = if self.catch_up_token > 0.0 { 0.2 } else { 1.0 };
                self.catch_up_token += weight * (each - self.catch_up_token);
            }
            // So is what it loses beside, where the rows that are current are few.
            let lost = (expected - worth * plain).max(0.0);
            self.catch_up_owed += self.catch_up_token * step.caught_up as f32 + lost;
            spent -= lost;
        }
        spent += self.catch_up_owed / CATCH_UP_STEPS;
        self.catch_up_owed -= self.catch_up_owed / CATCH_UP_STEPS;
        let gain = worth - spent / plain;
        let here = &mut self.buckets[self.at];
        here.credit = (here.credit + gain - MARGIN).min(MAX_CREDIT);
        gain
    }

    /// A step took so many times as long as a plain one. Where the draft model drafted, verifying takes what it takes
    /// with drafts of the host, and the rest is drafting.
    fn learn(&mut self, step: &StepOutcome, plain: f32, over: f32) {
        let verifying = self.time(plain, step.rows, step.drafted, 0) / plain;
        let here = &mut self.buckets[self.at];
        here.reached = here.reached.max(step.drafted);
        match step.device_iterations {
            0 => here.verifying.observe(step.drafted, over, self.now),
            iterations => here.drafting.observe(iterations, over - verifying, self.now),
        }
    }

    /// Changes the mode if it is time.
    fn switch(&mut self, step: &StepOutcome) {
        let known = self.plain.samples(step.rows, self.now) >= PLAIN_FIRST;
        let affordable = self.budget.is_some_and(|budget| budget > 0.0);
        let here = &mut self.buckets[self.at];
        let better = here.speedup >= WORTH && here.speedup > BETTER * here.failed_speedup;
        let due = self.now >= here.retry_at && (self.blind || here.speedup >= WORTH);
        match here.mode {
            Mode::Off if known && affordable && (due || better) => {
                (here.mode, here.proven, here.credit) = (Mode::On, false, TRIAL_CREDIT);
                self.catch_up_owed = 0.0;
            }
            Mode::On if step.speculative => {
                here.unchecked += 1;
                if here.credit >= MAX_CREDIT && !here.proven {
                    (here.proven, here.wait) = (true, here.wait / 4);
                }
                if here.credit < 0.0 {
                    here.mode = Mode::Off;
                    here.failed_speedup = here.speedup.max(1.0);
                    here.wait = (2 * here.wait).clamp(WAIT.0, WAIT.1);
                    here.retry_at = self.now + here.wait;
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

    /// Until drafts are sent.
    fn on_trial() -> Control {
        let mut control = Control::new(true);
        let plain = (0..100).take_while(|_| {
            control.observe(&step(0, 0, false, 100));
            !control.active()
        });
        assert_eq!(plain.count(), PLAIN_FIRST as usize - 1);
        control
    }

    #[test]
    fn drafts_on_trial_need_a_measured_step() {
        let mut control = on_trial();
        assert!(control.wants_drafts(true) && !control.wants_drafts(false));
        (0..3).for_each(|_| control.observe(&step(4, 4, true, 150)));
        assert!(control.wants_drafts(true) && control.wants_drafts(false), "proven");
        (0..MAX_UNMEASURED).for_each(|_| control.observe(&step(4, 4, true, 0)));
        assert!(control.wants_drafts(true) && !control.wants_drafts(false));
        control.observe(&step(4, 4, true, 150));
        assert!(control.wants_drafts(false));
    }

    #[test]
    fn drafts_that_lose_stop_and_wait_twice_as_long_each_time() {
        let mut control = on_trial();
        let mut waits = vec![];
        while waits.len() < 3 {
            let lost = (0..100).take_while(|_| {
                control.observe(&step(4, 0, true, 150));
                control.active()
            });
            assert!(lost.count() < 6);
            let waited = (0..10_000).take_while(|_| {
                control.observe(&step(0, 0, false, 100));
                !control.active()
            });
            waits.push(waited.count());
        }
        assert!(waits[0] >= 31 && waits.windows(2).all(|two| two[1] > two[0]), "{waits:?}");
    }

    #[test]
    fn plain_steps_are_measured_again_now_and_then() {
        let mut control = on_trial();
        let steps = (0..1000).take_while(|_| {
            control.observe(&step(4, 4, true, 150));
            control.active()
        });
        assert_eq!(steps.count(), CHECK_EVERY as usize - 1);
        (0..=CHECK).for_each(|_| control.observe(&step(0, 0, false, 100)));
        assert!(control.active());
    }

    #[test]
    fn what_catching_up_takes_is_spread() {
        let mut control = on_trial();
        control.observe(&StepOutcome { device_iterations: 4, caught_up: 20, ..step(4, 4, true, 350) });
        let (credit, token) = (control.here().credit, control.catch_up_token);
        assert!(token > 5.0 && credit > TRIAL_CREDIT, "{token} {credit}");
        assert!(control.catch_up_owed > 100.0);
        let owed = control.catch_up_owed;
        control.observe(&StepOutcome { device_iterations: 4, caught_up: 20, ..step(4, 4, true, 0) });
        assert_eq!(control.catch_up_token, token, "nothing was measured");
        assert!(control.catch_up_owed > owed, "and more is owed");
        (0..200).for_each(|_| control.refuse_catch_up());
        assert!(control.catch_up_token < 1.0);
    }
}
