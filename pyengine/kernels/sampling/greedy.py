"""Greedy sampling: the most likely token of each row, by one kernel.

It serves steps whose rows are all greedy, in the place of the kernels of
:mod:`.sample`, and gives the same tokens: masks are applied as the row is read,
penalties were applied in place before (:mod:`.penalties`).

Bytes moved: rows * vocabulary logits, and a bit for each where there is a mask. One program reads
a row: where rows are few its limit is what one multiprocessor can read, some microseconds for a
vocabulary of 128k, which is less than the launches of the general sampler take.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.candidates import look, masks_of
from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.kernels.sampling.reference import allowed_tokens

BLOCK = 4096
"""Tokens that a program looks at at a time; a multiple of 128."""


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def greedy_kernel(
    logits_ptr, logits_stride, vocabulary, first_row, mask_row_ptr, mask_ptr, mask_words,
    tokens_ptr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a logits row."""
    wait_for_inputs(CHAINED)
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * logits_stride
    mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, first_row + row, vocabulary)
    _best, token, allowed, only = look(logits, mask, masked, 0, vocabulary, BLOCK)
    token = tl.where((masked > 0) & (allowed == 1), only, token)
    tl.store(tokens_ptr + first_row + row, token)


def greedy(
    inputs: SamplingInputs, logits: torch.Tensor, tokens: torch.Tensor, first: int = 0
) -> None:
    """Choose the most likely allowed token of the logits rows ``first`` to ``first + len(logits)``.

    Of equal logits the lowest id wins. A mask that allows one token chooses it whatever its logit
    is. NaN counts as minus infinity; where nothing is possible the token is -1. Queues one kernel
    on the current stream and returns; can be captured.

    Args:
        inputs: The inputs of the step; ``mask_row`` and ``mask`` are read.
        logits: [rows, vocabulary], float32, bfloat16 or float16; each row in one piece.
        tokens: int32 by logits row; entries ``first`` to ``first + rows`` are written.
        first: First logits row.

    Raises:
        ValueError: A row of ``logits`` is empty, or not in one piece.
    """
    _check(logits)
    rows, vocabulary = logits.shape
    if rows == 0:
        return
    block = min(BLOCK, max(128, triton.next_power_of_2(vocabulary)))
    greedy_kernel[(rows,)](
        logits, logits.stride(0), vocabulary, first,
        inputs.mask_row, inputs.mask, inputs.mask.shape[-1], tokens,
        BLOCK=block, num_warps=max(4, block // 256), enable_fp_fusion=False,
        **chained(logits.device),
    )  # fmt: skip


def greedy_reference(
    inputs: SamplingInputs, logits: torch.Tensor, tokens: torch.Tensor, first: int = 0
) -> None:
    """As :func:`greedy`, in torch."""
    _check(logits)
    rows, vocabulary = logits.shape
    here = slice(first, first + rows)
    mask_row = inputs.mask_row[here]
    if rows == 0:
        return
    allowed = torch.ones_like(logits, dtype=torch.bool)
    if (mask_row >= 0).any():
        allowed = allowed_tokens(inputs.mask, mask_row, vocabulary)
    value = torch.where(allowed & ~logits.isnan(), logits.float(), -torch.inf)
    best = value.amax(dim=1)
    # argmax of floats takes any of equals, of integers the first.
    likeliest = (value == best[:, None]).int().argmax(dim=1)
    chosen = torch.where(best == -torch.inf, -1, likeliest)
    only = (mask_row >= 0) & (allowed.sum(dim=1) == 1)
    tokens[here] = torch.where(only, allowed.int().argmax(dim=1), chosen).to(torch.int32)


def _check(logits: torch.Tensor) -> None:
    if logits.ndim != 2 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
