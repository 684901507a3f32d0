//! The whole speculator with clients that come and go, in simulated time: drafts lose next to nothing at any load.
//!
//! ```text
//!  batch    a number of clients ask one question after the other; when none is left the batch ends with few rows
//!  step     prompts, or after a sequence's end: takes longer, time unknown         │ others: time by tokens as
//!           measured on two cores, noise, a machine whose speed drifts
//!  draft    a pass for each iteration, and what it takes to catch up with prompts
//! ```
//!
//! Simulates clients, with prompts that the draft model has to catch up with, batch buckets that are passed within a few
//! steps, and times that were measured when the machine was slower.

use crate::{Length, Row, Segments, Source, SpeculationConfig, Speculator, StepOutcome};

/// What work takes, in microseconds.
#[derive(Debug)]
struct Costs {
    /// A step, by its tokens.
    step: &'static [(f64, f64)],
    /// A pass of the draft model, by its rows.
    pass: &'static [(f64, f64)],
    /// A token that it catches up with.
    catch_up: f64,
    /// How much longer the step after a sequence's end takes: the answer is sent, the next question read.
    ended: f64,
}

/// The demo model on one core, measured, its engine's own time counted in.
const CPU: Costs = Costs { step: &STEP, pass: &PASS, catch_up: 8.5, ended: 250.0 };

/// A model of 8 thousand million weights beside one of 1 on a large GPU, estimated from their bytes and products.
const GPU: Costs = Costs {
    step: &[(1.0, 5000.0), (64.0, 6000.0), (128.0, 6500.0), (576.0, 10_500.0), (4096.0, 60_000.0)],
    pass: &[(1.0, 700.0), (64.0, 900.0), (2048.0, 8000.0)],
    catch_up: 4.0,
    ended: 100.0,
};

const STEP: [(f64, f64); 12] = [
    (1.0, 135.0),
    (2.0, 147.0),
    (3.0, 165.0),
    (4.0, 185.0),
    (5.0, 200.0),
    (8.0, 290.0),
    (9.0, 320.0),
    (16.0, 590.0),
    (32.0, 1060.0),
    (64.0, 2600.0),
    (128.0, 4600.0),
    (2048.0, 70_000.0),
];

const PASS: [(f64, f64); 5] = [(1.0, 30.0), (4.0, 45.0), (16.0, 150.0), (64.0, 560.0), (2048.0, 17_000.0)];

const MOST: usize = 8;

fn between(points: &[(f64, f64)], at: f64) -> f64 {
    let above = points.partition_point(|point| point.0 < at).clamp(1, points.len() - 1);
    let ((x, y), (u, v)) = (points[above - 1], points[above]);
    y + (v - y) * (at - x) / (u - x)
}

#[derive(Debug, Clone, Copy)]
struct Load {
    costs: &'static Costs,
    clients: usize,
    questions: usize,
    prompt: usize,
    answer: usize,
    /// Probability that a token of the draft model, of the prediction, is right.
    device: f64,
    host: f64,
    /// Relative; and how far the machine's speed drifts.
    noise: f64,
    drift: f64,
}

const LOAD: Load = Load {
    costs: &CPU,
    clients: 1,
    questions: 8,
    prompt: 130,
    answer: 45,
    device: 0.0,
    host: 0.0,
    noise: 0.1,
    drift: 0.15,
};

struct Client {
    slot: u32,
    prompt: usize,
    made: usize,
    answer: usize,
    computed: usize,
    serial: u32,
}

struct World {
    load: Load,
    speculator: Speculator,
    random: u64,
    noise: u64,
    speed: f64,
    serial: u32,
    /// How many sequences ended with the last step.
    ended: usize,
}

impl World {
    fn new(load: Load, on: bool, seed: u64) -> Self {
        let config = SpeculationConfig {
            sources: [(Source::DraftModel, load.device), (Source::Prediction, load.host)]
                .into_iter()
                .filter_map(|(source, probability)| (on && probability > 0.0).then_some(source))
                .collect(),
            max_draft: MOST,
            adaptive: true,
        };
        let speculator = Speculator::new(config, 64);
        Self { load, speculator, random: seed, noise: seed + u64::from(on), speed: 1.0, serial: 0, ended: 0 }
    }

    fn of(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f64 / (1u64 << 24) as f64
    }

    /// The answer's token at a place: the same in every world.
    fn token(serial: u32, at: usize) -> u32 {
        serial.wrapping_mul(977).wrapping_add(at as u32) % 50_000
    }

    fn right(serial: u32, at: usize, salt: u32, probability: f64) -> bool {
        let mut state = u64::from(serial) << 32 | (at as u64) << 8 | u64::from(salt);
        (0..3).for_each(|_| _ = Self::of(&mut state));
        Self::of(&mut state) < probability
    }

    fn ask(&mut self, slot: u32) -> Client {
        self.serial += 1;
        let vary = 0.3 + 1.4 * Self::of(&mut self.random);
        let (prompt, answer) = (self.load.prompt, (self.load.answer as f64 * vary) as usize + 2);
        let serial = self.serial;
        let tokens: Vec<u32> = (0..prompt as u32).map(|at| 50_000 + at).collect();
        let predicted = (self.load.host > 0.0).then(|| {
            (0..answer)
                .map(|at| Self::token(serial, at) + u32::from(!Self::right(serial, at, 1, self.load.host)))
                .collect::<Vec<_>>()
                .into()
        });
        self.speculator.open(slot, &tokens, prompt, predicted);
        Client { slot, prompt, made: 0, answer, computed: 0, serial }
    }

    /// Microseconds that a batch takes.
    fn batch(&mut self) -> f64 {
        let mut left = self.load.questions;
        let mut running: Vec<Client> = vec![];
        let mut free: Vec<u32> = (0..self.load.clients as u32).rev().collect();
        let mut total = 0.0;
        loop {
            let mut prefill = 0;
            while left > 0
                && let Some(slot) = free.pop()
            {
                let client = self.ask(slot);
                prefill += client.prompt;
                running.push(client);
                left -= 1;
            }
            if running.is_empty() {
                return total;
            }
            total += self.step(&mut running, prefill);
            let before = running.len();
            running.retain(|client| {
                let over = client.made >= client.answer;
                if over {
                    self.speculator.close(client.slot, true);
                    free.push(client.slot);
                }
                !over
            });
            self.ended = before - running.len();
        }
    }

    fn step(&mut self, running: &mut [Client], prefill: usize) -> f64 {
        let speculative = self.speculator.active();
        let (mut rows, mut drafts, mut lengths) = (vec![], vec![], vec![]);
        // Clients whose prompt is in this step come last.
        let decodes = running.iter().take_while(|client| client.made > 0).count();
        if speculative {
            for client in &running[..decodes] {
                let limit = MOST.min(client.answer - client.made - 1);
                let mut draft = vec![];
                let segments = self.speculator.propose(client.slot, &[], limit, &mut draft);
                let known = client.prompt + client.made;
                let lacks = known - 1 - client.computed;
                let (slot, device) = (client.slot, limit);
                let left = client.answer - client.made;
                rows.push(Row { slot, segments, device, lacks, left });
                drafts.push(draft);
            }
            self.speculator.plan_lengths(&rows, prefill, &mut lengths);
        }
        let (mut drafted, mut accepted, mut iterations, mut caught_up) = (0, 0, 0, 0);
        let mut asked = [0; MOST];
        for (at, client) in running.iter_mut().enumerate() {
            let Length { host, device } = lengths.get(at).copied().unwrap_or_default();
            let (host, device) = (usize::from(host), usize::from(device));
            let place = client.made;
            let right = if device > 0 {
                caught_up += client.prompt + client.made - 1 - client.computed;
                client.computed = client.prompt + client.made;
                let right = (0..device)
                    .take_while(|&ahead| Self::right(client.serial, place + ahead, 2, self.load.device))
                    .count();
                client.computed += right.min(device - 1);
                asked[..device].iter_mut().for_each(|rows| *rows += 1);
                right
            } else {
                (0..host)
                    .take_while(|&ahead| drafts[at][ahead] == Self::token(client.serial, place + ahead))
                    .count()
            };
            (drafted, accepted) = (drafted + host + device, accepted + right);
            iterations = iterations.max(device);
            if let Some(row) = rows.get(at) {
                let mut segments = row.segments;
                segments.truncate(host);
                if device > 0 {
                    segments = Segments::default();
                    segments.push(Source::DraftModel, 0, device);
                }
                self.speculator.judged(client.slot, &segments, right);
            }
            let new: Vec<u32> = (place..place + right + 1).map(|at| Self::token(client.serial, at)).collect();
            client.made += new.len();
            self.speculator.append(client.slot, &new);
        }
        let costs = self.load.costs;
        let mut time = between(costs.step, (running.len() + drafted + prefill) as f64);
        let passes = asked.iter().filter(|&&rows| rows > 0);
        time += passes.map(|&rows| between(costs.pass, f64::from(rows))).sum::<f64>();
        // Catching up on tokens that are not distinguished from a row's newest one costs its share of a pass.
        time += costs.catch_up * (caught_up as f64 - rows.len() as f64).max(0.0);
        self.speed = (self.speed + 0.02 * self.load.drift * (2.0 * Self::of(&mut self.noise) - 1.0))
            .clamp(1.0 - self.load.drift, 1.0 + self.load.drift);
        let noise: f64 = (0..4).map(|_| Self::of(&mut self.noise) - 0.5).sum::<f64>() * self.load.noise;
        let stall = if Self::of(&mut self.noise) < 0.01 { 3.0 } else { 1.0 };
        let duration_us = time * self.speed * (1.0 + noise) * stall;
        self.speculator.observe(&StepOutcome {
            rows: decodes,
            prompt_tokens: prefill,
            drafted,
            accepted,
            device_iterations: iterations,
            caught_up,
            speculative,
            busy_ns: (1000.0 * duration_us) as u64,
            idle_ns: None,
        });
        // The cost of noise is no merit and no fault of drafts.
        time + costs.ended * self.ended as f64
    }
}

/// Time without drafts over time with them, over a number of batches.
fn gain(load: Load, batches: usize, seed: u64) -> f64 {
    let mut with = World::new(load, true, seed);
    let mut without = World::new(load, false, seed);
    let of = |world: &mut World| (0..batches).map(|_| world.batch()).sum::<f64>();
    of(&mut without) / of(&mut with)
}

/// Loads of the demo model's bench, and some between.
fn loads() -> impl Iterator<Item = Load> {
    let work = [
        Load { device: 0.95, ..LOAD },
        Load { device: 0.7, answer: 150, ..LOAD },
        Load { host: 0.3, prompt: 100, answer: 12, ..LOAD },
        Load { host: 0.95, prompt: 50, answer: 60, ..LOAD },
        Load { host: 0.5, prompt: 50, answer: 60, ..LOAD },
    ];
    let clients = [1, 4, 16, 64].into_iter();
    clients.flat_map(move |clients| work.map(|work| Load { clients, questions: 3 * clients.max(6), ..work }))
}

#[test]
fn clients_never_wait_longer_for_drafts() {
    for load in loads() {
        let tokens = if load.clients == 64 { 30_000 } else { 6_000 };
        let batches = (tokens / (load.questions * load.answer)).max(1);
        let gain = gain(load, batches, 5);
        assert!(gain > 0.98, "{gain:.3}: {load:?}");
    }
}

#[test]
fn a_single_client_is_answered_sooner() {
    for (load, least) in [
        (Load { device: 0.95, answer: 150, ..LOAD }, 1.4),
        (Load { device: 0.95, ..LOAD }, 1.1),
        (Load { host: 0.95, prompt: 50, answer: 60, ..LOAD }, 2.0),
        (Load { host: 0.5, prompt: 50, answer: 60, ..LOAD }, 1.25),
    ] {
        let gain = gain(load, 2000 / load.answer, 6);
        assert!(gain > least, "{gain:.3}: {load:?}");
    }
}

/// All of them are behind when drafts begin, each with its prompt.
#[test]
fn many_clients_of_a_gpu_are_answered_sooner_where_drafts_are_right() {
    let load = Load { costs: &GPU, clients: 64, questions: 128, prompt: 200, ..LOAD };
    for (device, answer, least) in [(0.9, 400, 1.5), (0.8, 400, 1.25), (0.8, 150, 1.08), (0.2, 400, 0.99)] {
        let gain = gain(Load { device, answer, ..load }, 2, 5);
        assert!(gain > least, "{gain:.3}: {device} right, {answer} tokens");
    }
}

/// Where answers are short, a prompt is in most steps.
#[test]
fn many_clients_that_come_and_go_are_answered_sooner() {
    let load = Load { costs: &GPU, clients: 64, questions: 640, prompt: 60, answer: 50, ..LOAD };
    for (device, host, least) in [(0.9, 0.0, 1.2), (0.0, 0.8, 1.5), (0.2, 0.0, 0.98)] {
        let gain = gain(Load { device, host, ..load }, 2, 5);
        assert!(gain > least, "{gain:.3}: {device} {host} right");
    }
}

/// The gains of clients, printed, over some seeds.
#[test]
#[ignore = "prints a table"]
fn report() {
    let of = |load: Load, batches: usize| {
        let gains: Vec<f64> = (5..10).map(|seed| gain(load, batches, seed)).collect();
        let least = gains.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "{:3} clients, model {:.2}, predicted {:.2}, answer {:3}: mean {:.3} least {least:.3}",
            load.clients,
            load.device,
            load.host,
            load.answer,
            gains.iter().sum::<f64>() / gains.len() as f64
        );
    };
    for load in loads() {
        let tokens = if load.clients == 64 { 30_000 } else { 6_000 };
        of(load, (tokens / (load.questions * load.answer)).max(1));
    }
    of(Load { device: 0.95, answer: 150, ..LOAD }, 13);
    for (questions, prompt, answer) in [(128, 200, 400), (640, 60, 50), (640, 200, 50)] {
        println!("GPU, {prompt} tokens of prompt");
        for (device, host) in [(0.9, 0.0), (0.8, 0.0), (0.2, 0.0), (0.0, 0.8), (0.0, 0.2)] {
            let load = Load { costs: &GPU, clients: 64, questions, prompt, answer, ..LOAD };
            of(Load { device, host, ..load }, 2);
        }
    }
}
