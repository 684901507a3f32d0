"""Verification of drafts on the device: one kernel, and nothing goes back to the CPU."""

import torch

from pyengine._core import step_numbers
from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.inputs import SamplingInputs

ROWS = 256
"""Sampling rows that the kernel works on at a time."""
_NUM_SAMPLED = step_numbers()["num_sampled"]


@triton.jit
def verify_kernel(
    header_ptr, logit_start_ptr, logit_token_ptr, token_ids_ptr, tokens_ptr, sequence_ptr,
    counts_ptr, compacted_ptr, last_token_ptr, NUM_SAMPLED: tl.constexpr, ROWS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program for all rows, for where a row's tokens go depends on those before it."""
    wait_for_inputs(CHAINED)
    sampled = tl.load(header_ptr + NUM_SAMPLED).to(tl.int32)
    written = tl.full([], 0, tl.int32)
    for start in range(0, sampled, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < sampled
        begin = tl.load(logit_start_ptr + row, mask=inside, other=0)
        drafts = tl.load(logit_start_ptr + row + 1, mask=inside, other=1) - begin - 1
        count = inside.to(tl.int32)
        holds = inside
        for at in range(tl.max(drafts, axis=0)):
            holds = holds & (at < drafts)
            token = tl.load(tokens_ptr + begin + at, mask=holds, other=0)
            place = tl.load(logit_token_ptr + begin + at, mask=holds, other=0) + 1
            draft = tl.load(token_ids_ptr + place, mask=holds, other=0)
            holds = holds & (token == draft)
            count += holds.to(tl.int32)
        tl.store(counts_ptr + row, count, mask=inside)

        end = written + tl.cumsum(count, axis=0)
        for at in range(tl.max(count, axis=0)):
            holding = at < count
            token = tl.load(tokens_ptr + begin + at, mask=holding, other=0)
            tl.store(compacted_ptr + end - count + at, token, mask=holding)
        last = tl.load(tokens_ptr + begin + count - 1, mask=inside, other=0)
        sequence = tl.load(sequence_ptr + row, mask=inside, other=0)
        tl.store(last_token_ptr + sequence, tl.maximum(last, 0), mask=inside)
        written += tl.sum(count, axis=0)


def verify(
    inputs: SamplingInputs,
    header: torch.Tensor,
    token_ids: torch.Tensor,
    tokens: torch.Tensor,
    sample_sequence: torch.Tensor,
    counts: torch.Tensor,
    compacted: torch.Tensor,
    last_token: torch.Tensor,
) -> None:
    """Compare the drafts of the step with what was sampled in their places.

    Queues the kernel on the current stream, behind :func:`.sample.sample`, and
    returns. How many rows sample is read on the device, so that a CUDA graph of it serves every
    step.

    Args:
        inputs: The inputs of the step.
        header: int64, the step's; see :func:`pyengine._core.step_numbers`.
        token_ids: int32 [tokens], the tokens of the step, drafts among them.
        tokens: int32 by logits row: what was sampled.
        sample_sequence: int32 by sampling row: its slot in the sequence table.
        counts: int32 by sampling row, written: how many of its tokens hold: one, and one more for
            each of its leading drafts that is what was sampled.
        compacted: int32, as long as ``tokens``, written: the tokens that hold, row after row.
        last_token: int32 [slots of the sequence table], written: by slot the last of them, which
            the next step begins with; 0 where nothing could be sampled, so that it can be looked
            up.
    """
    verify_kernel[(1,)](
        header, inputs.logit_start, inputs.logit_token, token_ids, tokens, sample_sequence,
        counts, compacted, last_token,
        NUM_SAMPLED=_NUM_SAMPLED, ROWS=ROWS, enable_fp_fusion=False,
        **chained(tokens.device),
    )  # fmt: skip


def verify_reference(
    inputs: SamplingInputs,
    header: torch.Tensor,
    token_ids: torch.Tensor,
    tokens: torch.Tensor,
    sample_sequence: torch.Tensor,
    counts: torch.Tensor,
    compacted: torch.Tensor,
    last_token: torch.Tensor,
) -> None:
    """As :func:`verify`, in Python."""
    written = 0
    starts = inputs.logit_start.tolist()
    for row in range(int(header[_NUM_SAMPLED])):
        begin, end = starts[row], starts[row + 1]
        count = 1
        while begin + count < end:
            draft = token_ids[inputs.logit_token[begin + count - 1] + 1]
            if tokens[begin + count - 1] != draft:
                break
            count += 1
        counts[row] = count
        compacted[written : written + count] = tokens[begin : begin + count]
        slot = int(sample_sequence[row])
        last_token[slot] = max(int(tokens[begin + count - 1]), 0)
        written += count
