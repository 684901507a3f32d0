//! The instruction sets that matrix kernels are written for, and which of them this machine runs.

/// A set of instructions; each kernel names the sets that it is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// Plain Rust, which the compiler turns into what the target has.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// And with AVX-VNNI: sums of four products of bytes.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW and VL.
    Avx512,
    /// And with AVX-512 VNNI.
    Avx512Vnni,
    /// And with AVX-512 BF16: sums of two products of bfloat16.
    Avx512Bf16,
}

impl InstructionSet {
    const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni, Self::Avx512Bf16];

    /// Whether this machine runs it. The standard library caches what it asks the processor.
    pub fn runs_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = || crate::math::has_fma();
            let avx512 = || avx2() && has!("avx512f") && has!("avx512bw") && has!("avx512vl");
            match self {
                Self::Portable => true,
                Self::Avx2 => avx2(),
                Self::AvxVnni => avx2() && has!("avxvnni"),
                Self::Avx512 => avx512(),
                Self::Avx512Vnni => avx512() && has!("avx512vnni"),
                Self::Avx512Bf16 => avx512() && has!("avx512vnni") && has!("avx512bf16"),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// The sets that this machine runs, from the plainest to the best. O(1).
    pub fn all_here() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|set| set.runs_here())
    }

    /// The best that this machine runs.
    pub fn best() -> Self {
        Self::all_here().last().unwrap_or(Self::Portable)
    }
}
