"""Steps made by hand, for parts that run a device without an engine around it."""

import statistics
from collections import deque
from collections.abc import Iterator

import numpy as np

from pyengine.model.batch import StepBuffers
from pyengine.model.runner import ModelRunner, StepHandle
from pyengine.model.step_fields import sampling_rows


def fill(
    step: StepBuffers,
    rows: int,
    each: int,
    context: int,
    block_size: int,
    *,
    blocks: int | None = None,
    sampled: int | None = None,
    temperature: float = 0.0,
) -> None:
    """Write a step of ``rows`` rows, each with ``each`` new tokens behind ``context``.

    A row's last ``sampled`` tokens are sampled after; those of them behind the first are drafts.
    Its pages lie apart, as they do in a used cache.

    Args:
        step: Written.
        rows: Sequences, each at the slot of its number.
        each: New tokens of each.
        context: Tokens of each that are in the cache.
        block_size: Tokens of a KV block.
        blocks: Blocks of the cache, to scatter pages over; None takes as few as will do.
        sampled: Tokens of each that are sampled after; None is all.
        temperature: Of every row; 0 is greedy.

    Raises:
        ValueError: The step does not fit the cache.
    """
    tokens, length = rows * each, context + each
    sampled = each if sampled is None else sampled
    logits = rows * sampled
    pages = -(-length // block_size)
    if blocks is not None and rows * pages > blocks:
        raise ValueError(f"takes {rows * pages} KV blocks, {blocks} fit the memory")
    order = np.random.default_rng(0).permutation(rows * pages).astype(np.int32)
    table = order.reshape(rows, pages)
    places = np.tile(np.arange(context, length, dtype=np.int32), (rows, 1))  # [rows, each]
    slots = np.take_along_axis(table, places // block_size, 1) * block_size + places % block_size
    step.header[:] = 0
    step.num_rows = step.num_sampled = rows
    step.num_tokens, step.num_logits, step.num_pages = tokens, logits, rows * pages
    step.max_query_length, step.max_kv_length = each, length
    step.num_greedy = rows if temperature == 0 else 0
    # Rows that bring nothing but their last known token, and drafts.
    step.num_decode_rows = rows if sampled == each else 0
    step.token_ids[:tokens] = np.arange(tokens) % 1000 + 5
    step.positions[:tokens] = places.ravel()
    step.slot_mapping[:tokens] = slots.ravel()
    step.query_start[: rows + 1] = np.arange(rows + 1) * each
    step.kv_length[:rows] = length
    step.page_indptr[: rows + 1] = np.arange(rows + 1) * pages
    step.page_indices[: rows * pages] = order
    step.row_sequence[:rows] = np.arange(rows)
    step.sample_rows[:rows] = np.arange(rows)
    step.sample_sequence[:rows] = np.arange(rows)
    seeds = np.arange(rows)
    step.sampling[:rows] = sampling_rows(rows, temperature=temperature, seed=seeds)
    step.sample_position[:rows] = length - sampled + 1
    step.device_drafts[:rows], step.logprobs[:rows] = 0, -1
    step.logit_start[: rows + 1] = np.arange(rows + 1) * sampled
    step.logit_row[:logits] = np.arange(rows).repeat(sampled)
    step.logit_token[:logits] = np.arange(tokens).reshape(rows, each)[:, each - sampled :].ravel()
    step.mask_row[:logits] = -1


def add_prompt(step: StepBuffers, count: int, block_size: int) -> None:
    """Add a row to a step of :func:`fill`: a prompt of ``count`` tokens, whose last is not sampled
    after.
    """
    row, tokens, pages = step.num_rows, step.num_tokens, step.num_pages
    more = -(-count // block_size)
    step.num_rows, step.num_tokens, step.num_pages = row + 1, tokens + count, pages + more
    step.max_query_length = max(step.max_query_length, count)
    step.max_kv_length = max(step.max_kv_length, count)
    step.token_ids[tokens : tokens + count] = np.arange(count) % 1000 + 5
    step.positions[tokens : tokens + count] = np.arange(count)
    step.slot_mapping[tokens : tokens + count] = pages * block_size + np.arange(count)
    step.query_start[row + 1], step.kv_length[row] = tokens + count, count
    step.page_indptr[row + 1] = pages + more
    step.page_indices[pages : pages + more] = np.arange(pages, pages + more)
    step.row_sequence[row] = row


def step_times(
    runner: ModelRunner, rows: int, each: int, context: int, count: int
) -> Iterator[float]:
    """Seconds of the device for each of ``count`` such steps.

    They are launched one behind the other as the engine does it, so that the device has no pause.

    Raises:
        ValueError: The step does not fit the cache.
    """
    flying: deque[StepHandle] = deque()
    left = count
    while left or flying:
        if left and len(flying) <= runner.overlap:
            buffers = runner.buffers()
            fill(buffers, rows, each, context, runner.info.block_size, blocks=runner.num_blocks)
            handle = runner.launch(buffers)
            handle.sample()
            flying.append(handle)
            left -= 1
        if len(flying) > runner.overlap or not left:
            handle = flying.popleft()
            handle.wait()
            yield (handle.end_ns - handle.start_ns) * 1e-9


def step_seconds(
    runner: ModelRunner, rows: int, each: int, context: int, count: int, settle: int
) -> float:
    """Median of ``count`` :func:`step_times` after ``settle`` others.

    Raises:
        ValueError: The step does not fit the cache.
    """
    return statistics.median(list(step_times(runner, rows, each, context, settle + count))[settle:])
