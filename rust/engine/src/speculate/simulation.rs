//! Control on a model of a device, in simulated time: never slower than without, and near the best where it pays.
//!
//! A step takes `base + token · tokens`, and `sync` more when it was planned with drafts; the draft model takes
//! `iteration` for each token of its longest draft. Draft tokens are accepted with a given probability each.

use super::acceptance::{Acceptance, Personal};
use super::control::Control;
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
    /// Beyond so many tokens each costs ten times as much.
    bend: usize,
    rows: usize,
    /// The probability that a draft token is accepted.
    host: f32,
    device: f32,
    jitter: f32,
    /// The part of the steps that others on the machine hold up, for twenty times as long.
    held_up: f32,
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

    fn step(&mut self, world: &World) {
        let speculative = self.control.active();
        let (mut drafted, mut accepted, mut iterations) = (0, 0, 0);
        self.lengths.clear();
        if speculative {
            self.offer(world);
            let decision = self.control.expect(&self.offers);
            self.control.assign(&self.offers, decision, &mut self.lengths);
            self.active_steps += 1;
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
        let time = world.time(world.rows + drafted, iterations, speculative) * jitter;
        self.tokens += (world.rows + accepted) as f64;
        self.time += f64::from(time);
        let held_up = world.held_up > 0.0 && self.noise.next() < world.held_up;
        let time = if held_up { 20.0 * time } else { time };
        self.control.observe(&StepOutcome {
            rows: world.rows,
            drafted,
            accepted,
            device_iterations: iterations,
            caught_up: 0,
            speculative,
            duration_ns: time as u64,
        });
        if self.control.wants_offers() {
            self.offer(world);
            self.control.expect(&self.offers);
        }
    }

    /// Tokens a nanosecond over so many steps.
    fn run(&mut self, world: &World, steps: usize) -> f32 {
        let (tokens, time) = (self.tokens, self.time);
        (0..steps).for_each(|_| self.step(world));
        ((self.tokens - tokens) / (self.time - time)) as f32
    }
}

fn grid() -> impl Iterator<Item = World> {
    let costs = [1e3, 1e5, 3e6];
    let rows = [1, 5, 24];
    let syncs = [0.0, 1e6];
    let probabilities = [0.0, 0.2, 0.5, 0.9];
    costs.into_iter().flat_map(move |token| {
        rows.into_iter().flat_map(move |rows| {
            syncs
                .into_iter()
                .flat_map(move |sync| probabilities.map(|host| World { token, rows, sync, host, ..WORLD }))
        })
    })
}

/// At worst as fast as without, and where drafts pay at least `part` of the best fixed length.
fn check(world: World, blind: bool, part: f32) {
    let got = Engine::new(blind).run(&world, 800);
    let (plain, best) = (world.plain(), world.best_fixed());
    assert!(got >= 0.97 * plain, "{:.3} of none: {world:?}", got / plain);
    if best > 1.15 * plain {
        assert!(got >= part * best, "{:.3} of the best of {:.3}: {world:?}", got / best, best / plain);
    }
}

#[test]
fn hosts_drafts_never_cost_and_pay_where_they_can() {
    grid().for_each(|world| check(world, false, 0.9));
}

#[test]
fn a_draft_model_never_costs_and_pays_where_it_can() {
    for world in grid().filter(|world| [0.2, 0.9].contains(&world.host) && world.rows != 5) {
        for iteration in [1e5, 2e6] {
            check(World { host: 0.0, device: world.host, iteration, ..world }, true, 0.9);
        }
    }
}

#[test]
fn a_bend_in_the_cost_is_found() {
    for (rows, bend) in [(1, 4), (4, 16), (16, 64), (64, 128)] {
        check(World { rows, bend, token: 3e5, host: 0.8, ..WORLD }, false, 0.85);
    }
}

#[test]
fn both_stack_by_what_they_bring() {
    let world = World { host: 0.5, device: 0.8, iteration: 5e5, ..WORLD };
    check(world, true, 0.9);
    check(World { host: 0.8, device: 0.5, ..world }, true, 0.9);
}

#[test]
fn it_follows_when_the_work_changes() {
    let good = World { host: 0.9, rows: 4, ..WORLD };
    let bad = World { host: 0.05, token: 1e6, ..good };
    let mut engine = Engine::new(false);
    for _ in 0..3 {
        engine.run(&good, 100);
        let settled = engine.run(&good, 200);
        assert!(settled > 0.9 * good.best_fixed(), "{} of the best", settled / good.best_fixed());
        engine.run(&bad, 60);
        let settled = engine.run(&bad, 200);
        assert!(settled > 0.97 * bad.plain(), "{} of none", settled / bad.plain());
    }
}

#[test]
fn it_follows_the_load() {
    // Bound by memory with a few rows and by arithmetic with many.
    let few = World { host: 0.7, rows: 2, token: 2e5, bend: 24, ..WORLD };
    let many = World { rows: 64, ..few };
    let mut engine = Engine::new(false);
    for _ in 0..3 {
        engine.run(&few, 80);
        let settled = engine.run(&few, 300);
        assert!(settled > 0.9 * few.best_fixed(), "{} of the best", settled / few.best_fixed());
        engine.run(&many, 40);
        let settled = engine.run(&many, 300);
        assert!(settled > 0.97 * many.plain(), "{} of none", settled / many.plain());
    }
}

#[test]
fn what_does_not_pay_is_rarely_tried() {
    let world = World { device: 0.2, iteration: 5e6, sync: 1e6, rows: 8, ..WORLD };
    let mut engine = Engine::new(true);
    let got = engine.run(&world, 20_000);
    assert!(engine.active_steps < 200, "{}", engine.active_steps);
    assert!(got > 0.99 * world.plain(), "{}", got / world.plain());
}

#[test]
fn what_holds_up_the_machine_is_no_fault_of_drafts() {
    for held_up in [0.02, 0.05, 0.1] {
        for (rows, host, device) in [(1, 0.8, 0.0), (1, 0.0, 0.9), (4, 0.6, 0.0), (16, 0.1, 0.0)] {
            let iteration = 1.5e6;
            let world = World { held_up, rows, host, device, iteration, token: 5e5, jitter: 0.2, ..WORLD };
            let mut engine = Engine::new(device > 0.0);
            engine.run(&world, 1000);
            let got = engine.run(&world, 4000);
            assert!(got >= 0.97 * world.plain(), "{:.3} of none: {world:?}", got / world.plain());
            let best = world.best_fixed();
            let pays = best > 1.15 * world.plain();
            assert!(!pays || got >= 0.85 * best, "{:.3} of the best: {world:?}", got / best);
        }
    }
}

#[test]
fn drafts_that_are_rare_are_worth_having() {
    // As a grammar forces them: seldom, and then nearly always right.
    for (offered, rows) in [(0.05, 1), (0.2, 1), (0.2, 4), (0.1, 16)] {
        let world = World { offered, rows, host: 0.98, token: 5e5, jitter: 0.2, held_up: 0.03, ..WORLD };
        let mut engine = Engine::new(true);
        engine.run(&world, 1000);
        let got = engine.run(&world, 4000);
        // Of a row's steps, the part `offered` yields eight tokens more.
        let length = (0..=MAX_DRAFT as i32).map(|power| world.host.powi(power)).sum::<f32>();
        let tokens = 1.0 + offered * (length - 1.0);
        let time = world.time(rows, 0, true) + world.token * rows as f32 * offered * MAX_DRAFT as f32;
        let best = rows as f32 * tokens / time;
        assert!(
            got > 0.9 * best.max(world.plain()),
            "{:.3}, best {:.3}: {world:?}",
            got / world.plain(),
            best / world.plain()
        );
    }
}

#[test]
fn the_same_observations_lead_to_the_same_decisions() {
    let world = World { host: 0.6, rows: 8, token: 3e5, ..WORLD };
    let of = || {
        let mut engine = Engine::new(false);
        (engine.run(&world, 500), engine.active_steps)
    };
    assert_eq!(of(), of());
}

/// The gains of the simulated devices, printed: `cargo test --release -p pyengine-core speculate::simulation::report -- --ignored --nocapture`.
#[test]
#[ignore = "prints a table"]
fn report() {
    let of = |world: &World, blind: bool, seed: u64, warm: usize, steps: usize| {
        let mut engine = Engine::new(blind);
        engine.noise = Noise(seed);
        engine.run(world, warm);
        let active = engine.active_steps;
        let got = engine.run(world, steps);
        (got, (engine.active_steps - active) as f32 / steps as f32)
    };
    type Cases = Vec<(World, bool)>;
    let model = |world: &World| [0.2, 0.9].contains(&world.host) && world.rows != 5;
    let with_model: Cases = grid()
        .filter(model)
        .flat_map(|world| {
            [1e5, 2e6].map(|iteration| (World { host: 0.0, device: world.host, iteration, ..world }, true))
        })
        .collect();
    let bends = [(1, 4), (4, 16), (16, 64), (64, 128)]
        .map(|(rows, bend)| (World { rows, bend, token: 3e5, host: 0.8, ..WORLD }, false));
    let both = World { host: 0.5, device: 0.8, iteration: 5e5, ..WORLD };
    let mut held = vec![];
    for held_up in [0.02, 0.05, 0.1] {
        for (rows, host, device) in [(1, 0.8, 0.0), (1, 0.0, 0.9), (4, 0.6, 0.0), (16, 0.1, 0.0)] {
            let iteration = 1.5e6;
            held.push((
                World { held_up, rows, host, device, iteration, token: 5e5, jitter: 0.2, ..WORLD },
                device > 0.0,
            ));
        }
    }
    let never = World { device: 0.2, iteration: 5e6, sync: 1e6, rows: 8, ..WORLD };
    let groups: Vec<(&str, Cases, usize, usize)> = vec![
        ("host grid, first 800", grid().map(|world| (world, false)).collect(), 0, 800),
        ("host grid, 1000..4000", grid().map(|world| (world, false)).collect(), 1000, 3000),
        ("model grid, first 800", with_model.clone(), 0, 800),
        ("model grid, 1000..4000", with_model, 1000, 3000),
        ("bends", bends.to_vec(), 0, 800),
        ("both", vec![(both, true), (World { host: 0.8, device: 0.5, ..both }, true)], 0, 800),
        ("held up", held, 1000, 4000),
        ("never pays", vec![(never, true)], 0, 20_000),
    ];
    println!(
        "{:26} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "worst", "off mean", "best mean", "best min", "probing"
    );
    for (name, cases, warm, steps) in groups {
        let (mut worst, mut off, mut pays, mut probing) = (f32::MAX, vec![], vec![], vec![]);
        for (world, blind) in cases {
            for seed in [7, 8, 9] {
                let (got, active) = of(&world, blind, seed, warm, steps);
                let (plain, best) = (world.plain(), world.best_fixed());
                worst = worst.min(got / plain);
                if best > 1.15 * plain {
                    pays.push(got / best);
                } else {
                    off.push(got / plain);
                    if best < 1.02 * plain {
                        probing.push(active);
                    }
                }
            }
        }
        let mean = |all: &[f32]| all.iter().sum::<f32>() / all.len() as f32;
        let least = pays.iter().copied().fold(f32::MAX, f32::min);
        println!(
            "{name:26} {worst:9.3} {:9.3} {:9.3} {least:9.3} {:9.4}",
            mean(&off),
            mean(&pays),
            mean(&probing)
        );
    }
    for (offered, rows) in [(0.05, 1), (0.2, 1), (0.2, 4), (0.1, 16)] {
        let world = World { offered, rows, host: 0.98, token: 5e5, jitter: 0.2, held_up: 0.03, ..WORLD };
        let length = (0..=MAX_DRAFT as i32).map(|power| world.host.powi(power)).sum::<f32>();
        let time = world.time(rows, 0, true) + world.token * rows as f32 * offered * MAX_DRAFT as f32;
        let best = rows as f32 * (1.0 + offered * (length - 1.0)) / time;
        let got = [7, 8, 9].map(|seed| of(&world, true, seed, 1000, 4000).0);
        println!(
            "rare {offered} of {rows}: gain {:.3?} of {:.3}",
            got.map(|got| got / world.plain()),
            best / world.plain()
        );
    }
}
