"""Penalties, biases and forbidden words: a sparse list of changes to logits, applied in place.

A penalty concerns few tokens of a row. Masks and temperature concern all of them: the sampler
applies these as it reads the row (:mod:`.sample`). So none of them takes a pass
over the row.

Bytes moved: 12 for each penalty, and its logit read and written, each a sector of 32 bytes, for
logits lie scattered. That is little in any step: launching is the limit.
"""

import torch

from pyengine.kernels.language import tl, triton

BLOCK = 256
"""Penalties that a program applies at a time."""

PARTS = 8
"""Programs that share the penalties of a row."""


@triton.jit(do_not_specialize=["vocabulary", "first"])
def penalty_kernel(
    logits_ptr, logits_stride, vocabulary, first, start_ptr, token_ptr, factor_ptr, add_ptr,
    before_ptr, KEEPS: tl.constexpr, RESTORES: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A grid of rows and parts of their penalties."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * logits_stride
    end = tl.load(start_ptr + first + row + 1)
    begin = tl.load(start_ptr + first + row) + tl.program_id(1) * BLOCK
    for start in range(begin, end, PARTS * BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < end
        token = tl.load(token_ptr + index, mask=inside, other=-1)
        place = logits_ptr + token
        inside = inside & (token >= 0) & (token < vocabulary)
        if RESTORES:
            logit = tl.load(before_ptr + index, mask=inside, other=0.0)
        else:
            logit = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            if KEEPS:
                tl.store(before_ptr + index, logit, mask=inside)
            factor = tl.load(factor_ptr + index, mask=inside, other=1.0)
            logit = tl.where(logit > 0.0, tl.div_rn(logit, factor), logit * factor)
            logit = logit + tl.load(add_ptr + index, mask=inside, other=0.0)
        tl.store(place, logit.to(logits_ptr.dtype.element_ty), mask=inside)


def apply_penalties(
    logits: torch.Tensor,
    penalty_start: torch.Tensor,
    penalty_token: torch.Tensor,
    penalty_factor: torch.Tensor,
    penalty_add: torch.Tensor,
    first: int = 0,
    before: torch.Tensor | None = None,
) -> None:
    """Apply the penalties to logits rows ``first`` to ``first + len(logits)`` in place.

    For each penalty e of a row: its logit, divided by ``penalty_factor[e]`` where it is above 0 and
    multiplied by it elsewhere, plus ``penalty_add[e]``, each rounded to float32. Queues one kernel
    on the current stream; can be captured.

    Args:
        logits: [rows, vocabulary], float32, bfloat16 or float16, each row in one piece.
        penalty_start: int32 by logits row of the step, and one more: the first penalty of each.
        penalty_token: int32 by penalty, each token at most once in a row; tokens outside of the
            vocabulary are skipped.
        penalty_factor: float32 by penalty; 1 changes nothing.
        penalty_add: float32 by penalty; minus infinity forbids.
        first: Logits row of the step that is the first of ``logits``.
        before: float32 by penalty, written: the logits as they were, for :func:`restore`.

    Raises:
        ValueError: A row of ``logits`` is not in one piece.
    """
    _launch(logits, first, penalty_start, penalty_token, penalty_factor, penalty_add, before, False)


def restore(
    logits: torch.Tensor,
    penalty_start: torch.Tensor,
    penalty_token: torch.Tensor,
    before: torch.Tensor,
    first: int = 0,
) -> None:
    """Undo :func:`apply_penalties` with what it left in ``before``: bit for bit what they were.

    Log-probabilities are the model's own, while tokens are sampled from penalized logits.
    """
    _launch(logits, first, penalty_start, penalty_token, before, before, before, True)


def _launch(
    logits: torch.Tensor,
    first: int,
    start: torch.Tensor,
    token: torch.Tensor,
    factor: torch.Tensor,
    add: torch.Tensor,
    before: torch.Tensor | None,
    restores: bool,
) -> None:
    _check(logits)
    if len(logits) == 0:
        return
    penalty_kernel[(len(logits), PARTS)](
        logits, logits.stride(0), logits.shape[1], first, start, token, factor, add,
        factor if before is None else before,
        KEEPS=before is not None, RESTORES=restores, PARTS=PARTS, BLOCK=BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip


def apply_penalties_reference(
    logits: torch.Tensor,
    penalty_start: torch.Tensor,
    penalty_token: torch.Tensor,
    penalty_factor: torch.Tensor,
    penalty_add: torch.Tensor,
    first: int = 0,
    before: torch.Tensor | None = None,
) -> None:
    """As :func:`apply_penalties`, in torch; reads ``penalty_start`` on the CPU, so it waits for the
    device.
    """
    for row, penalties, tokens in _rows(logits, penalty_start, penalty_token, first):
        logit = row[tokens].float()
        if before is not None:
            before[penalties] = logit
        factor = penalty_factor[penalties]
        logit = torch.where(logit > 0.0, logit / factor, logit * factor)
        row[tokens] = (logit + penalty_add[penalties]).to(row.dtype)


def restore_reference(
    logits: torch.Tensor,
    penalty_start: torch.Tensor,
    penalty_token: torch.Tensor,
    before: torch.Tensor,
    first: int = 0,
) -> None:
    """As :func:`restore`, in torch."""
    for row, penalties, tokens in _rows(logits, penalty_start, penalty_token, first):
        row[tokens] = before[penalties].to(row.dtype)


def _rows(
    logits: torch.Tensor, start: torch.Tensor, token: torch.Tensor, first: int
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each row with its penalties and their tokens, without tokens outside of the vocabulary."""
    _check(logits)
    starts = start[first : first + len(logits) + 1].tolist()
    found = []
    for row, begin, end in zip(logits, starts, starts[1:], strict=False):
        tokens = token[begin:end].long()
        known = (tokens >= 0) & (tokens < len(row))
        penalties = torch.arange(begin, max(begin, end), device=token.device)
        found.append((row, penalties[known], tokens[known]))
    return found


def _check(logits: torch.Tensor) -> None:
    if logits.ndim != 2 or logits.stride(1) != 1:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
