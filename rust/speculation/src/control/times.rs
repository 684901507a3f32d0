//! A model of what steps take, fitted to what the device reports of them.
//!
//! ```text
//!  device    ├─ plain, by rows ─┬─ prompts, by their tokens ─┬─ drafts: verifying, drafting ─┤ idle ├─ next step
//!                 (a)                    (b)                          (c)                      (d)
//! ```
//!
//! (a) and (b) are learned from steps without drafts, (c) from those with, as a part of (a). Draft tokens beside a prompt
//! cost at least what as many more tokens of the prompt would. (d) is what the device waits for the host: apart for steps
//! that were planned with drafts and without, as far as it is usual, so that it does not matter who else holds up
//! the machine now and then. Steps are compared without (b): a prompt takes as long, and yields as much, with drafts as
//! without. O(1) an observation, O(buckets of the curves) a question.

use super::super::outcome::StepOutcome;
use super::curve::Curve;
use super::recent::Recent;

/// Batch buckets: rows up to 1, 2, 4, 8, ...
pub(super) const BUCKETS: usize = 16;

/// Most times of the expected time that a step counts for: other processes held up the machine.
const STALL: f32 = 2.0;

/// Prompts that take this many times as long as the rest of a step hide what its drafts take.
const HIDES: f32 = 1.0;

/// The batch bucket of `rows` rows.
pub(super) fn bucket(rows: usize) -> usize {
    (rows.next_power_of_two().ilog2() as usize).min(BUCKETS - 1)
}

/// What a step has besides drafts.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Batch {
    /// Rows that decode; not 0.
    pub rows: usize,
    pub prompt_tokens: usize,
}

#[derive(Clone, Default)]
struct BucketTimes {
    /// Time over that of a plain step: by draft tokens, and what drafting on the device adds, by iterations.
    verifying: Curve,
    drafting: Curve,
    /// Most draft tokens that were measured.
    reached: usize,
    /// Nanoseconds before steps without drafts, and with.
    idle: [Recent; 2],
}

#[derive(Default)]
pub(super) struct Times {
    /// Nanoseconds of steps without drafts and prompts, by rows, and what prompts add, by tokens.
    plain: Curve,
    prompts: Curve,
    buckets: [BucketTimes; BUCKETS],
    last_speculative: bool,
    /// The last step took longer than can be.
    held_up: bool,
    /// Measured steps.
    now: u64,
}

impl Times {
    fn of(&self, rows: usize) -> &BucketTimes {
        &self.buckets[bucket(rows)]
    }

    /// Steps that the device has reported.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Number of plain steps of about `rows` rows that were measured lately.
    pub fn plain_samples(&self, rows: usize) -> u32 {
        self.plain.samples(rows, self.now)
    }

    fn busy(&self, rows: usize) -> Option<f32> {
        self.plain.at(rows as f32, None, 0.0, self.now).filter(|_| rows > 0)
    }

    fn idle(&self, rows: usize, speculative: bool) -> f32 {
        let idle = &self.of(rows).idle;
        let [without, with] = [idle[0].usual(), idle[1].usual()];
        if speculative { with.or(without) } else { without }.unwrap_or(0.0)
    }

    /// Nanoseconds of a plain step; none before one was measured.
    pub fn plain(&self, rows: usize) -> Option<f32> {
        Some(self.busy(rows)? + self.idle(rows, false))
    }

    /// Nanoseconds that prompts add to a step; none if that is not known.
    fn prompts(&self, tokens: usize) -> Option<f32> {
        self.prompts
            .at(tokens as f32, Some(0.0), 0.0, self.now)
            .filter(|_| self.prompts.reach(self.now) > 0.0)
    }

    /// Whether the times of steps with these prompts are known and tell what drafts take.
    pub fn tells(&self, batch: Batch) -> bool {
        batch.prompt_tokens == 0
            || self.busy(batch.rows).is_some_and(|busy| {
                self.prompts(batch.prompt_tokens).is_some_and(|prompts| prompts <= HIDES * busy)
            })
    }

    /// Most iterations of the draft model, and most draft tokens, whose time may be asked for: what lies further out is
    /// reached step by step.
    pub fn most(&self, rows: usize) -> (usize, usize) {
        let of = self.of(rows);
        (2 * of.drafting.reach(self.now) as usize + 2, (2 * of.reached).max(rows / 2).max(4))
    }

    /// Nanoseconds of a step that was planned with drafts, less those of its prompts, by its draft tokens; none before a
    /// plain step was measured. With prompts whose time is not known, each token is as dear as a row.
    pub fn with_drafts(&self, batch: Batch, iterations: usize) -> Option<impl Fn(usize) -> f32> {
        let Batch { rows, prompt_tokens } = batch;
        let busy = self.busy(rows)?;
        let idle = self.idle(rows, true);
        // Until it is measured a draft token is taken for another row, or for cheap, so that it is tried.
        let more = self.busy(2 * rows).map_or(0.0, |twice| (twice / busy - 1.0) / rows as f32);
        let slope = more.max(1.0 / (16 * rows.max(16)) as f32);
        let drafting = match iterations {
            0 => 0.0,
            _ => self.of(rows).drafting.at(iterations as f32, Some(0.0), 0.05, self.now).unwrap_or(0.0),
        };
        let before = self.prompts(prompt_tokens);
        let beside = move |tokens: usize| match (prompt_tokens, before) {
            (0, _) => 0.0,
            (_, Some(before)) => {
                self.prompts(prompt_tokens + tokens).map_or(0.0, |all| (all - before) / busy)
            }
            (_, None) => tokens as f32 / rows as f32,
        };
        Some(move |tokens: usize| {
            let verifying = self.of(rows).verifying.at(tokens as f32, Some(1.0), slope, self.now);
            let verifying = verifying.unwrap_or(1.0).max(1.0 + beside(tokens));
            busy * (verifying + drafting).max(0.5) + idle
        })
    }

    /// Takes a step into account. Returns the nanoseconds that it took with the time before it and less that of its prompts,
    /// those that were expected if others on the machine held it up; none where it does not tell.
    pub fn observe(&mut self, step: &StepOutcome, batch: Batch) -> Option<f32> {
        let settled = step.speculative == self.last_speculative;
        self.last_speculative = step.speculative;
        if let Some(idle) = step.idle_ns.filter(|_| settled) {
            // The first step of a kind waits for one of the other kind, or overlaps with it.
            self.buckets[bucket(batch.rows)].idle[usize::from(step.speculative)].observe(idle as f32);
        }
        if step.busy_ns == 0 {
            return None;
        }
        self.now += 1;
        let busy = step.busy_ns as f32;
        if step.drafted == 0 && step.device_iterations == 0 {
            self.learn_plain(batch, busy);
        }
        let tells = self.tells(batch);
        let plain = self.busy(batch.rows).filter(|_| tells)?;
        let expected = self.with_drafts(batch, step.device_iterations)?(step.drafted);
        let prompts = if batch.prompt_tokens > 0 { self.prompts(batch.prompt_tokens)? } else { 0.0 };
        let spent = (busy - prompts).max(0.0);
        let idle = self.idle(batch.rows, step.speculative);
        if step.catches_up() {
            // What that takes is not known beforehand.
            return Some(spent + idle);
        }
        let most = STALL * expected.max(plain);
        if step.speculative {
            self.learn_drafts(step, batch, plain, spent.min(most) / plain);
        }
        // Others on the machine held it up; if the model is wrong, the next one takes as long.
        let held_up = spent > most && !self.held_up;
        self.held_up = spent > most;
        Some(if held_up { expected } else { spent.min(most) + idle })
    }

    /// A step without drafts. Where it has prompts, plain step and prompts share by their size what differs from the
    /// expected.
    fn learn_plain(&mut self, batch: Batch, busy: f32) {
        let plain = self.busy(batch.rows);
        if batch.prompt_tokens == 0 {
            self.plain.observe(batch.rows, plain.map_or(busy, |plain| busy.min(STALL * plain)), self.now);
        } else if let Some(plain) = plain {
            let known = self.prompts(batch.prompt_tokens);
            let expected = plain + known.unwrap_or((busy - plain).max(0.0));
            let over = (busy / expected).min(STALL);
            self.plain.observe(batch.rows, plain * over, self.now);
            self.prompts.observe(batch.prompt_tokens, (expected - plain) * over, self.now);
        }
    }

    /// A step took `over` times as long as a plain one. Where the draft model drafted, verifying takes what it takes
    /// with drafts of the host, and the rest is drafting.
    fn learn_drafts(&mut self, step: &StepOutcome, batch: Batch, plain: f32, over: f32) {
        let idle = self.idle(batch.rows, true);
        let verifying = self.with_drafts(batch, 0).map_or(1.0, |time| (time(step.drafted) - idle) / plain);
        let of = &mut self.buckets[bucket(batch.rows)];
        of.reached = of.reached.max(step.drafted);
        match step.device_iterations {
            // Beside prompts each token costs more.
            0 if batch.prompt_tokens == 0 => of.verifying.observe(step.drafted, over, self.now),
            0 => (),
            iterations => of.drafting.observe(iterations, over - verifying, self.now),
        }
    }
}
