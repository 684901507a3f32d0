//! What control decides, step by step.

use super::*;

fn step(drafted: usize, accepted: usize, speculative: bool, busy_ns: u64) -> StepOutcome {
    StepOutcome { rows: 1, drafted, accepted, speculative, busy_ns, ..StepOutcome::default() }
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

const fn beside(prompt_tokens: usize) -> Batch {
    Batch { rows: 1, prompt_tokens }
}

#[test]
fn drafts_on_trial_need_a_time_that_tells() {
    let mut control = on_trial();
    assert!(control.allows(beside(0)) && !control.allows(beside(64)), "what prompts take is not known");
    (0..3).for_each(|_| control.observe(&step(4, 4, true, 150)));
    assert!(control.allows(beside(64)), "proven");
    let unknown = StepOutcome { prompt_tokens: 64, ..step(4, 4, true, 150) };
    (0..MAX_UNMEASURED).for_each(|_| control.observe(&unknown));
    assert!(control.allows(beside(0)) && !control.allows(beside(64)));
    control.observe(&step(4, 4, true, 150));
    assert!(control.allows(beside(64)));
}

#[test]
fn prompts_that_take_long_hide_what_drafts_take() {
    let mut control = on_trial();
    for (prompt_tokens, busy_ns) in [(64, 180), (1024, 900)] {
        control.observe(&StepOutcome { prompt_tokens, ..step(0, 0, true, busy_ns) });
    }
    assert!(control.allows(beside(64)) && !control.allows(beside(1024)));
}

#[test]
fn a_prompt_is_no_cost_of_the_drafts_beside_it() {
    let mut control = on_trial();
    let mixed = |drafted, accepted, busy_ns| StepOutcome {
        prompt_tokens: 32,
        ..step(drafted, accepted, true, busy_ns)
    };
    control.observe(&mixed(0, 0, 190));
    let credit = control.here().credit;
    control.observe(&mixed(4, 1, 200));
    let gained = control.here().credit - credit;
    assert!((gained - (0.9 - MARGIN)).abs() < 0.01, "one token more, for a tenth of a plain step: {gained}");
    for _ in 0..100 {
        control.observe(&mixed(4, 0, 240));
    }
    assert!(!control.active(), "drafts that lose beside prompts are given up");
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

/// Drafts of the host make the device wait; what else holds the host up does not count.
#[test]
fn waiting_for_the_host_is_a_cost_of_drafts_as_far_as_it_is_usual() {
    for (usual, gives_up) in [(10, false), (200, true)] {
        let mut control = on_trial();
        for at in 0..200 {
            let held_up = if at % 5 == 1 { 50_000 } else { 0 };
            let idle_ns = Some(usual + held_up);
            control.observe(&StepOutcome { idle_ns, ..step(4, 2, true, 150) });
            if !control.active() {
                break;
            }
        }
        assert_eq!(control.active(), !gives_up, "{usual}");
    }
}

#[test]
fn what_catching_up_takes_is_no_loss_of_its_step() {
    let mut control = on_trial();
    control.observe(&StepOutcome { device_iterations: 4, caught_up: 20, ..step(4, 4, true, 350) });
    assert!(control.catch_up.token() > 5.0 && control.here().credit > TRIAL_CREDIT);
}
