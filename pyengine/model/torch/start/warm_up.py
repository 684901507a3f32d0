"""The first steps of a runner, computed before requests come.

The largest step shows how much memory a step needs. The others compile the kernels that depend on
the number of rows, or that only some requests need, so that no request waits for a compiler.
"""

from collections.abc import Sequence

import numpy as np

from pyengine.kernels.layers.tiles import BORDERS
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import sampling_rows
from pyengine.model.torch.device.graphs import MAX_TOKENS, bucket
from pyengine.model.torch.runner import TorchRunner
from pyengine.sampling import MAX_LOGPROBS


def warm_up(runner: TorchRunner, longest: int) -> None:
    """Compute the largest step there may be, then small ones that reach every kernel.

    Args:
        runner: With blocks for ``longest`` tokens, which all rows share: the keys and values that
            are stored mean nothing.
        longest: Tokens of the longest row.
    """
    fields = runner.layout.fields()
    most_rows, most_tokens = fields["sample_rows"][2], fields["token_ids"][2]
    most = min(most_tokens, most_rows * longest)
    # Products with quantized weights are others for few rows.
    for tokens in (most, *BORDERS):
        if tokens <= most:
            compute(
                runner,
                [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0),
            )
    for power in range(min(most_rows, most_tokens).bit_length()):
        compute(runner, [1] * (1 << power))
    for variant, rows, tokens in runner.rehearsals:
        rehearse(runner, variant, rows, tokens, longest)
    compute(runner, [1], greedy=True)
    for logprobs in (False, True):
        compute(runner, [1], penalties=1, logprobs=logprobs)


def capture_graphs(runner: TorchRunner) -> None:
    """Capture the graphs of steps that only decode, of every size; those of steps with prompts or
    drafts are captured when steps want them.
    """
    if runner.graphs is None:
        return
    fields = runner.layout.fields()
    most = min(fields["sample_rows"][2], fields["token_ids"][2], MAX_TOKENS)
    with runner.graphs.at_once():
        for rows in sorted({bucket(count, most) for count in range(1, most + 1)}):
            # A step captures one graph: of its forward pass, or else of its sampling.
            for greedy in (True, True, False):
                compute(runner, [1] * rows, greedy=greedy)


def rehearse(runner: TorchRunner, variant: str, rows: int, tokens: int, longest: int) -> None:
    """Compute a step of ``rows`` rows behind one full page, if it has room in rows of ``longest``
    tokens.
    """
    size = runner.info.block_size
    counts = [tokens // rows + (row < tokens % rows) for row in range(rows)]
    if counts[0] + size > longest:
        return
    buffers = runner.buffers()
    write_step(buffers, counts, size, 1, context=size)
    # The last token of the first row comes from the step before.
    buffers.num_feeds, buffers.feed_token[0], buffers.feed_sequence[0] = 1, 0, 0
    runner.rehearse(buffers, variant)


def compute(
    runner: TorchRunner,
    lengths: list[int],
    *,
    greedy: bool = False,
    penalties: int = 0,
    logprobs: bool = False,
) -> None:
    """Compute one step of rows of a number of tokens, one of which samples."""
    buffers = runner.buffers()
    logits = min(runner.layout.fields()["logit_row"][2], sum(lengths))
    write_step(buffers, lengths, runner.info.block_size, logits)
    buffers.num_greedy = int(greedy)
    buffers.num_penalized_rows = buffers.num_penalties = penalties
    buffers.num_logprobs_rows, buffers.max_logprobs = int(logprobs), MAX_LOGPROBS * logprobs
    # The penalties are the first logits row's, and change nothing.
    buffers.penalty_start[: logits + 1] = [0, *[penalties] * logits]
    buffers.penalty_token[:penalties], buffers.penalty_factor[:penalties] = 0, 1.0
    buffers.penalty_add[:penalties] = 0.0
    step = runner.launch(buffers)
    step.sample()
    step.wait()


def write_step(
    buffers: StepBuffers, lengths: Sequence[int], block_size: int, logits: int, context: int = 0
) -> None:
    """Write a step of rows of ``lengths`` tokens behind ``context``, all in the blocks from 0 on.

    One row samples, ``logits`` logits rows with its drafts.
    """
    tokens = sum(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pages = [np.arange(-(-(context + length) // block_size)) for length in lengths]
    positions = np.concatenate([context + np.arange(length) for length in lengths])
    indices = np.concatenate(pages)
    rows = len(lengths)
    buffers.token_ids[:tokens] = 0
    buffers.positions[:tokens] = positions
    buffers.query_start[: rows + 1] = starts
    for table in buffers.page_tables:
        table.slot_mapping[:tokens] = positions
        table.kv_length[:rows] = [context + length for length in lengths]
        table.page_indptr[: rows + 1] = np.concatenate([[0], np.cumsum([len(p) for p in pages])])
    buffers.page_indices[: len(indices)] = indices
    buffers.row_sequence[:rows] = buffers.sample_rows[:1] = buffers.sample_sequence[:1] = 0
    buffers.sampling[:1] = sampling_rows(1, top_p=0.9)
    buffers.sample_position[0] = 0
    buffers.logit_start[:2] = 0, 1
    buffers.logit_row[:logits] = 0
    buffers.logit_token[:logits] = np.arange(logits) % tokens
    buffers.mask_row[:logits] = -1
    buffers.header[:] = 0
    buffers.num_rows, buffers.num_tokens, buffers.num_pages = rows, tokens, len(indices)
    buffers.num_decode_rows = rows if tokens == rows else 0
    buffers.max_query_length, buffers.max_kv_length = max(lengths), context + max(lengths)
    buffers.num_sampled, buffers.num_logits = 1, logits
