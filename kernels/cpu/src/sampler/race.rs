//! The draw: an exponential race.
//!
//! Token `t` arrives at time `E_t / w_t`, its exponential number ([`crate::random`]) over its weight; the
//! first to arrive is the sample, the lower id of two that arrive together. That is a draw from the
//! distribution that the weights give, for of independent exponential clocks the one with rate w rings
//! first with probability w over the sum. Because the noise belongs to the token and not to the draw, two
//! distributions that are alike mostly give the same token: this is how a draft model that samples with
//! the same noise is right without being asked for its probabilities. It agrees with probability at
//! least (1 - d) / (1 + d), d being the total variation distance (Daliri, Musco and Suresh, "Coupling
//! without Communication and Drafter-Invariant Speculative Decoding", 2024).
//!
//! O(n), of which most is drawing noise in vectors: -ln(u) > 1 - u rules nearly every token
//! out before a logarithm is taken, once the first few have arrived, and whole blocks before noise is drawn.

use super::order::{Candidate, Cut, GROUP, Row, largest};
use super::temperature::Scale;
use crate::multiversion;
use crate::random::{BLOCK, LANES, Stream, exponential};

/// What is ruled out without exact arithmetic is later than the first by this factor, which is far more than
/// all roundings together.
const MARGIN: f32 = 1.0 + 1e-5;

/// The first arrival so far.
#[derive(Debug, Clone, Copy)]
struct First {
    time: f32,
    token: u32,
}

impl First {
    const NONE: Self = Self { time: f32::INFINITY, token: u32::MAX };

    #[inline]
    fn arrive(&mut self, word: u32, weight: f32, token: u32) {
        let time = exponential(word) / weight;
        if time < self.time || (time == self.time && token < self.token) {
            *self = Self { time, token };
        }
    }
}

/// The token that is drawn from those that `row` keeps with a weight of at least `least`, which is above 0.
///
/// The best of the row must be among them.
pub fn first_to_arrive(row: &Row, scale: Scale, least: f32, stream: Stream) -> u32 {
    match row.kept() {
        // A whole block costs about as much noise as three single tokens.
        Some(kept) if kept.len() < row.vocabulary() / 8 => of_listed(kept, scale, least, stream),
        _ => of_row(row, scale, least, stream),
    }
}

fn of_listed(kept: &[Candidate], scale: Scale, least: f32, stream: Stream) -> u32 {
    let mut first = First::NONE;
    for candidate in kept {
        let weight = scale.weight(candidate.logit());
        if weight >= least {
            first.arrive(stream.word(candidate.token()), weight, candidate.token());
        }
    }
    first.token
}

#[inline(always)]
fn of_row_body<const FMA: bool>(row: &Row, scale: Scale, least: f32, stream: Stream) -> u32 {
    let mut first = First::NONE;
    let best = row.peaks().iter().position(|&peak| peak == row.best()).unwrap_or(0) * GROUP / BLOCK;
    // The best one's block first: after it most others can be ruled out.
    run_block::<FMA>(row, best, scale, least, stream, &mut first);
    for block in 0..row.logits().len() / BLOCK {
        if block != best {
            run_block::<FMA>(row, block, scale, least, stream, &mut first);
        }
    }
    first.token
}

multiversion!(
    fn of_row(row: &Row, scale: Scale, least: f32, stream: Stream) -> u32 = of_row_body
);

#[inline(always)]
fn run_block<const FMA: bool>(
    row: &Row,
    block: usize,
    scale: Scale,
    least: f32,
    stream: Stream,
    first: &mut First,
) {
    const SMALLEST: f32 = 1.0 / (1u64 << 33) as f32; // of the exponential numbers
    let cut: Cut = row.cut();
    let peaks: &[f32; 4] = row.peaks()[block * 4..].first_chunk().expect("whole blocks");
    let peak = largest(peaks);
    let heaviest = scale.weight(peak) * MARGIN;
    if !cut.reaches(peak) || heaviest < least || SMALLEST > heaviest * first.time {
        return;
    }
    let words = stream.block::<FMA>(block as u32);
    for (within, words) in words.iter().enumerate() {
        let group = block * 4 + within;
        let start = (group * GROUP) as u32;
        let logits = row.group(group);
        let mut weights = [0.0; LANES];
        let mut early = 0;
        let limit = first.time * MARGIN * 2_147_483_648.0;
        for at in 0..LANES {
            let weight = scale.weight(logits[at]);
            let kept = cut.keeps(logits[at], start + at as u32) & (weight >= least);
            weights[at] = if kept { weight } else { 0.0 };
            // At most 2^31 (1 - u). No weight gives a NaN where no token has arrived, which is not early.
            let lacks = (!words[at] >> 1) as i32 as f32;
            early |= u32::from(lacks <= weights[at] * limit);
        }
        if early != 0 {
            for at in 0..LANES {
                if weights[at] > 0.0 {
                    first.arrive(words[at], weights[at], start + at as u32);
                }
            }
        }
    }
}
