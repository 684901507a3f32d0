//! Counter-based random numbers: Philox 4x32-10, and which of them a token has.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11). A number is
//! a pure function of key and counter: a request draws the same ones in whatever batch, on whatever
//! thread or device, after whatever restart. O(1), no state.
//!
//! The noise of token `t` at `position` under `seed` is one 32-bit word. Tokens come in blocks of
//! 128, which have 32 counters of four words each, laid out so that neither vectors on a processor nor
//! warps on a GPU have to transpose anything, and so that a word of a bit mask has one word of each counter:
//!
//! ```text
//! key      seed mod 2^32, seed / 2^32
//! counter  position mod 2^32, position / 2^32, 32 * (t / 128) + t % 32, 0
//! word     (t / 32) % 4 of the four
//! ```
//!
//! What is drawn once for all tokens has the first word of the counter that ends in 0, 1.
//!
//! From the word `b`, `u = (b + 1/2) / 2^32`, and the token's exponential number is `-ln(u)`, computed by
//! [`exponential`] to full relative precision at both ends: the smallest is 2^-33.

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Tokens that share one run of counters.
pub const BLOCK: usize = 128;

/// Counters of a block, and tokens that each of their four words serves.
pub const LANES: usize = 32;

/// The key of a draw: a seed and a position in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    position: [u32; 2],
}

impl Stream {
    /// The noise of the token at `position` under `seed`.
    pub fn new(seed: u64, position: u64) -> Self {
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        Self { key: halves(seed), position: halves(position) }
    }

    /// The word of one token.
    #[inline]
    pub fn word(self, token: u32) -> u32 {
        let (block, within) = (token / BLOCK as u32, token % BLOCK as u32);
        let counter = block * LANES as u32 + within % LANES as u32;
        let words = philox([self.position[0], self.position[1], counter, 0], self.key);
        words[within as usize / LANES]
    }

    /// A word that is no token's: for what is drawn once for all tokens.
    #[inline]
    pub fn common_word(self) -> u32 {
        philox([self.position[0], self.position[1], 0, 1], self.key)[0]
    }

    /// The words of a block: those of token `128 * block + 32 * i + j` at `[i][j]`.
    ///
    /// `AVX2` says that the processor has it; see [`crate::math::has_fma`].
    #[inline(always)]
    pub fn block<const AVX2: bool>(self, block: u32) -> [[u32; LANES]; 4] {
        #[cfg(target_arch = "x86_64")]
        if AVX2 {
            // SAFETY: the caller says so.
            return unsafe { self.block_by_vectors(block) };
        }
        let mut words = [[0; LANES]; 4];
        for lane in 0..LANES {
            let counter = block * LANES as u32 + lane as u32;
            let drawn = philox([self.position[0], self.position[1], counter, 0], self.key);
            for (to, from) in words.iter_mut().zip(drawn) {
                to[lane] = from;
            }
        }
        words
    }

    /// As [`Self::block`]. By hand, for whether the compiler finds vectors here depends on where it inlines.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn block_by_vectors(self, block: u32) -> [[u32; LANES]; 4] {
        use std::arch::x86_64::*;

        let wide = |word: u32| _mm256_set1_epi64x(i64::from(word));
        let by = MULTIPLIERS.map(|by| _mm256_set1_epi64x(by as i64));
        // A macro and not a loop over an array, which may end up in memory.
        macro_rules! round {
            ($c0:ident, $c1:ident, $c2:ident, $c3:ident, $key:ident) => {
                let left = _mm256_mul_epu32($c0, by[0]);
                let right = _mm256_mul_epu32($c2, by[1]);
                $c0 = _mm256_xor_si256(_mm256_srli_epi64::<32>(right), _mm256_xor_si256($c1, $key[0]));
                $c2 = _mm256_xor_si256(_mm256_srli_epi64::<32>(left), _mm256_xor_si256($c3, $key[1]));
                ($c1, $c3) = (right, left);
            };
        }
        let mut keys = [[wide(0); 2]; ROUNDS];
        let mut key = self.key;
        for keys in &mut keys {
            *keys = [wide(key[0]), wide(key[1])];
            key = next(key);
        }
        let mut words = [[0; LANES]; 4];
        for start in (0..LANES).step_by(8) {
            // Words are the low halves of 64-bit lanes, even counters in one vector and odd ones in the other;
            // what a product leaves in the high halves is carried along and never looked at.
            let first = i64::from(block) * LANES as i64 + start as i64;
            let even = _mm256_set_epi64x(first + 6, first + 4, first + 2, first);
            let odd = _mm256_add_epi64(even, wide(1));
            let [low, high] = self.position.map(wide);
            let (mut even0, mut even1, mut even2, mut even3) = (low, high, even, wide(0));
            let (mut odd0, mut odd1, mut odd2, mut odd3) = (low, high, odd, wide(0));
            for key in &keys {
                round!(even0, even1, even2, even3, key);
                round!(odd0, odd1, odd2, odd3, key);
            }
            let even = [even0, even1, even2, even3];
            let odd = [odd0, odd1, odd2, odd3];
            for (word, to) in words.iter_mut().enumerate() {
                let both = _mm256_blend_epi32::<0b1010_1010>(even[word], _mm256_slli_epi64::<32>(odd[word]));
                let to: &mut [u32; 8] = to[start..].first_chunk_mut().expect("eight lanes are left");
                // SAFETY: to 32 bytes that are ours, of any alignment.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), both) };
            }
        }
        words
    }
}

/// The key of the next round.
#[inline(always)]
fn next(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])]
}

/// The four words of `counter` under `key`.
#[inline(always)]
pub fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..ROUNDS {
        let left = u64::from(c0) * MULTIPLIERS[0];
        let right = u64::from(c2) * MULTIPLIERS[1];
        c0 = (right >> 32) as u32 ^ c1 ^ key[0];
        c2 = (left >> 32) as u32 ^ c3 ^ key[1];
        (c1, c3) = (right as u32, left as u32);
        key = next(key);
    }
    [c0, c1, c2, c3]
}

/// `-ln((word + 1/2) / 2^32)`, within 2 units in the last place.
///
/// In f32 with a rounding after every operation and none fused, in this order, so that every device that
/// does the same has the same bits. The logarithm is Cephes' `logf` (S. L. Moshier) on \[√½, √2); a word
/// from 2^31 on goes by `ln(1 - f)`, `f` being what it lacks to 1.
#[inline(always)]
pub fn exponential(word: u32) -> f32 {
    const SCALE: f32 = 1.0 / 4_294_967_296.0;
    let high = word >> 31 != 0;
    let small = (if high { !word } else { word }) as i32 as f32;
    let f = (small + 0.5) * SCALE; // 2^-33 to 1/2: u, or 1 - u
    let (mut e, mut r) = crate::math::parts(f);
    if high {
        let near = f < 0.292_893_23;
        e = if near { 0.0 } else { -1.0 };
        r = if near { -f } else { 1.0 - (f + f) };
    }
    -crate::math::ln_of_parts(e, r)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123 (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn a_block_has_the_words_of_its_tokens() {
        let stream = Stream::new(0xfedc_ba98_7654_3210, (7 << 32) + 5);
        for block in [0, 1, 1186] {
            let words = stream.block::<false>(block);
            for within in 0..BLOCK {
                let token = block * BLOCK as u32 + within as u32;
                assert_eq!(words[within / LANES][within % LANES], stream.word(token));
            }
            if crate::math::has_fma() {
                assert_eq!(stream.block::<true>(block), words);
            }
        }
        assert_ne!(stream.word(0), Stream::new(0xfedc_ba98_7654_3210, 5).word(0));
    }

    #[test]
    fn words_are_uniform() {
        let mut bins = [0u32; 64];
        for position in 0..500 {
            for words in Stream::new(42, position).block::<false>(3) {
                words.iter().for_each(|word| bins[(word >> 26) as usize] += 1);
            }
        }
        let chi2: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 110.0, "{chi2}"); // 63 degrees of freedom: 1 in 5,000
    }

    #[test]
    fn exponential_is_the_logarithm_to_its_last_places() {
        let mut word = 0u32;
        let mut words = vec![0, 1, 2, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, u32::MAX - 1, u32::MAX];
        for _ in 0..200_000 {
            word = word.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            words.extend([word, word >> (word % 32), !(word >> (word % 29))]);
        }
        for word in words {
            // ln(1 - f) of an exact f, so that the reference is precise near 1 too.
            let exact = -(-(f64::from(!word) + 0.5) / 4_294_967_296.0).ln_1p();
            let ours = f64::from(exponential(word));
            assert!((ours - exact).abs() <= 2.4e-7 * exact, "{word:#x}: {ours}, exactly {exact}");
        }
        assert_eq!(exponential(u32::MAX), 1.0 / 8_589_934_592.0);
    }

    /// The same numbers as in `tests/kernels/test_noise.py`, which holds the other implementations to them.
    #[test]
    fn the_bits_that_every_device_has() {
        let print = |bits: &dyn Fn(u32) -> u32| {
            (0..1u32 << 16)
                .fold(0u64, |sum, i| sum.wrapping_add(u64::from(bits(i)).wrapping_mul(2 * u64::from(i) + 1)))
        };
        assert_eq!(print(&|i| exponential(i.wrapping_mul(2_654_435_761)).to_bits()), 4543582704416069629);
        assert_eq!(print(&|i| exponential(!(i * 65_537)).to_bits()), 4579620823227422897);
        let weight = |i: u32| crate::math::exp::<false>(i as f32 * (-90.0 / 65_536.0)).to_bits();
        assert_eq!(print(&weight), 1456959801018675116);
        assert_eq!(
            print(&|i| Stream::new(0x0123_4567_89ab_cdef, (3 << 32) + 1).word(i)),
            9237823355830105533
        );
    }
}
