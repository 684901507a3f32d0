//! The sampler as a whole against its definition, written without any of its shortcuts.

use proptest::prelude::*;

use super::order::Row;
use super::*;
use crate::random::exponential;

const PLAIN: SamplingRow = SamplingRow::NEUTRAL;

/// Every row of `logits` by the same rules, each with a seed of its own: 0, 1, 2, ...
fn run(
    logits: &[f32],
    vocabulary: usize,
    rule: SamplingRow,
    mask: Option<&[u32]>,
    threads: usize,
) -> Vec<i32> {
    let rows = logits.len() / vocabulary;
    let each: Vec<i32> = (0..=rows as i32).collect();
    let sampling: Vec<_> = (0..rows as u64).map(|seed| SamplingRow { seed, ..rule }).collect();
    let rules = Rules {
        sampling: &sampling,
        sample_position: &vec![3; rows],
        logit_start: &each,
        logit_row: &each[..rows],
        logit_token: &each[..rows],
        mask_row: &vec![mask.map_or(-1, |_| 0); rows],
        mask: mask.unwrap_or_default(),
        mask_words: vocabulary.div_ceil(32),
    };
    rules.check(0, rows, vocabulary).unwrap();
    let mut out = vec![-7; rows];
    sample(&Threads::new(threads).unwrap(), logits, vocabulary, &rules, 0, &mut out);
    out
}

/// The definition: sort, cut, and let every token of what is left run.
fn defined(logits: &[f32], rule: SamplingRow, mask: Option<&[u32]>, stream: Stream) -> i32 {
    let allowed = |t: usize| mask.is_none_or(|words| words[t / 32] >> (t % 32) & 1 == 1);
    let mut order: Vec<usize> = (0..logits.len()).filter(|&t| allowed(t)).collect();
    if let (Some(_), [token]) = (mask, &order[..]) {
        return *token as i32;
    }
    order.retain(|&t| logits[t] > f32::NEG_INFINITY);
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let Some(&best) = order.first() else { return -1 };
    if rule.temperature == 0.0 {
        return best as i32;
    }
    let mut row = Row::new();
    if rule.top_n_sigma > 0.0 && logits[best] < f32::INFINITY {
        let depth = |t: usize| ((logits[best] - logits[t]).min(2048.0) * 2048.0 + 0.5) as i64;
        let count = order.len() as i64;
        let mean = order.iter().map(|&t| depth(t)).sum::<i64>() / count;
        let variance = order.iter().map(|&t| (depth(t) - mean).pow(2)).sum::<i64>() as f64 / count as f64;
        let n = f64::from(rule.top_n_sigma);
        order.retain(|&t| depth(t).pow(2) as f64 <= n * n * variance * (1.0 + 1e-12));
    }
    let left: Vec<f32> = order.iter().map(|&t| logits[t]).collect();
    row.load(&left, None);
    let warmth =
        dynamic::temperature(&mut row, rule.temperature, rule.dynatemp_range, rule.dynatemp_exponent);
    row.load(&[logits[best]], None);
    let scale = temperature::Scale::new(&mut row, warmth);
    if rule.top_k > 0 {
        order.truncate(rule.top_k as usize);
    }
    if rule.top_p < 1.0 {
        let masses: Vec<u64> = order.iter().map(|&t| scale.mass(logits[t]).into()).collect();
        let wanted = f64::from(rule.top_p) * masses.iter().sum::<u64>() as f64;
        let mut reached = 0;
        let last = masses.iter().position(|mass| {
            reached += mass;
            reached as f64 >= wanted
        });
        order.truncate(last.unwrap() + 1);
    }
    order.retain(|&t| scale.weight(logits[t]) >= rule.min_p && scale.weight(logits[t]) > 0.0);
    if rule.typical_p < 1.0 {
        let mass = |t: usize| u64::from(scale.mass(logits[t]));
        let depth = |t: usize| ((-scale.exponent(logits[t])).min(88.0) * 16384.0 + 0.5) as i64;
        let total: u64 = order.iter().map(|&t| mass(t)).sum();
        let mean = order.iter().map(|&t| mass(t) * depth(t) as u64).sum::<u64>() / total;
        let distance = |t: usize| (depth(t) - mean as i64).abs();
        let mut near = order.clone();
        near.sort_by_key(|&t| distance(t));
        let mut reached = 0;
        let last = near.iter().find(|&&t| {
            reached += mass(t);
            reached > 0 && reached as f64 >= f64::from(rule.typical_p) * total as f64
        });
        let farthest = distance(*last.unwrap());
        order.retain(|&t| distance(t) <= farthest);
    }
    let happens = f64::from(stream.common_word()) / 4_294_967_296.0 < f64::from(rule.xtc_probability);
    if happens && rule.xtc_threshold <= 0.5 {
        let mass = |t: usize| u64::from(scale.mass(logits[t]));
        let total: u64 = order.iter().map(|&t| mass(t)).sum();
        let wanted = f64::from(rule.xtc_threshold) * total as f64;
        let likely = order.iter().filter(|&&t| mass(t) > 0 && mass(t) as f64 >= wanted).count();
        order.drain(..likely.max(1) - 1);
    }
    let time = |t: usize| exponential(stream.word(t as u32)) / scale.weight(logits[t]);
    order.into_iter().min_by(|&a, &b| time(a).total_cmp(&time(b)).then(a.cmp(&b))).unwrap() as i32
}

fn rule() -> impl Strategy<Value = SamplingRow> {
    (
        prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0],
        prop_oneof![2 => Just(0), 2 => 1i32..40, 1 => 40i32..1500],
        prop_oneof![1 => Just(1.0f32), 2 => 0.0f32..1.0],
        prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..1.0],
        prop_oneof![1 => Just(1.0f32), 1 => 0.0f32..1.0],
        prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..4.0],
        prop_oneof![2 => Just((0.0f32, 1.0f32)), 1 => (0.0f32..2.0, 0.1f32..3.0)],
        prop_oneof![1 => Just((0.0f32, 0.1f32)), 1 => (0.0f32..1.2, 0.0f32..0.6)],
    )
        .prop_map(|(temperature, top_k, top_p, min_p, typical_p, top_n_sigma, dynamic, xtc)| {
            SamplingRow {
                temperature,
                top_k,
                top_p,
                min_p,
                typical_p,
                top_n_sigma,
                dynatemp_range: dynamic.0,
                dynatemp_exponent: dynamic.1,
                xtc_probability: xtc.0,
                xtc_threshold: xtc.1,
                ..PLAIN
            }
        })
}

/// Spread or crowded, with ties and holes.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    (1usize..1200, 0u64..1 << 40, prop_oneof![Just(0.0f32), Just(0.01), Just(1.0), Just(6.0)], any::<bool>())
        .prop_map(|(vocabulary, seed, spread, coarse)| {
            let draw = |token| exponential(Stream::new(seed, 0).word(token));
            let value = |token| (draw(token) * spread, draw(token + 5000));
            (0..vocabulary as u32)
                .map(value)
                .map(|(logit, luck)| match luck {
                    luck if luck < 0.01 => f32::NEG_INFINITY,
                    luck if luck < 0.02 => f32::NAN,
                    _ if coarse => (logit * 4.0).round() / 4.0,
                    _ => logit,
                })
                .collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_sampler_does_what_is_defined(
        logits in logits(), rule in rule(), mask in prop::option::of((any::<u64>(), 0u32..33))
    ) {
        let mask = mask.map(|(seed, density)| -> Vec<u32> {
            let stream = Stream::new(seed, 9);
            let bit = |at: u32| u32::from(stream.word(at) % 33 < density);
            (0..38).map(|word| (0..32).map(|at| bit(word * 32 + at) << at).sum()).collect()
        });
        let mask = mask.as_deref().map(|words| &words[..logits.len().div_ceil(32)]);
        let rows = logits.repeat(8);
        let tokens = run(&rows, logits.len(), rule, mask, 1);
        for (seed, token) in tokens.into_iter().enumerate() {
            prop_assert_eq!(token, defined(&logits, rule, mask, Stream::new(seed as u64, 3)));
        }
    }
}

#[test]
fn what_is_no_number_has_a_defined_result() {
    const N: f32 = f32::NAN;
    const I: f32 = f32::INFINITY;
    for temperature in [0.0, f32::NAN, 1.0, 1e-30] {
        let run = |logits: &[f32]| run(logits, 5, SamplingRow { temperature, ..PLAIN }, None, 1);
        assert_eq!(run(&[N, N, N, N, N]), [-1]);
        assert_eq!(run(&[-I, -I, -I, -I, -I]), [-1]);
        assert_eq!(run(&[N, -I, 2.0, -I, N]), [2]);
        assert_eq!(run(&[N, 5.0, 2.0, I, -I]), [3]);
    }
    let two_infinite = [1.0, I, I, 0.0, 0.0].repeat(64);
    assert_eq!(run(&two_infinite[..5], 5, SamplingRow { temperature: 0.0, ..PLAIN }, None, 1), [1]);
    for rule in [PLAIN, SamplingRow { top_k: 4, ..PLAIN }, SamplingRow { top_p: 0.9, ..PLAIN }] {
        let both = run(&two_infinite, 5, rule, None, 1);
        assert!(
            both.contains(&1) && both.contains(&2) && both.iter().all(|t| [1, 2].contains(t)),
            "{both:?}"
        );
    }
    assert!(run(&two_infinite, 5, SamplingRow { top_p: 0.5, ..PLAIN }, None, 1).iter().all(|&t| t == 1));
}

#[test]
fn a_mask_comes_before_everything() {
    let logits = [f32::NAN, 5.0, 1.0, f32::NAN, 0.0].repeat(300);
    for temperature in [0.0, 1.0] {
        let rule = SamplingRow { temperature, ..PLAIN };
        assert!(run(&logits, 5, rule, Some(&[0b01000]), 1).iter().all(|&t| t == 3), "one is not looked at");
        assert!(run(&logits, 5, rule, Some(&[0b00000]), 1).iter().all(|&t| t == -1));
        assert!(run(&logits, 5, rule, Some(&[0b01001]), 1).iter().all(|&t| t == -1), "two NaNs");
        assert!(run(&logits, 5, rule, Some(&[!0 << 5]), 1).iter().all(|&t| t == -1), "beyond the vocabulary");
    }
    let top_two = run(&logits, 5, SamplingRow { top_k: 2, ..PLAIN }, Some(&[0b11101]), 1);
    assert!(top_two.contains(&2) && top_two.contains(&4) && !top_two.contains(&1));
}

#[test]
fn a_row_does_not_depend_on_the_others_nor_on_the_threads() {
    let logits: Vec<f32> = (0..5 * 20_000).map(|i| (i * 31 % 17) as f32 / 4.0).collect();
    let rule = SamplingRow { temperature: 0.9, ..PLAIN };
    let together = run(&logits, 5, rule, None, 1);
    assert_eq!(together, run(&logits, 5, rule, None, 4));
    assert_eq!(together[..10], run(&logits[..50], 5, rule, None, 1));
}

/// Three sequences with 2, 0 and 3 drafts, in chunks: what one row alone gives at its position.
#[test]
fn logits_rows_are_positions_of_their_sequence() {
    let vocabulary = 37;
    let logits: Vec<f32> = (0..8 * vocabulary).map(|i| (i * 7919 % 101) as f32 / 25.0).collect();
    let rules = Rules {
        sampling: &[
            SamplingRow { top_p: 0.9, seed: 5, ..PLAIN },
            SamplingRow { temperature: 1.5, top_k: 9, seed: 6, ..PLAIN },
            SamplingRow { temperature: 0.7, min_p: 0.1, seed: 7, ..PLAIN },
        ],
        sample_position: &[100, 200, (1 << 32) - 2],
        logit_start: &[0, 3, 4, 8],
        logit_row: &[0, 0, 0, 1, 2, 2, 2, 2],
        logit_token: &[4, 5, 6, 7, 10, 11, 12, 13],
        mask_row: &[-1; 8],
        mask: &[],
        mask_words: 0,
    };
    let threads = Threads::new(1).unwrap();
    let mut tokens = vec![-7; 8];
    for (first, rows) in [(0, 2), (2, 5), (7, 1)] {
        rules.check(first, first + rows, vocabulary).unwrap();
        let logits = &logits[first * vocabulary..];
        sample(&threads, logits, vocabulary, &rules, first, &mut tokens[first..first + rows]);
    }
    for at in 0..8 {
        let row = rules.logit_row[at] as usize;
        let rule = rules.sampling[row];
        let position = rules.sample_position[row] as u64 + (at as u64 - rules.logit_start[row] as u64);
        let alone = &logits[at * vocabulary..][..vocabulary];
        assert_eq!(tokens[at], defined(alone, rule, None, Stream::new(rule.seed, position)));
    }

    // Drafts: both right; none; the second wrong and the third right again.
    let mut token_ids = vec![-1; 14];
    token_ids[5..7].copy_from_slice(&tokens[..2]);
    token_ids[11..14].copy_from_slice(&[tokens[4], tokens[5] + 1, tokens[6]]);
    let mut counts = [0; 3];
    rules.check_drafts(3, token_ids.len(), tokens.len()).unwrap();
    verify::verify(&rules, &token_ids, &tokens, &mut counts);
    assert_eq!(counts, [3, 1, 2]);
}
