//! Control on a model of a device, in simulated time: never slower than without, and near the best where it pays.
//!
//! A step takes `base + token · tokens`, and `sync` more when it was planned with drafts; the draft model takes
//! `iteration` for each token of its longest draft. Draft tokens are accepted with a given probability each.

mod cases;
mod clients;
mod report;

use super::acceptance::{Acceptance, Personal};
use super::control::{Batch, Control};
use super::draft::{Segment, Segments};
use super::offers::{Length, Offers, offer};
use super::outcome::StepOutcome;
use super::source::Source;

const MAX_DRAFT: usize = 8;

/// Numbers that look like chance, always the same.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// A device and what runs on it.
#[derive(Debug, Clone, Copy)]
struct World {
    base: f32,
    token: f32,
    sync: f32,
    iteration: f32,
    /// Beyond this many tokens each costs ten times as much.
    bend: usize,
    rows: usize,
    /// The probability that a draft token is accepted.
    host: f32,
    device: f32,
    jitter: f32,
    /// The part of the steps that others on the machine hold up, for twenty times as long: the device, or the host before
    /// it launches them.
    held_up: f32,
    host_held_up: f32,
    /// Tokens of prompts in a step, and the part of the steps that have some. Each costs as much as a draft token.
    prompt: usize,
    prompts: f32,
    /// The part of a row's steps in which the host has a draft.
    offered: f32,
}

const WORLD: World = World {
    base: 1e7,
    token: 1e4,
    sync: 0.0,
    iteration: 1e6,
    bend: usize::MAX,
    rows: 1,
    host: 0.0,
    device: 0.0,
    jitter: 0.03,
    held_up: 0.0,
    host_held_up: 0.0,
    prompt: 0,
    prompts: 0.0,
    offered: 1.0,
};

impl World {
    fn time(&self, tokens: usize, iterations: usize, speculative: bool) -> f32 {
        let beyond = tokens.saturating_sub(self.bend) * 9;
        let sync = if speculative { self.sync } else { 0.0 };
        self.base + self.token * (tokens + beyond) as f32 + sync + self.iteration * iterations as f32
    }

    /// Tokens a nanosecond without drafts.
    fn plain(&self) -> f32 {
        self.rows as f32 / self.time(self.rows, 0, false)
    }

    /// With always `length` tokens of the host or of the device.
    fn fixed(&self, length: usize, on_device: bool) -> f32 {
        let probability = if on_device { self.device } else { self.host };
        let expected = (0..=length as i32).map(|power| probability.powi(power)).sum::<f32>();
        let iterations = if on_device { length } else { 0 };
        self.rows as f32 * expected / self.time(self.rows * (1 + length), iterations, true)
    }

    fn best_fixed(&self) -> f32 {
        (1..=MAX_DRAFT)
            .flat_map(|length| [self.fixed(length, false), self.fixed(length, true)])
            .fold(0.0, f32::max)
    }
}

/// The controls that are compared, with a row's worth of state each.
struct Engine {
    control: Control,
    acceptance: Acceptance,
    personal: Vec<Personal>,
    noise: Noise,
    offers: Offers,
    lengths: Vec<Length>,
    tokens: f64,
    time: f64,
    active_steps: usize,
}

impl Engine {
    fn new(blind: bool) -> Self {
        Self {
            control: Control::new(blind),
            acceptance: Acceptance::default(),
            personal: vec![Personal::default(); 512],
            noise: Noise(7),
            offers: Offers::default(),
            lengths: vec![],
            tokens: 0.0,
            time: 0.0,
            active_steps: 0,
        }
    }

    fn offer(&mut self, world: &World) {
        self.offers.clear();
        for personal in &self.personal[..world.rows] {
            let mut segments = Segments::default();
            let has = world.host > 0.0 && (world.offered == 1.0 || self.noise.next() < world.offered);
            segments.push(Source::Ngram, 2, if has { MAX_DRAFT } else { 0 });
            let device = if world.device > 0.0 { MAX_DRAFT } else { 0 };
            offer(&mut self.offers, &self.acceptance, personal, &segments, device, MAX_DRAFT);
        }
    }

    /// Whether each of the tokens of a draft is accepted; stops at the first that is not.
    fn verify(&mut self, row: usize, source: Source, length: usize, probability: f32) -> usize {
        let class = if source == Source::Ngram { 2 } else { 0 };
        let segment = Segment { source, count: length as u16, class };
        for position in 0..length {
            let accepted = self.noise.next() < probability;
            self.acceptance.judge(&mut self.personal[row], segment, position, accepted);
            if !accepted {
                return position;
            }
        }
        length
    }

    fn chance(&mut self, part: f32) -> bool {
        part > 0.0 && self.noise.next() < part
    }

    fn step(&mut self, world: &World) {
        let speculative = self.control.active();
        let (mut drafted, mut accepted, mut iterations) = (0, 0, 0);
        self.lengths.clear();
        let prompt_tokens = if self.chance(world.prompts) { world.prompt } else { 0 };
        let batch = Batch { rows: world.rows, prompt_tokens };
        if speculative {
            self.active_steps += 1;
            if self.control.allows(batch) {
                self.offer(world);
                let decision = self.control.expect(&self.offers, batch);
                self.control.assign(&self.offers, batch, decision, &mut self.lengths);
            }
        }
        for row in 0..world.rows {
            let Length { host, device } = self.lengths.get(row).copied().unwrap_or_default();
            let (host, device) = (usize::from(host), usize::from(device));
            assert!(host == 0 || device == 0);
            drafted += host + device;
            iterations = iterations.max(device);
            accepted += self.verify(row, Source::DraftModel, device, world.device);
            // The host's drafts are judged whether they are sent or not: the next token always, without
            // drafts not in each step.
            if world.host > 0.0 && (speculative || self.noise.next() < 0.2) {
                accepted += self.verify(row, Source::Ngram, host.max(1), world.host).min(host);
            }
        }
        let jitter = 1.0 + world.jitter * (2.0 * self.noise.next() - 1.0);
        let idle = if speculative { world.sync } else { 0.0 };
        let alone = world.time(world.rows + drafted, iterations, speculative);
        let prompts = world.token * prompt_tokens as f32;
        self.tokens += (world.rows + accepted) as f64;
        // Prompts take as long as without drafts.
        self.time += f64::from(alone * jitter);
        let busy = (alone - idle + prompts) * jitter;
        let busy = if self.chance(world.held_up) { 20.0 * busy } else { busy };
        let idle = if self.chance(world.host_held_up) { idle + 20.0 * busy } else { idle };
        self.control.observe(&StepOutcome {
            rows: world.rows,
            prompt_tokens,
            drafted,
            accepted,
            device_iterations: iterations,
            caught_up: 0,
            speculative,
            busy_ns: busy as u64,
            idle_ns: Some(idle as u64),
        });
        if self.control.wants_offers() {
            self.offer(world);
            self.control.expect(&self.offers, Batch { rows: world.rows, prompt_tokens: 0 });
        }
    }

    /// Tokens a nanosecond over a number of steps.
    fn run(&mut self, world: &World, steps: usize) -> f32 {
        let (tokens, time) = (self.tokens, self.time);
        (0..steps).for_each(|_| self.step(world));
        ((self.tokens - tokens) / (self.time - time)) as f32
    }
}
