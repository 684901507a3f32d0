"""The most likely tokens of each row, and how likely they and the chosen token are.

Bytes moved: the row twice, the second time out of the cache, and for each of the K tokens a
column of 1 / ``LANES`` of it. One program has a row: its limit is what one multiprocessor can read,
some microseconds for a vocabulary of 128k, and about one more for each of the K.

A token and its logit are packed into one number, in the order of the result: first the logit,
then the lower id. Lane l keeps the best of tokens l, l + LANES, l + 2 LANES, ...; the best of the
lanes is the best of the row, and only its lane has to be looked through again for the next.
"""

import torch

from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.candidates import NOTHING, logit_of, pack, token_of

LANES = 2048
"""Tokens that a program looks at at a time."""


@triton.jit
def clean(logits_ptr, offsets, inside):
    """Logits in float32; minus infinity for NaN, and 0 for -0, which orders them."""
    value = tl.load(logits_ptr + offsets, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(value >= float("-inf"), value, float("-inf"))
    return tl.where(value == 0.0, 0.0, value)


@triton.jit
def below(value, best):
    """``value - best``; of infinite logits the best are alike and the others impossible."""
    infinite = tl.where(value == best, 0.0, float("-inf"))
    return tl.where(best == float("inf"), infinite, value - best)


@triton.jit
def log_probability(value, best, log_total):
    """The log-probability of a logit; minus infinity where the token is impossible."""
    return tl.where(value > float("-inf"), below(value, best) - log_total, float("-inf"))


# Of a step that is sampled in chunks these begin anywhere; no code is the better for knowing where.
@triton.jit(
    do_not_specialize=["wanted"],
    do_not_specialize_on_alignment=[
        "chosen_ptr",
        "tokens_ptr",
        "logprobs_ptr",
        "chosen_logprobs_ptr",
    ],
)
def top_logprobs_kernel(
    logits_ptr, logits_stride, vocabulary, chosen_ptr, tokens_ptr, tokens_stride,
    logprobs_ptr, logprobs_stride, chosen_logprobs_ptr, wanted,
    LANES: tl.constexpr, COLUMN: tl.constexpr,
):  # fmt: skip
    """One program a row; ``COLUMN`` is how many tokens a lane has, or more."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    lane = tl.arange(0, LANES)
    first = tl.full([LANES], NOTHING, tl.int64)
    for start in range(0, vocabulary, LANES):
        token = start + lane
        inside = token < vocabulary
        value = clean(logits_ptr, token, inside)
        first = tl.maximum(first, pack(value, token, inside))
    best = logit_of(tl.max(first, axis=0))
    sums = tl.zeros([LANES], tl.float32)
    for start in range(0, vocabulary, LANES):
        token = start + lane
        value = clean(logits_ptr, token, token < vocabulary)
        sums += tl.where(value > float("-inf"), tl.exp(below(value, best)), 0.0)
    log_total = tl.log(tl.sum(sums, axis=0))

    chosen = tl.load(chosen_ptr + row)
    known = (chosen >= 0) & (chosen < vocabulary)
    logprob = log_probability(clean(logits_ptr, chosen, known), best, log_total)
    tl.store(chosen_logprobs_ptr + row, logprob)
    for place in range(wanted):
        packed = tl.max(first, axis=0)
        token = token_of(packed)
        found = packed > NOTHING
        logprob = log_probability(logit_of(packed), best, log_total)
        logprob = tl.where(found, logprob, float("-inf"))
        tl.store(tokens_ptr + row * tokens_stride + place, tl.where(found, token, -1))
        tl.store(logprobs_ptr + row * logprobs_stride + place, logprob)
        column = token % LANES + tl.arange(0, COLUMN) * LANES
        inside = column < tl.where(found, vocabulary, 0)
        others = pack(clean(logits_ptr, column, inside), column, inside)
        others = tl.where(others < packed, others, NOTHING)
        first = tl.where(lane == token % LANES, tl.max(others, axis=0), first)


def top_logprobs(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    chosen_logprobs: torch.Tensor,
) -> None:
    """Log probabilities of the ``K`` most likely tokens of each row, and of a chosen one.

    Those of the softmax over the row as it is: before penalties, masks and temperature, where these
    are not applied yet or not any more (:func:`.penalties.restore`). NaN counts as
    impossible. Queues one kernel on the current stream; can be captured.

    Args:
        logits: [rows, vocabulary], float32, bfloat16 or float16, each row in one piece.
        chosen: int32 [rows].
        tokens: int32 [rows, K], written: the most likely first, of equals the lower id; -1 where
            the vocabulary is shorter.
        logprobs: float32 [rows, K], written: of ``tokens``; minus infinity at -1.
        chosen_logprobs: float32 [rows], written: of ``chosen``; minus infinity where that is no
            token, as -1.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(logits, chosen, tokens, logprobs, chosen_logprobs)
    rows, vocabulary = logits.shape
    if rows == 0:
        return
    lanes = min(LANES, triton.next_power_of_2(vocabulary))
    top_logprobs_kernel[(rows,)](
        logits, logits.stride(0), vocabulary, chosen, tokens, tokens.stride(0),
        logprobs, logprobs.stride(0), chosen_logprobs, tokens.shape[1],
        LANES=lanes, COLUMN=triton.next_power_of_2(triton.cdiv(vocabulary, lanes)), num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip


def top_logprobs_reference(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    chosen_logprobs: torch.Tensor,
) -> None:
    """As :func:`top_logprobs`, in torch and in float64; it sorts."""
    _check(logits, chosen, tokens, logprobs, chosen_logprobs)
    vocabulary, wanted = logits.shape[1], tokens.shape[1]
    value = logits.double()
    value = torch.where(value.isnan(), -torch.inf, value)
    infinite = torch.where(value == torch.inf, 0.0, -torch.inf)
    value = torch.where((value == torch.inf).any(dim=1, keepdim=True), infinite, value)
    every = value - value.logsumexp(dim=1, keepdim=True)
    every = torch.where(value > -torch.inf, every, -torch.inf)
    # -0 and 0 are equals.
    order = (value + 0.0).argsort(dim=1, descending=True, stable=True)[:, :wanted]
    tokens.fill_(-1)
    logprobs.fill_(-torch.inf)
    tokens[:, : order.shape[1]] = order
    logprobs[:, : order.shape[1]] = every.gather(1, order)
    known = (chosen >= 0) & (chosen < vocabulary)
    of_chosen = every.gather(1, torch.where(known, chosen, 0).long()[:, None])[:, 0]
    chosen_logprobs.copy_(torch.where(known, of_chosen, -torch.inf))


def _check(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    chosen_logprobs: torch.Tensor,
) -> None:
    rows = len(logits)
    if logits.ndim != 2 or logits.stride(1) != 1 or logits.shape[1] == 0:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
    if tokens.shape != logprobs.shape or tokens.shape != (rows, tokens.shape[-1]):
        raise ValueError(f"tokens and logprobs must be [{rows}, K], as many as rows of logits")
    if tokens.shape[1] and (tokens.stride(1) != 1 or logprobs.stride(1) != 1):
        raise ValueError("each row of tokens and logprobs must be in one piece")
    if chosen.shape != (rows,) or chosen_logprobs.shape != (rows,):
        raise ValueError(f"chosen and chosen_logprobs must be [{rows}]")
    for tensor in (chosen, chosen_logprobs):
        if not tensor.is_contiguous():
            raise ValueError("chosen and chosen_logprobs must be in one piece")
