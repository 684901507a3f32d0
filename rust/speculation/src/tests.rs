//! The speculator by its calls: which source drafts, and what any calls keep to.

use super::*;
use proptest::prelude::*;

const HOST: [Source; 3] = [Source::Forced, Source::Prediction, Source::Ngram];

/// The host's sources but for these.
fn without<const N: usize>(left_out: [Source; N]) -> SpeculationConfig {
    let sources = HOST.into_iter().filter(|source| !left_out.contains(source)).collect();
    SpeculationConfig { sources, ..config() }
}

/// All sources.
fn with_model() -> SpeculationConfig {
    SpeculationConfig { sources: Source::ALL.iter().copied().collect(), ..config() }
}

fn config() -> SpeculationConfig {
    SpeculationConfig { sources: HOST.into_iter().collect(), max_draft: 8, adaptive: false }
}

fn propose(speculator: &mut Speculator, slot: u32, forced: &[u32]) -> (Vec<u32>, Segments) {
    let mut draft = vec![];
    let segments = speculator.propose(slot, forced, 8, &mut draft);
    assert_eq!(segments.total(), draft.len());
    (draft, segments)
}

fn sources(segments: &Segments) -> Vec<Source> {
    segments.iter().map(|segment| segment.source).collect()
}

#[test]
fn what_is_forced_comes_first_and_the_others_go_on() {
    let mut speculator = Speculator::new(config(), 2);
    speculator.open(1, &[1, 2, 3, 4, 5, 6, 7, 1], 8, None);
    let (draft, segments) = propose(&mut speculator, 1, &[2, 3]);
    assert_eq!((&draft[..2], &draft[2..6], segments.forced()), (&[2, 3][..], &[4, 5, 6, 7][..], 2));
    assert_eq!(sources(&segments)[0], Source::Forced);
    let off = without([Source::Ngram, Source::Forced]);
    let mut none = Speculator::new(off, 2);
    none.open(1, &[1, 2, 1], 3, None);
    assert_eq!(propose(&mut none, 1, &[2, 3]).0, [0u32; 0], "switched off");
}

#[test]
fn the_better_source_wins_as_it_is_measured() {
    let mut speculator = Speculator::new(config(), 1);
    // The client predicts nonsense; the text repeats itself.
    let prompt: Vec<u32> = (0..10).cycle().take(40).collect();
    let nonsense: Arc<[u32]> = (0..400u32).map(|at| 1000 + at).collect();
    speculator.open(0, &prompt, prompt.len(), Some(nonsense));
    let mut last = vec![];
    for at in 40..80u32 {
        last = sources(&propose(&mut speculator, 0, &[]).1);
        speculator.append(0, &[at % 10]);
    }
    assert_eq!(last, [Source::Ngram]);
}

#[test]
fn it_goes_on_after_preemption() {
    let mut speculator = Speculator::new(without([Source::Ngram]), 2);
    let predicted: Arc<[u32]> = (0..20).collect();
    speculator.open(0, &[90, 91], 2, Some(predicted.clone()));
    speculator.append(0, &[0, 1, 2]);
    let before = propose(&mut speculator, 0, &[]);
    speculator.close(0, false);
    speculator.open(1, &[90, 91, 0, 1, 2], 2, Some(predicted));
    assert_eq!(propose(&mut speculator, 1, &[]), before);
    assert_eq!(before.0, [3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn a_long_prompt_is_indexed_in_pieces() {
    let mut speculator = Speculator::new(config(), 3);
    let prompt: Vec<u32> = (0..10_000).chain(9_000..9_010).collect();
    speculator.open(2, &prompt, prompt.len(), None);
    assert!(propose(&mut speculator, 2, &[]).0.is_empty());
    for _ in 0..9 {
        speculator.tend(1000);
    }
    assert_eq!(propose(&mut speculator, 2, &[]).0, (9_010..9_018).collect::<Vec<_>>());
}

#[test]
fn some_are_watched_while_none_are_sent_and_the_others_indexed_when_asked() {
    let adaptive = SpeculationConfig { adaptive: true, ..config() };
    let mut speculator = Speculator::new(adaptive, 16);
    let text: Vec<u32> = (0..50).chain(0..10).collect();
    (0..16).for_each(|slot| speculator.open(slot, &text, text.len(), None));
    assert!(!speculator.active());
    let watched = (0..16).filter(|&slot| speculator.sequences[slot].watched).count();
    let indexed = (0..16).filter(|&slot| speculator.sequences[slot].behind() == 0).count();
    assert_eq!((watched, indexed), (FEW + 16 / WATCHED, FEW + 16 / WATCHED));
    for slot in 0..16 {
        assert_eq!(propose(&mut speculator, slot, &[]).0, (10..18).collect::<Vec<_>>(), "slot {slot}");
    }
    (0..16).for_each(|slot| speculator.close(slot, false));
    assert_eq!(speculator.open, 0);
}

#[test]
fn what_was_verified_is_counted_by_source_and_position() {
    let mut speculator = Speculator::new(with_model(), 1);
    speculator.open(0, &[1, 2, 3, 1, 2], 5, None);
    let mut segments = Segments::default();
    segments.push(Source::Forced, 0, 2);
    segments.push_device(3);
    speculator.judged(0, &segments, 3);
    let stats = speculator.stats();
    let of = |source: Source| (stats.proposed[source as usize], stats.accepted[source as usize]);
    assert_eq!((of(Source::Forced), of(Source::DraftModel), of(Source::Ngram)), ((2, 2), (3, 1), (0, 0)));
    let model = stats.by_position[Source::DraftModel as usize];
    assert_eq!(model[..6], [(0, 0), (0, 0), (1, 1), (1, 0), (0, 0), (0, 0)]);
}

#[test]
fn everything_is_sent_if_nothing_is_measured() {
    let mut speculator = Speculator::new(with_model(), 2);
    assert!(speculator.active());
    speculator.open(0, &[1, 2, 3, 1, 2], 5, None);
    speculator.open(1, &[5], 1, None);
    let rows = [0, 1].map(|slot| {
        let segments = propose(&mut speculator, slot, &[]).1;
        Row { slot, segments, device: 4, lacks: 0, left: 100 }
    });
    let mut lengths = vec![];
    speculator.plan_lengths(&rows, 0, &mut lengths);
    assert_eq!(lengths, [Length { host: 8, device: 0 }, Length { host: 0, device: 4 }]);
    let nothing = SpeculationConfig { max_draft: 0, ..config() };
    assert!(!Speculator::new(nothing, 1).active());
}

/// A device that takes `base + token · tokens`, and sequences that follow their client's prediction but for
/// every `wrong`th token. Tokens a second over those without drafts.
fn served(token: u64, wrong: usize, steps: usize) -> f64 {
    let mut speculator =
        Speculator::new(SpeculationConfig { adaptive: true, ..without([Source::Forced]) }, 4);
    let base = 10_000_000;
    let (mut tokens, mut time) = (0, 0);
    let mut ages = [usize::MAX; 4];
    let truth = |slot: usize, at: usize| (at * 4 + slot) as u32;
    let mut lengths = vec![];
    for _ in 0..steps {
        let speculative = speculator.active();
        let (mut rows, mut drafts) = (vec![], vec![]);
        for (slot, age) in ages.iter_mut().enumerate() {
            if *age > 300 {
                let predicted =
                    (0..400).map(|at| truth(slot, at) + u32::from(at % wrong == wrong - 1) * 9999);
                speculator.close(slot as u32, true);
                speculator.open(slot as u32, &[77], 1, Some(predicted.collect()));
                *age = 0;
            }
            let mut draft = vec![];
            let segments = if speculative {
                speculator.propose(slot as u32, &[], 8, &mut draft)
            } else {
                Segments::default()
            };
            rows.push(Row { slot: slot as u32, segments, device: 0, lacks: 0, left: 100 });
            drafts.push(draft);
        }
        speculator.plan_lengths(&rows, 0, &mut lengths);
        let (mut drafted, mut accepted) = (0, 0);
        for slot in 0..4 {
            let sent = if speculative { usize::from(lengths[slot].host) } else { 0 };
            let right = (0..sent).take_while(|&at| drafts[slot][at] == truth(slot, ages[slot] + at)).count();
            let mut segments = rows[slot].segments;
            segments.truncate(sent);
            speculator.judged(slot as u32, &segments, right);
            let new: Vec<u32> = (0..=right).map(|at| truth(slot, ages[slot] + at)).collect();
            speculator.append(slot as u32, &new);
            ages[slot] += new.len();
            (drafted, accepted) = (drafted + sent, accepted + right);
        }
        let (busy_ns, idle_ns) = (base + token * (4 + drafted as u64), if speculative { 500_000 } else { 0 });
        (tokens, time) = (tokens + 4 + accepted as u64, time + busy_ns + idle_ns);
        let step = StepOutcome {
            rows: 4,
            drafted,
            accepted,
            speculative,
            busy_ns,
            idle_ns: Some(idle_ns),
            ..StepOutcome::default()
        };
        speculator.observe(&step);
    }
    (tokens as f64 / time as f64) / (4.0 / (base + 4 * token) as f64)
}

#[test]
fn a_prediction_speeds_up_what_follows_it_and_slows_nothing_down() {
    let good = served(100_000, 20, 400);
    assert!(good > 3.0, "{good}");
    for (token, wrong) in [(100_000, 1), (5_000_000, 1), (5_000_000, 3)] {
        let got = served(token, wrong, 400);
        assert!(got > 0.97, "{got}: {token} {wrong}");
    }
}

#[derive(Debug, Clone)]
enum Call {
    Open(u32, Vec<u32>, usize, Option<Vec<u32>>),
    Append(u32, Vec<u32>),
    Close(u32, bool),
    Propose(u32, Vec<u32>, usize),
    Judge(u32, usize),
    Plan(usize, usize),
    Observe(usize, usize, usize, bool, u64, usize),
    Tend(usize),
}

fn call() -> impl Strategy<Value = Call> {
    let tokens = |most| prop::collection::vec(0u32..5, 0..most);
    prop_oneof![
        (0u32..4, tokens(40), 0usize..40, prop::option::of(tokens(30)))
            .prop_map(|(slot, text, prompt, prediction)| Call::Open(slot, text, prompt, prediction)),
        (0u32..4, tokens(6)).prop_map(|(slot, text)| Call::Append(slot, text)),
        (0u32..4, any::<bool>()).prop_map(|(slot, finished)| Call::Close(slot, finished)),
        (0u32..4, tokens(6), 0usize..12).prop_map(|(slot, forced, limit)| Call::Propose(slot, forced, limit)),
        (0u32..4, 0usize..12).prop_map(|(slot, accepted)| Call::Judge(slot, accepted)),
        (0usize..6, 0usize..2).prop_map(|(device, prefill)| Call::Plan(device, prefill)),
        (0usize..80, 0usize..80, 0usize..4, any::<bool>(), prop_oneof![Just(0), 1u64..1 << 40], 0usize..2)
            .prop_map(|(rows, drafted, iterations, speculative, time, prompt)| Call::Observe(
                rows,
                drafted,
                iterations,
                speculative,
                time,
                prompt
            )),
        (0usize..50).prop_map(Call::Tend),
    ]
}

proptest! {
    /// Any calls in any order: nothing panics, limits hold, lengths are within what was proposed.
    #[test]
    fn any_calls(calls in prop::collection::vec(call(), 0..120), adaptive in any::<bool>()) {
        let config = SpeculationConfig { adaptive, max_draft: 6, ..with_model() };
        let mut speculator = Speculator::new(config, 4);
        let mut segments = [Segments::default(); 4];
        for call in calls {
            match call {
                Call::Open(slot, text, prompt, prediction) => {
                    speculator.open(slot, &text, prompt, prediction.map(Into::into));
                }
                Call::Append(slot, text) => speculator.append(slot, &text),
                Call::Close(slot, finished) => speculator.close(slot, finished),
                Call::Propose(slot, forced, limit) => {
                    let mut draft = vec![99];
                    segments[slot as usize] = speculator.propose(slot, &forced, limit, &mut draft);
                    let total = segments[slot as usize].total();
                    prop_assert!(draft.len() == total + 1 && total <= limit.min(6) && draft[0] == 99);
                }
                Call::Judge(slot, accepted) => speculator.judged(slot, &segments[slot as usize], accepted),
                Call::Plan(device, prefill) => {
                    let rows: Vec<_> = (0..4).map(|slot| Row { slot, segments: segments[slot as usize], device, lacks: 70 * device, left: 30 }).collect();
                    let mut lengths = vec![];
                    speculator.plan_lengths(&rows, prefill, &mut lengths);
                    prop_assert_eq!(lengths.len(), if lengths.is_empty() { 0 } else { 4 });
                    for (row, length) in rows.iter().zip(&lengths) {
                        let (host, device) = (usize::from(length.host), usize::from(length.device));
                        prop_assert!(host <= row.segments.total() && device <= row.device);
                        prop_assert!(host + device <= 6);
                        prop_assert!(device == 0 || host == row.segments.forced());
                    }
                }
                Call::Observe(rows, drafted, device_iterations, speculative, busy_ns, prompt_tokens) => {
                    let accepted = drafted / 2;
                    let idle_ns = Some(busy_ns / 7);
                    speculator.observe(&StepOutcome { rows, prompt_tokens, drafted, accepted, device_iterations, caught_up: 0, speculative, busy_ns, idle_ns });
                }
                Call::Tend(budget) => speculator.tend(budget),
            }
        }
    }
}
