//! What this machine can do at most: the floors that benches put beside a kernel's times.
//!
//! Multiplications from registers in the best instruction set for a type, and reading memory much larger than the
//! caches. The largest of several runs counts, each about a millisecond a thread.

use std::hint::black_box;
use std::time::Instant;

use pyengine_kernels_cpu::isa::InstructionSet;
use pyengine_kernels_cpu::threads::Threads;

/// Rounds of a multiplying loop.
const ROUNDS: usize = 10_000;
/// Independent chains of sums in a loop, more than the latency of an instruction.
const CHAINS: usize = 12;
const RUNS: usize = 30;

/// Multiply-adds a second of all `threads` in float32, and in bfloat16 and bytes where there are instructions for
/// them.
pub fn multiply_adds(threads: &Threads) -> [Option<f64>; 3] {
    loops(InstructionSet::best()).map(|found| {
        let (work, lanes) = found?;
        let count = (threads.count() * ROUNDS * CHAINS * lanes) as f64;
        Some(count / fastest(|| threads.share(threads.count(), usize::MAX, |_| work())))
    })
}

/// Bytes a second that all `threads` read from memory.
pub fn read_bandwidth(threads: &Threads) -> f64 {
    const PIECE: usize = 1 << 16;
    let memory = vec![1u64; 16 << 20];
    let read = || {
        threads.share(memory.len() / PIECE, usize::MAX, |piece| {
            let words = &memory[piece * PIECE..][..PIECE];
            black_box(words.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
        });
    };
    size_of_val(&memory[..]) as f64 / fastest(read)
}

fn fastest(work: impl Fn()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(run).fold(f64::INFINITY, f64::min)
}

/// A loop, and the multiply-adds of one of its instructions.
type Loop = (fn(), usize);

/// The loops for float32, bfloat16 and bytes.
fn loops(set: InstructionSet) -> [Option<Loop>; 3] {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Bf16 => {
            [Some((x86::floats512, 16)), Some((x86::halves512, 32)), Some((x86::bytes512, 64))]
        }
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512Vnni => [Some((x86::floats512, 16)), None, Some((x86::bytes512, 64))],
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => [Some((x86::floats512, 16)), None, None],
        #[cfg(target_arch = "x86_64")]
        InstructionSet::AvxVnni => [Some((x86::floats256, 8)), None, Some((x86::bytes256, 32))],
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => [Some((x86::floats256, 8)), None, None],
        _ => [None, None, None],
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, ROUNDS, black_box};
    use std::arch::x86_64::*;

    macro_rules! multiply {
        ($name:ident, $features:literal, $number:expr, $zero:expr, |$sum:ident, $x:ident| $step:expr) => {
            pub fn $name() {
                #[target_feature(enable = $features)]
                fn run() {
                    let mut sums = [$zero; CHAINS];
                    let $x = black_box($number);
                    for _ in 0..ROUNDS {
                        for at in 0..CHAINS {
                            let $sum = sums[at];
                            sums[at] = $step;
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: chosen where the processor has these instructions.
                unsafe { run() }
            }
        };
    }

    multiply!(floats256, "avx2,fma", _mm256_set1_ps(1.5), _mm256_setzero_ps(), |sum, x| {
        _mm256_fmadd_ps(x, x, sum)
    });
    multiply!(floats512, "avx512f", _mm512_set1_ps(1.5), _mm512_setzero_ps(), |sum, x| {
        _mm512_fmadd_ps(x, x, sum)
    });
    multiply!(
        halves512,
        "avx512f,avx512bf16",
        _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.5), _mm512_set1_ps(1.5)),
        _mm512_setzero_ps(),
        |sum, x| _mm512_dpbf16_ps(sum, x, x)
    );
    multiply!(bytes256, "avx2,fma,avxvnni", _mm256_set1_epi8(1), _mm256_setzero_si256(), |sum, x| {
        _mm256_dpbusd_avx_epi32(sum, x, x)
    });
    multiply!(bytes512, "avx512f,avx512vnni", _mm512_set1_epi8(1), _mm512_setzero_si512(), |sum, x| {
        _mm512_dpbusd_epi32(sum, x, x)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_runs_where_its_instructions_are() {
        for set in InstructionSet::all_here() {
            for (work, lanes) in loops(set).into_iter().flatten() {
                work();
                assert!(lanes >= 8);
            }
        }
    }
}
