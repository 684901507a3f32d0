//! One flat buffer per step: what the planner writes and the model step reads, and what the model step gives back.
//!
//! ```text
//!  0        64-byte aligned, one field after the other                                     nbytes
//!  ┌────────┬───────────┬─────┬──────────────┬───────────────┬────────────────┬────────────────┐
//!  │ header │ token_ids │ ... │ page_indices │ lists         │ late           │ results        │
//!  └────────┴───────────┴─────┴──────────────┴───────────────┴────────────────┴────────────────┘
//!   written by `plan`; all in one piece       `plan`, if used  once the step      the device
//!                                                              before is committed
//! ```
//!
//! A layout is a few bounds; where a field lies follows from them, in O(fields) and without allocation. The declaration
//! says how much of a field counts in a step, by the numbers in `header`: a device copies that much, and so do ranks.
//! Results that no device has written read as -1 and NaN.

use std::ops::Range;

use pyengine_kernels_cpu::sampler::SamplingRow;

use pyengine_base::error::{Error, Result};

/// Every field begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Penalties of a step for each row that it may have, unless the vocabulary is larger than all of these.
const PENALTIES_PER_ROW: usize = 512;

/// Number of elements of the header.
const HEADER_LENGTH: usize = 24;

/// The numbers of a step's header are declared here once: `$callback` gets name, index and meaning of each.
#[macro_export]
macro_rules! header_numbers {
    ($callback:ident) => {
        $callback! {
            /// Sequences in this step.
            NUM_ROWS = 0;
            /// Tokens that this step computes.
            NUM_TOKENS = 1;
            /// Rows that this step samples for.
            NUM_SAMPLED = 2;
            /// Pages of its rows, all together.
            NUM_PAGES = 3;
            /// Tokens that only the device knows; see `feed_token`.
            NUM_FEEDS = 4;
            /// The most tokens that a row brings.
            MAX_QUERY_LENGTH = 5;
            /// The longest context of a row, what it brings counted in.
            MAX_KV_LENGTH = 6;
            /// The planner's number for this step.
            STEP_ID = 7;
            /// Sampled rows that are greedy.
            NUM_GREEDY = 8;
            /// Tokens that this step samples, those behind wrong drafts counted in.
            NUM_LOGITS = 9;
            /// Different masks of the step; 0 until `fill_masks` writes them.
            NUM_MASKS = 10;
            /// The most tokens of a row that the draft model fills in.
            MAX_DEVICE_DRAFTS = 11;
            /// The first so many rows decode; those behind them compute prompts.
            NUM_DECODE_ROWS = 12;
            /// Rows whose logits may have penalties, which `fill_penalties` writes before it samples.
            NUM_PENALIZED_ROWS = 13;
            /// Penalties of logits; 0 until `fill_penalties` writes them.
            NUM_PENALTIES = 14;
            /// Rows that want log-probabilities.
            NUM_LOGPROBS_ROWS = 15;
            /// The most likely tokens that a row wants the log-probabilities of, beside the chosen one's.
            MAX_LOGPROBS = 16;
            /// Rows that pool.
            NUM_POOLED_ROWS = 17;
            /// Tokens whose last hidden states they want.
            NUM_POOLED_TOKENS = 18;
            /// Logits that are wanted within prompts; see `prompt_token`.
            NUM_PROMPT_LOGITS = 19;
            /// The most likely tokens that one of them wants the log-probabilities of, beside the prompt's own token.
            MAX_PROMPT_LOGPROBS = 20;
            /// Rows whose logits are changed outside the engine before it samples; see `Planner::processed_rows`.
            NUM_PROCESSED_ROWS = 21;
            /// Rows that take drafts of the step before for right; see `assumed_drafts`.
            NUM_MOVED_ROWS = 22;
            /// Logits with a mask, which `fill_masks` writes before the device samples.
            NUM_MASKED_LOGITS = 23;
        }
    };
}

macro_rules! declare_indices {
    ($($(#[doc = $doc:literal])* $name:ident = $index:literal;)*) => {
        /// Which element of the header is which number of the step.
        pub mod header {
            $($(#[doc = $doc])* pub const $name: usize = $index;)*
        }
    };
}
header_numbers!(declare_indices);

/// Most likely tokens that a logits row may want the log-probabilities of.
pub const MAX_LOGPROBS: usize = 20;

/// Who writes a field, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The planner; a device takes all of these in one piece.
    Planned,
    /// The planner, where a row of the step wants it.
    Listed,
    /// The planner, once every step before is committed and before the device samples.
    Late,
    /// The device.
    Results,
}

/// Where a field lies in the buffer.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name, as Python sees it.
    pub name: &'static str,
    /// The numpy name of its element type; [`ROW_DTYPE`] for rows of [`SamplingRow::FIELDS`].
    pub dtype: &'static str,
    /// Bytes from the beginning of the buffer.
    pub offset: usize,
    /// Number of elements.
    pub length: usize,
    /// Elements of each of its rows, if it is a table.
    pub width: Option<usize>,
    /// Who writes it, and when.
    pub phase: Phase,
    /// The meaning of the field.
    pub doc: &'static str,
    /// Rows that count in a step with this header.
    used: fn(&[i64]) -> i64,
    row_bytes: usize,
}

impl Field {
    /// The bytes that count in a step with this header.
    fn used_bytes(&self, header: &[i64]) -> std::ops::Range<usize> {
        let rows = self.length / self.width.unwrap_or(1).max(1);
        let used = used(header, self.used).min(rows);
        self.offset..self.offset + used * self.row_bytes
    }
}

/// Stands for the type of a [`SamplingRow`].
pub const ROW_DTYPE: &str = "sampling_row";

/// The bounds of a step, from which the place of every field follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLayout {
    max_tokens: usize,
    max_rows: usize,
    max_pages: usize,
    max_logits: usize,
    max_penalties: usize,
    vocab_size: usize,
    mask_words: usize,
    tables: usize,
    hidden_size: usize,
}

/// Plain numbers that may be read from and written to any bytes.
trait Element: Copy {
    const DTYPE: &'static str;
    /// Stands in the results of a step that no device has written.
    const FORGOTTEN: Self;
}
impl Element for i32 {
    const FORGOTTEN: Self = NO_TOKEN;
    const DTYPE: &'static str = "int32";
}
impl Element for i64 {
    const FORGOTTEN: Self = 0;
    const DTYPE: &'static str = "int64";
}
impl Element for u32 {
    const FORGOTTEN: Self = 0;
    const DTYPE: &'static str = "uint32";
}
impl Element for u64 {
    const FORGOTTEN: Self = 0;
    const DTYPE: &'static str = "uint64";
}
impl Element for f32 {
    const FORGOTTEN: Self = f32::NAN;
    const DTYPE: &'static str = "float32";
}
impl Element for SamplingRow {
    const FORGOTTEN: Self = SamplingRow::NEUTRAL;
    const DTYPE: &'static str = ROW_DTYPE;
}

/// The fields of a step are declared here once, by who writes them and when: name, element type, which bound the length
/// follows (and, of a table, the width of a row), how many rows count in a step (else all), meaning.
macro_rules! step_fields {
    ($($phase:ident {$(
        $(#[doc = $doc:literal])*
        $name:ident: $element:ty = [$rows:expr $(, $width:expr)?] $(, used $used:expr)?;
    )*})*) => {
        /// The fields of one step as slices, each of its full length.
        pub struct StepBuffers<'a> {
            $($($(#[doc = $doc])* pub $name: &'a mut [$element],)*)*
        }

        impl StepLayout {
            /// Shows every field, in the order of the buffer.
            fn each_field(&self, mut show: impl FnMut(Field)) {
                let mut end = 0;
                $($(
                    let length = bound(self, $rows) $(* bound(self, $width))?;
                    let width: Option<usize> = None $(.or(Some(bound(self, $width))))?;
                    let used: Option<fn(&[i64]) -> i64> = None $(.or(Some($used)))?;
                    show(Field {
                        name: stringify!($name),
                        dtype: <$element>::DTYPE,
                        offset: end,
                        length,
                        width,
                        phase: Phase::$phase,
                        doc: concat!($($doc),*),
                        used: used.unwrap_or(|_| i64::MAX),
                        row_bytes: size_of::<$element>() * width.unwrap_or(1),
                    });
                    end += padded::<$element>(length);
                )*)*
                debug_assert_eq!(end, self.nbytes());
            }

            /// Forgets the results of the step that was in these buffers before, as far as they count in the one that
            /// is planned there.
            pub(super) fn forget_results(&self, step: &mut StepBuffers<'_>) {
                $($(if matches!(Phase::$phase, Phase::Results) {
                    let rows: Option<usize> = None $(.or(Some(used(step.header, $used))))?;
                    let end = rows.unwrap_or(usize::MAX) $(.saturating_mul(bound(self, $width)))?;
                    let end = end.min(step.$name.len());
                    step.$name[..end].fill(<$element>::FORGOTTEN);
                })*)*
                step.device_times.fill(0);
            }

            /// Size of the buffer in bytes.
            pub fn nbytes(&self) -> usize {
                0 $($(+ padded::<$element>(bound(self, $rows) $(* bound(self, $width))?))*)*
            }

            /// Typed slices over `bytes`, which must be `nbytes` long and 8-byte aligned.
            pub fn view<'a>(&self, bytes: &'a mut [u8]) -> Result<StepBuffers<'a>> {
                if bytes.len() != self.nbytes() || bytes.as_ptr().align_offset(8) != 0 {
                    return Err(Error::InvalidArgument(format!(
                        "the step buffer must have {} bytes, 8-byte aligned, not {}",
                        self.nbytes(),
                        bytes.len()
                    )));
                }
                let mut rest = bytes;
                Ok(StepBuffers {
                    $($($name: cut::<$element>(
                        &mut rest,
                        bound(self, $rows) $(* bound(self, $width))?,
                    ),)*)*
                })
            }
        }
    };
}

step_fields! {
    Planned {
        /// The numbers of the step, in the order of `header_numbers!`.
        header: i64 = [|_| HEADER_LENGTH];
        /// Input token of each position; those in the feed list hold 0.
        token_ids: i32 = [|layout| layout.max_tokens];
        /// Position of each token in its sequence.
        positions: i32 = [|layout| layout.max_tokens];
        /// Where the KV of each token goes: `page * block_size + offset`. Of several page tables one after the other, as
        /// are the next three fields that have pages.
        slot_mapping: i32 = [|layout| layout.max_tokens * layout.tables];
        /// `query_start[row]..query_start[row + 1]` are the tokens of a row.
        query_start: i32 = [|layout| layout.max_rows + 1];
        /// KV tokens of the row after this step, from the beginning of its first page on.
        kv_length: i32 = [|layout| layout.max_rows * layout.tables];
        /// `page_indptr[row]..page_indptr[row + 1]` are the pages of a row.
        page_indptr: i32 = [|layout| (layout.max_rows + 1) * layout.tables];
        /// Index of the row's sequence in the sequence table.
        row_sequence: i32 = [|layout| layout.max_rows];
        /// Drafts of its sequence in the step before that the row's places take for right. Where fewer are, the device
        /// moves the row back by the wrong ones: its positions, slots, `kv_length` and `sample_position`.
        assumed_drafts: i32 = [|layout| layout.max_rows];
        /// The rows that sample a token.
        sample_rows: i32 = [|layout| layout.max_rows];
        /// Index in the sequence table of each sampling row.
        sample_sequence: i32 = [|layout| layout.max_rows];
        /// How each sampling row chooses its tokens.
        sampling: SamplingRow = [|layout| layout.max_rows];
        /// Position in its sequence of the first token that each sampling row chooses.
        sample_position: i64 = [|layout| layout.max_rows];
        /// Draft tokens at the end of each sampling row that the device's draft model is to fill in; `token_ids` holds 0.
        device_drafts: i32 = [|layout| layout.max_rows];
        /// `logit_start[sampling row]..logit_start[sampling row + 1]` are the logits that it samples from: one, and one
        /// more for each draft token.
        logit_start: i32 = [|layout| layout.max_rows + 1];
        /// The sampling row of each of the logits.
        logit_row: i32 = [|layout| layout.max_logits];
        /// The token of the step that they follow. The token after that, if it is of the same row, is the draft of what is
        /// sampled there.
        logit_token: i32 = [|layout| layout.max_logits];
        /// Row of `mask` that says which tokens may be sampled; -1 for all. Rows of the same tokens have one. Written by
        /// `fill_masks`; -1 until then.
        mask_row: i32 = [|layout| layout.max_logits];
        /// Entries of `token_ids` that are filled on the device, in their order ...
        feed_token: i32 = [|layout| 2 * layout.max_rows];
        /// ... from `last_token` of this index in the sequence table. In passes of a draft model, an index that is larger by
        /// the length of that table is the token before.
        feed_sequence: i32 = [|layout| 2 * layout.max_rows];
        /// How many most likely tokens each of the logits wants the log-probabilities of, beside the chosen one's; -1 is none
        /// at all.
        logprobs: i32 = [|layout| layout.max_logits];
        /// The blocks that cover `kv_length` of each row, row after row. The last of the fields that a step always has, so
        /// that a device copies them and what is used of it in one piece.
        page_indices: i32 = [|layout| layout.max_pages * layout.tables], used |n| n[header::NUM_PAGES];
    }
    Listed {
        /// The tokens of the step whose last hidden states are wanted, by row that pools.
        pool_token: i32 = [|layout| layout.max_tokens], used |n| n[header::NUM_POOLED_TOKENS];
        /// `pool_start[pooled row]..pool_start[pooled row + 1]` of those are summed for a row.
        pool_start: i32 = [|layout| layout.max_rows + 1], used |n| bounds(n[header::NUM_POOLED_ROWS]);
        /// The tokens of the step after which a prompt's logits are wanted.
        prompt_token: i32 = [|layout| layout.max_tokens], used |n| n[header::NUM_PROMPT_LOGITS];
        /// The prompt's own token behind each of those, whose log-probability is wanted.
        prompt_target: i32 = [|layout| layout.max_tokens], used |n| n[header::NUM_PROMPT_LOGITS];
    }
    Late {
        /// `penalty_start[l]..penalty_start[l + 1]` are the penalties of logits row `l`. Written by `fill_penalties`, as are the three
        /// that follow; not at all where `num_penalties` is 0.
        penalty_start: i32 = [|layout| layout.max_logits + 1], used |n| if n[header::NUM_PENALTIES] > 0 { i64::MAX } else { 0 };
        /// The token whose logit is changed; none twice in a row.
        penalty_token: i32 = [|layout| layout.max_penalties], used |n| n[header::NUM_PENALTIES];
        /// Divides the logit if it is positive, else multiplies it; then ...
        penalty_factor: f32 = [|layout| layout.max_penalties], used |n| n[header::NUM_PENALTIES];
        /// ... this is added.
        penalty_add: f32 = [|layout| layout.max_penalties], used |n| n[header::NUM_PENALTIES];
        /// Grammar masks, `mask_words` each: bit `t % 32` of word `t / 32` is token `t`. Written by `fill_masks`.
        mask: u32 = [|layout| layout.max_logits, |layout| layout.mask_words], used |n| n[header::NUM_MASKS];
    }
    Results {
        /// How many tokens of each sampling row count: those up to and with the first that differs from its draft.
        sampled_counts: i32 = [|layout| layout.max_rows];
        /// The token that is sampled behind each of the logits; `NO_TOKEN` where none was possible, as the logits were not
        /// finite: that request ends with an error.
        sampled_tokens: i32 = [|layout| layout.max_logits], used |n| n[header::NUM_LOGITS];
        /// The log-probability of each sampled token, as the model gave it: before penalties, mask and temperature. Rows
        /// that want none hold anything, of this and the next two fields.
        sampled_logprobs: f32 = [|layout| layout.max_logits], used |n| wanted(n, header::NUM_LOGPROBS_ROWS);
        /// The most likely tokens in order, by logits; of equals the lower id first, `NO_TOKEN` where there are no more.
        top_tokens: i32 = [|layout| layout.max_logits, |_| MAX_LOGPROBS], used |n| wanted(n, header::MAX_LOGPROBS);
        /// Their log-probabilities.
        top_logprobs: f32 = [|layout| layout.max_logits, |_| MAX_LOGPROBS], used |n| wanted(n, header::MAX_LOGPROBS);
        /// For each row that pools, the sum of the last hidden states that it wants, behind the model's last norm.
        pooled: f32 = [|layout| layout.max_rows, |layout| layout.hidden_size], used |n| n[header::NUM_POOLED_ROWS];
        /// The log-probability of each token of `prompt_target`. One that is not finite ends its request with an error.
        prompt_logprobs: f32 = [|layout| layout.max_tokens], used |n| n[header::NUM_PROMPT_LOGITS];
        /// As `top_tokens`, by logits of prompts.
        prompt_top_tokens: i32 = [|layout| layout.max_tokens, |_| MAX_LOGPROBS], used prompt_top;
        /// Their log-probabilities.
        prompt_top_logprobs: f32 = [|layout| layout.max_tokens, |_| MAX_LOGPROBS], used prompt_top;
        /// When the device worked on the step, in nanoseconds of a clock that is its own: it began, it waited for the host
        /// (from, to), it was over. Written by the host; the intervals of steps do not overlap.
        device_times: i64 = [|_| 4], used |_| 0;
    }
}

/// A token id that stands for no token.
pub const NO_TOKEN: i32 = -1;

/// Bounds of so many lists, one behind the other; none where there is no list.
fn bounds(lists: i64) -> i64 {
    lists + lists.signum()
}

/// The logits of a step whose header has more than none of `field`.
fn wanted(header: &[i64], field: usize) -> i64 {
    if header[field] > 0 { header[header::NUM_LOGITS] } else { 0 }
}

/// The logits of prompts of a step that wants the most likely tokens there.
fn prompt_top(header: &[i64]) -> i64 {
    if header[header::MAX_PROMPT_LOGPROBS] > 0 { header[header::NUM_PROMPT_LOGITS] } else { 0 }
}

fn used(header: &[i64], used: impl Fn(&[i64]) -> i64) -> usize {
    usize::try_from(used(header)).unwrap_or(0)
}

fn bound(layout: &StepLayout, bound: impl Fn(&StepLayout) -> usize) -> usize {
    bound(layout)
}

impl StepLayout {
    /// The layout for steps of at most so many tokens, rows and pages, where a row may sample `1 + max_draft` tokens
    /// of a vocabulary of `vocab_size`.
    pub fn new(
        max_tokens: usize,
        max_rows: usize,
        max_pages: usize,
        max_draft: usize,
        vocab_size: usize,
    ) -> Result<Self> {
        const LIMIT: usize = i32::MAX as usize;
        let max_logits = max_rows.saturating_mul(max_draft.saturating_add(1)).min(max_tokens.max(max_rows));
        let mask_words = vocab_size.div_ceil(32);
        let bounds = [
            ("max_tokens", max_tokens),
            ("max_rows", max_rows),
            ("max_pages", max_pages),
            ("vocab_size", vocab_size),
        ];
        for (name, value) in bounds {
            if value == 0 || value >= LIMIT {
                return Err(Error::InvalidArgument(format!("{name} must be between 1 and {}", LIMIT - 1)));
            }
        }
        // A logits row has at most one penalty a token: one row always finds a place.
        let max_penalties = vocab_size.max(max_rows.saturating_mul(PENALTIES_PER_ROW)).min(LIMIT - 1);
        let tables = 1;
        Ok(Self {
            max_tokens,
            max_rows,
            max_pages,
            max_logits,
            max_penalties,
            vocab_size,
            mask_words,
            tables,
            hidden_size: 0,
        })
    }

    /// The same with so many page tables, each of at most `max_pages` pages.
    pub fn with_tables(self, tables: usize) -> Result<Self> {
        const LIMIT: usize = i32::MAX as usize;
        let longest = self.max_pages.max(self.max_tokens).max(self.max_rows + 1);
        if tables == 0 || tables.checked_mul(longest).is_none_or(|cells| cells >= LIMIT) {
            return Err(Error::InvalidArgument(format!("{tables} page tables are none, or too many")));
        }
        Ok(Self { tables, ..self })
    }

    /// The same with room for vectors of so many numbers in the results of rows that pool.
    pub fn with_hidden_size(self, hidden_size: usize) -> Self {
        Self { hidden_size, ..self }
    }

    /// Every field in the order of the buffer.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        self.each_field(|field| fields.push(field));
        fields
    }

    /// Bytes of a planned step that count, as disjoint ranges in ascending order; `padding` pages count beside its own.
    /// O(fields).
    pub fn planned_ranges(&self, bytes: &mut [u8], padding: usize) -> Result<Vec<Range<usize>>> {
        let header = self.header(bytes)?;
        let mut end = 0;
        self.each_field(|field| {
            if field.phase == Phase::Planned {
                end = field.used_bytes(&header).end + padding * field.row_bytes;
            }
        });
        Ok(self.ranges(&header, Phase::Listed, Vec::from_iter(Some(0..end))))
    }

    /// Bytes of a step that are written late and count, without its header.
    pub fn late_ranges(&self, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        let header = self.header(bytes)?;
        let mut ranges = Vec::new();
        self.each_field(|field| {
            // Planned as -1, and written anew with the masks.
            if field.name == "mask_row" && header[header::NUM_MASKS] > 0 {
                ranges
                    .push(field.offset..field.offset + header[header::NUM_LOGITS] as usize * field.row_bytes);
            }
        });
        Ok(self.ranges(&header, Phase::Late, ranges))
    }

    /// Bytes of a step's results that count.
    pub fn result_ranges(&self, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        Ok(self.ranges(&self.header(bytes)?, Phase::Results, Vec::new()))
    }

    /// Adds what counts of the fields of a phase to `ranges`; those that nearly touch become one.
    fn ranges(&self, header: &[i64], phase: Phase, mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
        self.each_field(|field| {
            let used = field.used_bytes(header);
            match ranges.last_mut() {
                _ if field.phase != phase || used.is_empty() => {}
                Some(last) if used.start - last.end < ALIGNMENT => last.end = used.end,
                _ => ranges.push(used),
            }
        });
        ranges
    }

    fn header(&self, bytes: &mut [u8]) -> Result<[i64; HEADER_LENGTH]> {
        let mut header = [0; HEADER_LENGTH];
        header.copy_from_slice(self.view(bytes)?.header);
        Ok(header)
    }

    /// Numbers of a vector in the results.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Page tables.
    pub fn tables(&self) -> usize {
        self.tables
    }

    /// Most tokens of a step.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Most rows of a step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Most tokens that a step samples, those of all rows together.
    pub fn max_logits(&self) -> usize {
        self.max_logits
    }

    /// Most penalties of a step, those of all logits rows together.
    pub fn max_penalties(&self) -> usize {
        self.max_penalties
    }

    /// The same with room for fewer penalties, at least those of one row.
    #[cfg(test)]
    pub fn with_max_penalties(self, max_penalties: usize) -> Self {
        Self { max_penalties: max_penalties.max(self.vocab_size), ..self }
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Words of one grammar mask.
    pub fn mask_words(&self) -> usize {
        self.mask_words
    }

    /// Most pages of a step, those of all rows together.
    pub fn max_pages(&self) -> usize {
        self.max_pages
    }
}

fn padded<T>(length: usize) -> usize {
    (length * size_of::<T>()).next_multiple_of(ALIGNMENT)
}

/// Cuts a field of `length` elements from the front of `rest`.
fn cut<'a, T: Element>(rest: &mut &'a mut [u8], length: usize) -> &'a mut [T] {
    let (field, tail) = std::mem::take(rest).split_at_mut(padded::<T>(length));
    *rest = tail;
    // SAFETY: `Element` is implemented only for numbers and rows of numbers, for which any bytes are a value.
    let (head, elements, _) = unsafe { field.align_to_mut::<T>() };
    assert!(head.is_empty(), "fields begin aligned when the buffer does");
    &mut elements[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(nbytes: usize) -> Vec<u64> {
        vec![0; nbytes.div_ceil(8)]
    }

    fn bytes(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: every byte of a u64 is a u8.
        unsafe { words.align_to_mut::<u8>() }.1
    }

    #[test]
    fn fields_are_aligned_disjoint_and_fill_the_buffer() {
        let layout = StepLayout::new(37, 5, 11, 2, 100).unwrap();
        let fields = layout.fields();
        let mut end = 0;
        for field in &fields {
            let size = match field.dtype {
                ROW_DTYPE => size_of::<SamplingRow>(),
                dtype if dtype.ends_with("64") => 8,
                _ => 4,
            };
            assert_eq!(field.offset % ALIGNMENT, 0, "{field:?}");
            assert!(field.offset >= end && field.offset < end + ALIGNMENT, "{field:?}");
            end = field.offset + field.length * size;
        }
        assert_eq!(layout.nbytes(), end.next_multiple_of(ALIGNMENT));
        assert_eq!(fields.iter().map(|field| field.name).filter(|name| *name == "query_start").count(), 1);
    }

    #[test]
    fn a_view_writes_where_the_fields_say() {
        let layout = StepLayout::new(8, 4, 6, 1, 33).unwrap();
        let mut words = aligned(layout.nbytes());
        let view = layout.view(bytes(&mut words)).unwrap();
        view.sample_position[3] = 0x0102_0304_0506_0708;
        view.sampling[1].top_p = 0.5;
        view.feed_sequence[1] = -7;
        let at = |name| layout.fields().into_iter().find(|field| field.name == name).unwrap().offset;
        let raw = bytes(&mut words);
        assert_eq!(raw[at("sample_position") + 24..][..8], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        let top_p = at("sampling") + size_of::<SamplingRow>() + std::mem::offset_of!(SamplingRow, top_p);
        assert_eq!(raw[top_p..][..4], 0.5_f32.to_ne_bytes());
        assert_eq!(raw[at("feed_sequence") + 4..][..4], (-7_i32).to_ne_bytes());
    }

    #[test]
    fn ranges_hold_what_counts_in_a_step() {
        let layout = StepLayout::new(8, 4, 6, 1, 33).unwrap().with_hidden_size(16);
        let mut words = aligned(layout.nbytes());
        let raw = bytes(&mut words);
        let at = |name| layout.fields().into_iter().find(|field| field.name == name).unwrap().offset;
        let view = layout.view(raw).unwrap();
        (view.header[header::NUM_PAGES], view.header[header::NUM_LOGITS]) = (3, 2);
        let pages = at("page_indices");
        assert_eq!(layout.planned_ranges(raw, 0).unwrap(), Vec::from_iter(Some(0..pages + 12)));
        assert_eq!(layout.planned_ranges(raw, 2).unwrap(), Vec::from_iter(Some(0..pages + 20)));
        assert_eq!(layout.late_ranges(raw).unwrap(), []);
        let sampled = at("sampled_counts")..at("sampled_tokens") + 8;
        assert_eq!(
            layout.result_ranges(raw).unwrap(),
            std::slice::from_ref(&sampled),
            "they lie side by side"
        );
        let view = layout.view(raw).unwrap();
        (view.header[header::NUM_POOLED_ROWS], view.header[header::NUM_POOLED_TOKENS]) = (1, 5);
        view.header[header::NUM_MASKS] = 1;
        let pooled = at("pooled")..at("pooled") + 64;
        assert_eq!(layout.result_ranges(raw).unwrap(), [sampled, pooled]);
        let starts = at("pool_start");
        let planned = 0..starts + 8;
        assert_eq!(layout.planned_ranges(raw, 0).unwrap(), [planned], "gaps of padding are filled");
        let (rows, mask) = (at("mask_row"), at("mask"));
        assert_eq!(layout.late_ranges(raw).unwrap(), [rows..rows + 8, mask..mask + 8]);
        raw.fill(0);
        let mut view = layout.view(raw).unwrap();
        view.header[header::NUM_POOLED_ROWS] = 1;
        layout.forget_results(&mut view);
        assert!(view.pooled[..16].iter().all(|number| number.is_nan()));
        assert!(view.pooled[16..].iter().chain(&*view.prompt_logprobs).all(|number| *number == 0.0));
    }

    #[test]
    fn a_buffer_of_another_size_or_alignment_is_refused() {
        let layout = StepLayout::new(8, 4, 6, 1, 33).unwrap();
        let mut words = aligned(layout.nbytes() + 8);
        let raw = bytes(&mut words);
        assert!(layout.view(raw).is_err());
        assert!(layout.view(&mut raw[4..][..layout.nbytes()]).is_err());
        assert!(layout.view(&mut raw[8..][..layout.nbytes()]).is_ok());
        assert!(StepLayout::new(0, 1, 1, 0, 1).is_err());
    }
}
