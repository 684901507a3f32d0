//! What is known for about so many rows, and whether drafts pay there.
//!
//! ```text
//!            next probe due,                  pays
//!   ┌─ Off ─ or drafts promise ──► Probe ──────────────► On ◄──────── plain steps ─┐
//!   └───◄── does not pay: wait twice as long ─┴─◄────────┴─┴── now and then ► Check ─┘
//! ```
//!
//! A *probe* is a trial: some steps carry drafts to see what they bring. It ends well once the gain is certain, and
//! badly once a loss is; where neither is, after [`TRIAL`]'s last step by the mean. A *check* is a few plain steps
//! while drafts are on, so that what they are compared with is measured under the same conditions. A *promise* is
//! what the model of time expects of drafts that are not sent. O(1).

use super::model::DraftCosts;
use super::trial::Results;

/// Plain steps of a check.
pub(super) const CHECK: u32 = 4;

/// The part of all steps' time that checks may lose.
const CHECK_SHARE: f32 = 0.005;

/// Steps before a probe is repeated: the least, and the most.
const WAIT: (u64, u64) = (32, 4096);

/// A promise of less than this over plain steps is not looked into, and a trial that brings less ends badly: so
/// little is not told from chance.
const WORTH: f32 = 1.06;

/// Drafts that bring less than this, once they are on, are given up.
const KEPT: f32 = 1.05;

/// Drafts that have brought more than this are not given up for what a few steps lose.
const DOUBTED: f32 = 1.15;

/// What a trial has to bring before it may end well early.
const CLEAR: f32 = 1.10;

/// Plain steps that are measured before anything is tried.
const PLAIN_FIRST: usize = 3;

/// Plain steps' time that may be lost in a row before drafts are given up.
const LOSS: f32 = 4.0;

/// Drafts pay for certain when the mean gain of a trial's steps is so many of its standard errors.
const CERTAIN: f32 = 2.5;

/// Steps of a trial before it may end well or badly, and after which it must.
const TRIAL: (u32, u32) = (8, 64);

/// Plain steps' time that a trial may lose.
const TRIAL_LOSS: f32 = 1.5;

/// Numbers of rows that are told apart: up to 4 each its own, then two an octave.
pub(super) const LEVELS: usize = 30;

pub(super) fn level(rows: usize) -> usize {
    if rows <= 4 {
        return rows;
    }
    let octave = rows.ilog2() as usize;
    (1 + 2 * octave + ((rows >> (octave - 1)) & 1)).min(LEVELS - 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    #[default]
    Off,
    Probe,
    On,
    /// Plain steps to see whether they would be faster by now.
    Check {
        left: u32,
    },
}

/// What a step changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    /// A probe begins.
    Begun,
    /// Drafts do not pay.
    Failed,
}

/// What there is when it is asked whether the mode should change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// The number of the step.
    pub now: u64,
    /// Whether the step was planned with drafts.
    pub speculative: bool,
    /// Draft tokens in it.
    pub drafted: usize,
    /// What a plain step takes.
    pub plain: f32,
    /// How many of the last plain steps of about so many rows were measured.
    pub measured: usize,
    /// What trying may lose.
    pub purse: f32,
    /// Some source can be judged only by trying it.
    pub blind: bool,
}

/// What is known for about so many rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Level {
    pub visited: bool,
    pub mode: Mode,
    /// Whether a trial has ended well since the last began.
    proven: bool,
    /// Steps with drafts since the last check.
    checked: u32,
    /// Since the last change to [`Mode::Probe`].
    pub results: Results,
    wait: u64,
    next_probe: u64,
    /// Throughput with drafts over that without, as the model expects it; and what it was when a probe failed.
    pub promise: f32,
    failed_promise: f32,
    pub costs: DraftCosts,
    /// Of the draft model, in the last best lengths.
    pub iterations: usize,
}

impl Level {
    /// Whether steps carry drafts.
    pub fn active(&self) -> bool {
        matches!(self.mode, Mode::Probe | Mode::On)
    }

    /// Takes note of what drafts would bring, or do.
    pub fn note_promise(&mut self, promise: f32) {
        self.promise += 0.3 * (promise - self.promise);
        self.failed_promise += 0.02 * (1.0 - self.failed_promise);
    }

    /// What is to be expected of nearly as many rows, or of `more`.
    pub fn guess(&self, more: bool) -> Self {
        let mut guess = self.clone();
        match guess.mode {
            Mode::Off => {}
            // What pays with some sequences need not with more: their tokens are dearer.
            _ if more => guess.mode = Mode::Off,
            _ => guess.begin(),
        }
        guess
    }

    /// To be seen whether drafts pay.
    fn begin(&mut self) {
        (self.mode, self.proven) = (Mode::Probe, false);
        self.results = Results::default();
    }

    /// Changes the mode if it is time. What has [`Turn::Failed`] is to be told to [`fail`](Self::fail).
    pub fn turn(&mut self, of: Circumstances) -> Turn {
        let turn = match self.mode {
            Mode::Off if of.measured >= PLAIN_FIRST && of.purse > 0.0 && self.wants_probe(of) => {
                self.begin();
                Turn::Begun
            }
            Mode::Probe if of.speculative => {
                if self.trial_pays() {
                    (self.mode, self.proven) = (Mode::On, true);
                }
                if self.trial_fails(of.plain) { Turn::Failed } else { Turn::Nothing }
            }
            Mode::On if of.speculative => {
                self.checked += 1;
                // Where nobody has a draft just now a check loses less.
                let sooner = if of.drafted == 0 { 0.25 } else { 1.0 };
                if self.checked as f32 > sooner * check_interval(self.results.slow.ratio()) {
                    self.checked = 0;
                    self.mode = Mode::Check { left: CHECK };
                }
                if self.results.steps > 128 {
                    self.wait = 0;
                }
                if self.pays_no_more(of) { Turn::Failed } else { Turn::Nothing }
            }
            Mode::Check { left: 0 } => {
                self.mode = if self.proven { Mode::On } else { Mode::Probe };
                Turn::Nothing
            }
            Mode::Check { left } if !of.speculative => {
                self.mode = Mode::Check { left: left - 1 };
                Turn::Nothing
            }
            _ => Turn::Nothing,
        };
        if turn != Turn::Failed && self.active() && of.measured < PLAIN_FIRST {
            // What plain steps would take is a guess.
            self.mode = Mode::Check { left: CHECK };
        }
        turn
    }

    fn wants_probe(&self, of: Circumstances) -> bool {
        let due = of.now >= self.next_probe && (of.blind || self.promise >= WORTH);
        // A better promise than the one that was not kept need not wait.
        let promising = self.promise >= WORTH
            && self.promise > 1.08 * self.failed_promise
            && of.now + self.wait >= self.next_probe + WAIT.0.min(self.wait) / 2;
        due || promising
    }

    fn trial_pays(&self) -> bool {
        let Results { steps, fast, slow, trial, .. } = self.results;
        let pays = fast.ratio() >= CLEAR && trial.certainty() >= CERTAIN;
        steps >= TRIAL.0 && (pays || (steps >= TRIAL.1 && slow.ratio() >= WORTH))
    }

    fn trial_fails(&self, plain: f32) -> bool {
        let Results { steps, drafts, slow, trial, lost, .. } = self.results;
        let certain = steps >= TRIAL.0 / 2 && trial.certainty() < -1.0;
        lost > LOSS * plain
            || (trial.gain < -TRIAL_LOSS && certain)
            || (steps >= TRIAL.0 && drafts == 0)
            || (steps >= TRIAL.0 && trial.mean() < -0.03 && (certain || steps >= 2 * TRIAL.0))
            || (steps >= TRIAL.1 && slow.ratio() < WORTH)
    }

    fn pays_no_more(&self, of: Circumstances) -> bool {
        let Results { steps, lost, .. } = self.results;
        let (fast, slow) = (self.results.fast.ratio(), self.results.slow.ratio());
        let idle = slow < KEPT;
        // What has brought much is given the time for more than one bad sequence.
        let doubtful = fast < 1.0 && slow < DOUBTED;
        let losing = lost > LOSS * of.plain && (doubtful || lost > 5.0 * LOSS * of.plain);
        losing || (doubtful && of.purse < 0.0) || (steps >= TRIAL.1 / 2 && idle)
    }

    /// Off, and for twice as long as last time: how long, and until when. None if nobody had a draft just then, which
    /// says nothing of drafts.
    pub fn fail(&mut self, now: u64) -> Option<(u64, u64)> {
        self.mode = Mode::Off;
        self.wait = (2 * self.wait).clamp(WAIT.0, WAIT.1);
        if self.results.drafts == 0 && self.promise >= WORTH {
            self.wait = self.wait.min(4 * WAIT.0);
            self.next_probe = now + self.wait;
            return None;
        }
        Some((self.wait, now + self.wait))
    }

    /// Drafts failed with as many sequences or fewer: nothing is tried here before `until`, unless it is known to pay.
    pub fn keep_off(&mut self, wait: u64, until: u64) {
        if matches!(self.mode, Mode::Off | Mode::Probe) {
            self.mode = Mode::Off;
            self.wait = self.wait.max(wait);
            self.next_probe = self.next_probe.max(until);
            self.failed_promise = self.failed_promise.max(self.promise).max(1.0);
        }
    }
}

/// Steps between two checks, so that they lose no more than their share.
fn check_interval(ratio: f32) -> f32 {
    let lost = CHECK as f32 * (1.0 - 1.0 / ratio.max(1.0));
    (lost / CHECK_SHARE).clamp(16.0, 1024.0)
}

#[cfg(test)]
mod tests {
    use super::super::trial::Brought;
    use super::*;

    const NOW: Circumstances = Circumstances {
        now: 0,
        speculative: true,
        drafted: 4,
        plain: 100.0,
        measured: 9,
        purse: 300.0,
        blind: true,
    };

    /// A level whose probe has had so many steps, each of which earned so much in 100 ns.
    fn tried(steps: u32, earned: f32) -> (Level, Turn) {
        let mut level = Level::default();
        assert_eq!(level.turn(Circumstances { speculative: false, ..NOW }), Turn::Begun);
        let brought = Brought { earned, own: 100.0, spent: 100.0, plain: 100.0 };
        (0..steps).for_each(|_| level.results.add(brought, 4));
        let turn = level.turn(NOW);
        (level, turn)
    }

    #[test]
    fn levels_follow_each_other() {
        let levels: Vec<usize> = (1..5000).map(level).collect();
        assert!(levels.windows(2).all(|two| two[1] == two[0] || two[1] == two[0] + 1));
        assert_eq!([1, 4, 5, 6, 8, 12, 64].map(level), [1, 4, 5, 6, 7, 8, 13]);
        assert_eq!(level(usize::MAX), LEVELS - 1);
    }

    #[test]
    fn a_probe_waits_for_what_it_is_compared_with() {
        for not_yet in [Circumstances { measured: 2, ..NOW }, Circumstances { purse: 0.0, ..NOW }] {
            assert_eq!(Level::default().turn(not_yet), Turn::Nothing);
        }
        let dull = Circumstances { blind: false, ..NOW };
        assert_eq!(Level::default().turn(dull), Turn::Nothing, "nothing is promised");
        assert_eq!(Level { promise: 1.07, ..Level::default() }.turn(dull), Turn::Begun);
    }

    #[test]
    fn a_trial_ends_when_it_is_certain() {
        assert_eq!(tried(7, 200.0).0.mode, Mode::Probe, "too early to say");
        assert_eq!(tried(8, 200.0).0.mode, Mode::On);
        let (level, turn) = tried(8, 100.0);
        assert_eq!((level.mode, turn), (Mode::Probe, Turn::Nothing), "neither is certain");
        assert_eq!(tried(64, 100.0).1, Turn::Failed, "no gain after the last step");
        assert_eq!(tried(4, 50.0).1, Turn::Failed, "a certain loss");
    }

    #[test]
    fn what_fails_waits_twice_as_long_each_time() {
        let (mut level, _) = tried(4, 50.0);
        assert_eq!(level.fail(100), Some((32, 132)));
        assert_eq!((level.mode, level.fail(200)), (Mode::Off, Some((64, 264))));
        let mut more = Level::default();
        more.keep_off(64, 264);
        assert_eq!(more.turn(Circumstances { now: 263, ..NOW }), Turn::Nothing);
        assert_eq!(more.turn(Circumstances { now: 264, ..NOW }), Turn::Begun);
        let mut on = tried(8, 200.0).0;
        on.keep_off(64, 264);
        assert_eq!(on.mode, Mode::On, "what pays goes on");
    }

    #[test]
    fn checks_cost_their_share_and_return() {
        let (mut level, _) = tried(8, 200.0);
        let steps = (0..).take_while(|_| {
            level.turn(NOW);
            level.mode == Mode::On
        });
        assert_eq!(steps.count(), 400, "4 plain steps lose 2 steps' time: a two-hundredth of 400");
        assert_eq!(level.mode, Mode::Check { left: CHECK });
        (0..CHECK).for_each(|_| _ = level.turn(Circumstances { speculative: false, ..NOW }));
        level.turn(Circumstances { speculative: false, ..NOW });
        assert_eq!(level.mode, Mode::On);
    }
}
