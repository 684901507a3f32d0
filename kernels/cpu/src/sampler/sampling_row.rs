//! The rules of one sampling row: the one declaration of what a request may ask of the sampler.
//!
//! ```text
//!  SamplingParams ──pack──► Submit ──► sequence table ──► step buffers ──► kernels, on the CPU and on a GPU
//!                   bytes         a row as it is, copied whole            each reads the fields it knows
//! ```
//!
//! A field has the name that `pyengine.SamplingParams` has for it, an offset that follows from the order here, and the
//! value that leaves the model's distribution as it is. numpy, torch and Triton read fields by these offsets, so that a new
//! rule is a line here and the code that applies it.

/// One field of [`SamplingRow`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowField {
    /// Its name, as in `pyengine.SamplingParams`.
    pub name: &'static str,
    /// The numpy name of its type.
    pub dtype: &'static str,
    /// Bytes from the beginning of the row.
    pub offset: usize,
    /// The value that changes nothing.
    pub neutral: f64,
    /// What it means.
    pub doc: &'static str,
}

/// Numbers that a row is made of: any bytes are a value.
trait Number {
    const DTYPE: &'static str;
}
impl Number for u64 {
    const DTYPE: &'static str = "uint64";
}
impl Number for i32 {
    const DTYPE: &'static str = "int32";
}
impl Number for f32 {
    const DTYPE: &'static str = "float32";
}

macro_rules! sampling_row {
    ($($(#[doc = $doc:literal])* $name:ident: $number:ty = $neutral:expr;)*) => {
        /// Bytes behind the last field, so that every row of a slice begins aligned.
        const PADDING: usize = (0 $(+ size_of::<$number>())*).wrapping_neg() % align_of::<u64>();

        #[doc(hidden)]
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Padding([u8; PADDING]);

        /// How the next token of a sequence is chosen.
        #[repr(C, align(8))]
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct SamplingRow {
            $($(#[doc = $doc])* pub $name: $number,)*
            #[doc(hidden)]
            pub padding: Padding,
        }

        // Every byte belongs to a field, so that a row may be read and written as bytes.
        const _: () = assert!(size_of::<SamplingRow>() == PADDING $(+ size_of::<$number>())*);

        impl SamplingRow {
            /// The model's distribution as it is.
            pub const NEUTRAL: Self = Self { $($name: $neutral,)* padding: Padding([0; PADDING]) };

            /// Its fields in their order.
            pub const FIELDS: &'static [RowField] = &[$(RowField {
                name: stringify!($name),
                dtype: <$number as Number>::DTYPE,
                offset: std::mem::offset_of!(SamplingRow, $name),
                neutral: $neutral as f64,
                doc: concat!($($doc),*),
            }),*];
        }
    };
}

// The longest numbers come first: no field may need padding before it.
sampling_row! {
    /// Key of the counter-based random numbers.
    seed: u64 = 0;
    /// Divides the logits; 0 takes the most likely token.
    temperature: f32 = 1.0;
    /// Number of most likely tokens that are kept; 0 keeps all.
    top_k: i32 = 0;
    /// Keeps the fewest tokens whose probabilities reach this; 1 keeps all.
    top_p: f32 = 1.0;
    /// Drops tokens less likely than this times the most likely one; 0 keeps all.
    min_p: f32 = 0.0;
    /// Keeps the tokens nearest to the entropy whose probabilities reach this; 1 keeps all.
    typical_p: f32 = 1.0;
    /// Keeps the tokens whose logits are within this many standard deviations of the largest; 0 keeps all.
    top_n_sigma: f32 = 0.0;
    /// The temperature is up to so much less where the model is sure, and more where it is not; 0 is off.
    dynatemp_range: f32 = 0.0;
    /// The power of the normalized entropy that the temperature follows.
    dynatemp_exponent: f32 = 1.0;
    /// The chance that all but the last of the likely tokens are dropped; 0 is never.
    xtc_probability: f32 = 0.0;
    /// From which probability on a token is likely in that sense; above 0.5 is never.
    xtc_threshold: f32 = 0.1;
    /// Taken once from the logit of every token that was generated; 0 is off.
    presence_penalty: f32 = 0.0;
    /// Taken from it as often as the token was generated; 0 is off.
    frequency_penalty: f32 = 0.0;
    /// Divides positive logits of tokens of the prompt and the answer, and multiplies others; 1 is off.
    repetition_penalty: f32 = 1.0;
    /// Taken from the logit of a token that would repeat what the last tokens were followed by before; 0 is off.
    dry_multiplier: f32 = 0.0;
    /// By what that grows with each token that the repetition is longer.
    dry_base: f32 = 1.75;
    /// The length of a repetition from which on it is penalized.
    dry_allowed_length: i32 = 2;
    /// How many of the last tokens are searched for repetitions; -1 is all, 0 none.
    dry_penalty_last_n: i32 = -1;
}

impl SamplingRow {
    /// The row in `bytes`; none if they are more or fewer than a row has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        // SAFETY: as many bytes as the row has, and any bytes are a row; read without regard to alignment.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// The row as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a row has no byte that is not of a field, and lives as long as the slice.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Whether any of its penalties changes a logit.
    pub fn has_penalties(&self) -> bool {
        (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)
    }

    /// Whether it penalizes repetitions of sequences.
    pub fn has_dry(&self) -> bool {
        self.dry_multiplier > 0.0 && self.dry_penalty_last_n != 0
    }
}

impl Default for SamplingRow {
    fn default() -> Self {
        Self::NEUTRAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_bytes() {
        let row = SamplingRow { seed: u64::MAX - 5, top_k: -7, min_p: 0.25, ..SamplingRow::NEUTRAL };
        assert_eq!(SamplingRow::from_bytes(row.as_bytes()), Some(row));
        assert_eq!(SamplingRow::from_bytes(&row.as_bytes()[1..]), None);
    }

    #[test]
    fn fields_lie_where_they_are_said_to() {
        let row = SamplingRow { seed: 0x0102_0304_0506_0708, top_p: 0.75, ..SamplingRow::NEUTRAL };
        let bytes = |name: &str, count: usize| {
            let field = SamplingRow::FIELDS.iter().find(|field| field.name == name).unwrap();
            &row.as_bytes()[field.offset..][..count]
        };
        assert_eq!(bytes("seed", 8), row.seed.to_ne_bytes());
        assert_eq!(bytes("top_p", 4), row.top_p.to_ne_bytes());
        assert!(SamplingRow::FIELDS.iter().all(|field| !field.doc.is_empty()));
        assert!(!SamplingRow::NEUTRAL.has_penalties());
        assert!(SamplingRow { frequency_penalty: -0.5, ..SamplingRow::NEUTRAL }.has_penalties());
    }
}
