//! LongRoPE (Ding et al., 2024): sequences of more tokens than a model was first trained with have other rotations, from
//! their first token on.
//!
//! A device has the angles of both in one table. The step's `positions` say where in it a token's angles are, so long
//! sequences begin at row `short_context`:
//!
//! ```text
//!  row    0 ......... short_context ................................. short_context + max_context
//!         position 0 of a short one │ position 0 of a long one
//! ```
//!
//! Keys of both kinds are never mixed: a sequence that outgrows the short ones is preempted, its salt becomes another one,
//! by which the prefix tree keeps both kinds apart, and it is computed again. Transformers does the same: which
//! factors a forward pass has depends on its longest position, and its Phi-3 drops the cache where that passes the border.

/// Whether a sequence of `tokens` tokens is long; a `short_context` of 0 says that none is.
#[inline]
pub fn is_long(tokens: usize, short_context: usize) -> bool {
    short_context > 0 && tokens > short_context
}

/// How many drafts may follow `end` tokens in a row that begins at row `rotation` of the table.
pub fn room(end: usize, rotation: u32, short_context: usize) -> usize {
    match short_context > 0 && rotation == 0 {
        true => short_context.saturating_sub(end),
        false => usize::MAX,
    }
}

/// The salt under which a long sequence shares prefixes, if short ones have `salt`.
pub fn salt_of_long(salt: u64) -> u64 {
    salt ^ 0x6c6f_6e67_726f_7065
}
