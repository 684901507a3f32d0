"""The names of a step's numbers and fields, for type checkers.

``python -m tools.step_names`` writes this file. ``rust/scheduler/src/step/buffers.rs`` declares
them with their types, lengths and meanings.
"""

from typing import Generic, TypeVar

Array = TypeVar("Array")


class StepNumbers:
    """The numbers of a step's header."""

    num_rows: int
    num_tokens: int
    num_sampled: int
    num_pages: int
    num_feeds: int
    max_query_length: int
    max_kv_length: int
    step_id: int
    num_greedy: int
    num_logits: int
    num_masks: int
    max_device_drafts: int
    num_decode_rows: int
    num_penalized_rows: int
    num_penalties: int
    num_logprobs_rows: int
    max_logprobs: int
    num_pooled_rows: int
    num_pooled_tokens: int
    num_prompt_logits: int
    max_prompt_logprobs: int
    num_processed_rows: int
    num_masked_logits: int
    num_adapted_rows: int


class StepNames(Generic[Array]):
    """A view of each field of a step, and of its results."""

    header: Array
    token_ids: Array
    positions: Array
    slot_mapping: Array
    query_start: Array
    kv_length: Array
    page_indptr: Array
    row_sequence: Array
    state_slot: Array
    state_source: Array
    state_accepted: Array
    state_drafts: Array
    snapshot_slot: Array
    snapshot_tokens: Array
    sample_rows: Array
    sample_sequence: Array
    sampling: Array
    sample_position: Array
    device_drafts: Array
    logit_start: Array
    logit_row: Array
    logit_token: Array
    mask_row: Array
    feed_token: Array
    feed_sequence: Array
    logprobs: Array
    page_indices: Array
    pool_token: Array
    pool_start: Array
    prompt_token: Array
    prompt_target: Array
    adapter_slot: Array
    adapter_first: Array
    adapter_count: Array
    penalty_start: Array
    penalty_token: Array
    penalty_factor: Array
    penalty_add: Array
    mask: Array
    sampled_counts: Array
    sampled_tokens: Array
    sampled_logprobs: Array
    top_tokens: Array
    top_logprobs: Array
    pooled: Array
    prompt_logprobs: Array
    prompt_top_tokens: Array
    prompt_top_logprobs: Array
    device_times: Array
