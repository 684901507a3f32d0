//! The buffers of one step, declared once: what the planner writes and the model step reads, and what it gives back.
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
//! Each field says how much of it counts in a step, by the numbers in `header`: a device copies that much, and so do
//! ranks. Results that no device has written read as -1 and NaN. `pyengine/model/step_names.py` is written from here by
//! `python -m tools.step_names`.

use pyengine_base::error::{Error, Result};
use pyengine_kernels_cpu::sampler::SamplingRow;

use super::fields::{Element, Field, Phase, bound, cut, padded, step_fields, step_header, used};
use super::layout::StepLayout;

/// Most likely tokens that a logits row may want the log-probabilities of.
pub const MAX_LOGPROBS: usize = 20;

/// A token id that stands for no token.
pub const NO_TOKEN: i32 = -1;

/// A slot that stands for no slot of a state.
pub const NO_SLOT: i32 = -1;

step_header! {
    /// Sequences in this step.
    num_rows,
    /// Tokens that this step computes.
    num_tokens,
    /// Rows that this step samples for.
    num_sampled,
    /// Pages of its rows, all together.
    num_pages,
    /// Tokens that only the device knows; see `feed_token`.
    num_feeds,
    /// The most tokens that a row brings.
    max_query_length,
    /// The longest context of a row, what it brings counted in.
    max_kv_length,
    /// The planner's number for this step.
    step_id,
    /// Sampled rows that are greedy.
    num_greedy,
    /// Tokens that this step samples, those behind wrong drafts counted in.
    num_logits,
    /// Different masks of the step; 0 until `fill_late` writes them.
    num_masks,
    /// The most tokens of a row that the draft model fills in.
    max_device_drafts,
    /// Rows that decode: the first ones; those behind them compute prompts.
    num_decode_rows,
    /// Rows whose logits may have penalties, which `fill_late` writes before it samples.
    num_penalized_rows,
    /// Penalties of logits; 0 until `fill_late` writes them.
    num_penalties,
    /// Rows that want log-probabilities.
    num_logprobs_rows,
    /// The most likely tokens that a row wants the log-probabilities of, beside the chosen one's.
    max_logprobs,
    /// Rows that pool.
    num_pooled_rows,
    /// Tokens whose last hidden states they want.
    num_pooled_tokens,
    /// Logits that are wanted within prompts; see `prompt_token`.
    num_prompt_logits,
    /// The most likely tokens that one of them wants the log-probabilities of, beside the prompt's own token.
    max_prompt_logprobs,
    /// Rows whose logits are changed outside the engine before it samples; see `Processors::take`.
    num_processed_rows,
    /// Logits with a mask, which `fill_late` writes before the device samples.
    num_masked_logits,
    /// Rows that have an adapter.
    num_adapted_rows,
}

step_fields! {
    Planned {
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
        /// The slot whose state the row reads and writes; of this and the next five fields there is nothing where no layer
        /// has a state. `NO_SLOT` in rows of padding.
        state_slot: i32 = [StepLayout::state_rows];
        /// The slot that the row begins from: its own; that of a snapshot, which is only read; or `NO_SLOT`: zeros.
        state_source: i32 = [StepLayout::state_rows];
        /// How many of the drafts that are pending in the row's slot were right: the state takes these in, before the row's
        /// tokens.
        state_accepted: i32 = [StepLayout::state_rows];
        /// How many of the row's last tokens are drafts: what they would add to the state is kept pending in its slot.
        state_drafts: i32 = [StepLayout::state_rows];
        /// The slot that the row's state is copied to, or `NO_SLOT`, ...
        snapshot_slot: i32 = [StepLayout::state_rows];
        /// ... behind this many of its tokens; 0: before the first, behind the drafts that were right.
        snapshot_tokens: i32 = [StepLayout::state_rows];
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
        /// `fill_late`; -1 until then.
        mask_row: i32 = [|layout| layout.max_logits], neutral -1;
        /// Entries of `token_ids` that are filled on the device, in their order ...
        feed_token: i32 = [|layout| 2 * layout.max_rows];
        /// ... from `last_token` of this index in the sequence table.
        feed_sequence: i32 = [|layout| 2 * layout.max_rows];
        /// How many most likely tokens each of the logits wants the log-probabilities of, beside the chosen one's; -1 is none
        /// at all.
        logprobs: i32 = [|layout| layout.max_logits], neutral -1;
        /// The blocks that cover `kv_length` of each row, row after row. The last of the fields that a step always has, so
        /// that a device copies them and what is used of it in one piece.
        page_indices: i32 = [|layout| layout.max_pages * layout.tables], used |n| n.num_pages;
    }
    Listed {
        /// The tokens of the step whose last hidden states are wanted, by row that pools.
        pool_token: i32 = [|layout| layout.max_tokens], used |n| n.num_pooled_tokens;
        /// `pool_start[pooled row]..pool_start[pooled row + 1]` of those are summed for a row.
        pool_start: i32 = [|layout| layout.max_rows + 1], used |n| bounds(n.num_pooled_rows);
        /// The tokens of the step after which a prompt's logits are wanted.
        prompt_token: i32 = [|layout| layout.max_prompt_logits()], used |n| n.num_prompt_logits;
        /// The token whose log-probability is wanted behind each of those: the prompt's own, or one that may follow it.
        prompt_target: i32 = [|layout| layout.max_prompt_logits()], used |n| n.num_prompt_logits;
        /// The slot of the adapter of each row that has one.
        adapter_slot: i32 = [|layout| layout.max_rows], used |n| n.num_adapted_rows;
        /// The first of that row's tokens among the step's ...
        adapter_first: i32 = [|layout| layout.max_rows], used |n| n.num_adapted_rows;
        /// ... and how many they are.
        adapter_count: i32 = [|layout| layout.max_rows], used |n| n.num_adapted_rows;
    }
    Late {
        /// `penalty_start[l]..penalty_start[l + 1]` are the penalties of logits row `l`. Written by `fill_late`, as are the three
        /// that follow; not at all where `num_penalties` is 0.
        penalty_start: i32 = [|layout| layout.max_logits + 1], used |n| if n.num_penalties > 0 { i64::MAX } else { 0 };
        /// The token whose logit is changed; none twice in a row.
        penalty_token: i32 = [|layout| layout.max_penalties], used |n| n.num_penalties;
        /// Divides the logit if it is positive, else multiplies it; then ...
        penalty_factor: f32 = [|layout| layout.max_penalties], used |n| n.num_penalties;
        /// ... this is added.
        penalty_add: f32 = [|layout| layout.max_penalties], used |n| n.num_penalties;
        /// Grammar masks, `mask_words` each: bit `t % 32` of word `t / 32` is token `t`. Written by `fill_late`.
        mask: u32 = [|layout| layout.max_logits, |layout| layout.mask_words], used |n| n.num_masks;
    }
    Results {
        /// How many tokens of each sampling row count: those up to and with the first that differs from its draft.
        sampled_counts: i32 = [|layout| layout.max_rows];
        /// The token that is sampled behind each of the logits; `NO_TOKEN` where none was possible, as the logits were not
        /// finite: that request ends with an error.
        sampled_tokens: i32 = [|layout| layout.max_logits], used |n| n.num_logits;
        /// The log-probability of each sampled token, as the model gave it: before penalties, mask and temperature. Rows
        /// that want none hold anything, of this and the next two fields.
        sampled_logprobs: f32 = [|layout| layout.max_logits], used |n| wanted(n, n.num_logprobs_rows);
        /// The most likely tokens in order, by logits; of equals the lower id first, `NO_TOKEN` where there are no more.
        top_tokens: i32 = [|layout| layout.max_logits, |_| MAX_LOGPROBS], used |n| wanted(n, n.max_logprobs);
        /// Their log-probabilities.
        top_logprobs: f32 = [|layout| layout.max_logits, |_| MAX_LOGPROBS], used |n| wanted(n, n.max_logprobs);
        /// For each row that pools, the sum of the last hidden states that it wants, behind the model's last norm.
        pooled: f32 = [|layout| layout.max_rows, |layout| layout.hidden_size], used |n| n.num_pooled_rows;
        /// The log-probability of each token of `prompt_target`. One that is not finite ends its request with an error.
        prompt_logprobs: f32 = [|layout| layout.max_prompt_logits()], used |n| n.num_prompt_logits;
        /// As `top_tokens`, by logits of prompts.
        prompt_top_tokens: i32 = [|layout| layout.max_prompt_logits(), |_| MAX_LOGPROBS], used prompt_top;
        /// Their log-probabilities.
        prompt_top_logprobs: f32 = [|layout| layout.max_prompt_logits(), |_| MAX_LOGPROBS], used prompt_top;
        /// When the device worked on the step, in nanoseconds of a clock that is its own: it began, it waited for the host
        /// (from, to), it was over. Written by the host; the intervals of steps do not overlap.
        device_times: i64 = [|_| 4], used |_| 0;
    }
}

/// Bounds of lists that lie one behind the other; none where there is no list.
fn bounds(lists: i64) -> i64 {
    lists + lists.signum()
}

/// The logits of a step, if it has more than none of what `number` counts.
fn wanted(header: &StepHeader, number: i64) -> i64 {
    if number > 0 { header.num_logits } else { 0 }
}

/// The logits of prompts of a step that wants the most likely tokens there.
fn prompt_top(header: &StepHeader) -> i64 {
    if header.max_prompt_logprobs > 0 { header.num_prompt_logits } else { 0 }
}

impl StepLayout {
    /// Every field in the order of the buffer.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        self.each_field(&StepHeader::ZERO, |field| fields.push(field));
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::{ALIGNMENT, ROW_DTYPE};
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
    fn a_step_without_states_has_no_fields_of_them() {
        let layout = StepLayout::new(8, 4, 6, 1, 33).unwrap();
        let lengths = |layout: StepLayout| {
            let of_states =
                |field: &Field| field.name.starts_with("state_") || field.name.starts_with("snapshot_");
            let fields = layout.fields().into_iter().filter(of_states);
            fields.map(|field| field.length).collect::<Vec<_>>()
        };
        assert_eq!(lengths(layout), [0; 6]);
        assert_eq!(lengths(layout.with_states(true)), [4; 6]);
        assert_eq!(layout.with_states(true).nbytes(), layout.nbytes() + 6 * ALIGNMENT);
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
