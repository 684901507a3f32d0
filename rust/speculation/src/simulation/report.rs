//! Prints what drafts gain in the worlds.

use super::cases::grid;
use super::*;

/// The gains of the simulated devices, printed: `cargo test --release -p pyengine-speculation simulation::report::report -- --ignored --nocapture`.
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
