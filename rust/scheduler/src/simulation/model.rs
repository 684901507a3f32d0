//! The model that the device computes: a token is a hash of all tokens before it, of the seed and of the position.

use pyengine_kernels_cpu::sampler::SamplingRow;

pub(super) const VOCABULARY: u64 = 48;
pub(super) const STOP_TOKEN: u32 = 0;

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Chain hash of a prefix, from that of the prefix before its last token.
pub(super) fn extend(chain: u64, token: u32) -> u64 {
    mix(chain, u64::from(token) + 1)
}

pub(super) fn choose(chain: u64, seed: u64, position: u64, allows: impl Fn(u32) -> bool) -> u32 {
    let allowed: Vec<u32> = (0..VOCABULARY as u32).filter(|token| allows(*token)).collect();
    allowed[(mix(mix(chain, seed), position) % allowed.len() as u64) as usize]
}

/// The stand-in for the log-probability of a token at a position.
pub(super) fn logprob(token: u32, position: usize) -> f32 {
    position as f32 + token as f32 / 64.0
}

pub(super) fn rules(seed: u64) -> SamplingRow {
    let temperature = (seed % 2) as f32;
    SamplingRow { temperature, top_k: seed as i32 + 1, top_p: 0.5, min_p: 0.25, seed, ..SamplingRow::NEUTRAL }
}

/// Prompts of one family begin alike.
pub(super) fn prompt(family: u64, length: usize) -> Vec<u32> {
    let shared = length * 3 / 4;
    let token = |at: usize| {
        let own = if at < shared { family } else { family + 7 * length as u64 };
        (mix(own, at as u64) % VOCABULARY) as u32
    };
    (0..length).map(token).collect()
}
