"""From logits to tokens on a GPU: one program a logits row, the tokens those of the Rust sampler.

What is sampled is defined in ``kernels/cpu/src/sampler/mod.rs`` and its rules, the noise in
``kernels/cpu/src/random.rs``; :mod:`pyengine.kernels.sampling_reference` says the same in torch.

Nothing is sorted. Candidates are in the order of their logits, the lower id first of equals, and
top-k and top-p keep the first of them up to a threshold, which is searched for among the bit
patterns of float32, ``WAYS`` at a time: the largest at and above which there are k tokens, or
their probability. Probabilities are counted in integers, which is exact in whatever order a GPU
adds. One to three passes over a row without these rules, some twenty for each of them; after the
first pass a row is in the cache.
"""

import torch

from pyengine.kernels.inputs import SamplingInputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.noise import exponential, mass, weight

BLOCK = 1024
"""Tokens that a program works on at a time; a multiple of 128."""

WAYS = 8
"""Thresholds that are tried at a time."""

_NO_TOKEN = tl.constexpr(0x7FFFFFFF)
_ABOVE_MINUS_INFINITY = tl.constexpr(-2139095040)


@triton.jit
def load(logits, mask, masked, offsets, vocabulary):
    """Logits in float32 without NaN and -0, minus infinity where not allowed; and what is allowed.

    ``masked`` is how many tokens the mask is for: all, or none.
    """
    inside = offsets < vocabulary
    word = tl.load(mask + offsets // 32, mask=offsets < masked, other=-1)
    allowed = inside & (((word >> (offsets % 32)) & 1) != 0)
    value = tl.load(logits + offsets, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(allowed & (value >= float("-inf")), value, float("-inf"))
    return tl.where(value == 0.0, 0.0, value), allowed


@triton.jit
def order_key(value):
    """An int64 that is in the order of the floats."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def keeps(value, offsets, level, last):
    """Whether a token is among those up to the one of logit ``level`` and id ``last``."""
    return (value > level) | ((value == level) & (offsets <= last))


@triton.jit
def amount(value, best, temperature, BY_MASS: tl.constexpr):
    """What a token adds to the sum that a rule looks at: its probability, or one."""
    if BY_MASS:
        each = mass(value, best, temperature)
    else:
        each = (value > float("-inf")).to(tl.int64)
    return each


@triton.jit
def first_until(
    logits, mask, masked, vocabulary, best, temperature, target,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The fewest tokens, first in order, whose amounts reach ``target``; all, if those do not.

    Returns logit and id of the last one.
    """
    low = tl.full([], _ABOVE_MINUS_INFINITY, tl.int64)
    high = order_key(best)
    ways = tl.arange(0, WAYS).to(tl.int64)
    while low < high:
        tried = low + (high - low + 1) * ways // WAYS  # [WAYS]
        reached = tl.zeros([WAYS], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value, _ = load(logits, mask, masked, offsets, vocabulary)
            each = amount(value, best, temperature, BY_MASS)
            hit = order_key(value)[:, None] >= tried[None, :]  # [BLOCK, WAYS]
            reached += tl.sum(tl.where(hit, each[:, None], 0), axis=0)
        enough = reached >= target
        low = tl.max(tl.where(enough, tried, low), axis=0)
        high = tl.min(tl.where(enough, high, tried - 1), axis=0)

    threshold = low.to(tl.int32)
    level = (threshold ^ ((threshold >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    above = tl.full([], 0, tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, _ = load(logits, mask, masked, offsets, vocabulary)
        each = amount(value, best, temperature, BY_MASS)
        above += tl.sum(tl.where(value > level, each, 0), axis=0)
    # Of equal logits the lowest ids, as many as are still wanted.
    one = tl.maximum(amount(level, best, temperature, BY_MASS), 1)
    wanted = (target - above + one - 1) // one
    seen = tl.full([], 0, tl.int64)
    last = tl.full([], _NO_TOKEN, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, _ = load(logits, mask, masked, offsets, vocabulary)
        equal = (value == level).to(tl.int32)
        number = seen + tl.cumsum(equal, axis=0)
        found = (equal != 0) & (number == wanted)
        last = tl.minimum(last, tl.min(tl.where(found, offsets, _NO_TOKEN), axis=0))
        seen += tl.sum(equal, axis=0)
    return level, last


@triton.jit
def first_to_arrive(
    logits, mask, masked, vocabulary, best, temperature, least, level, last, seed, position,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The winner of the exponential race among the tokens that are kept."""
    QUARTER: tl.constexpr = BLOCK // 4
    lanes = tl.arange(0, QUARTER)
    times = tl.full([QUARTER], float("inf"), tl.float32)
    tokens = tl.full([QUARTER], _NO_TOKEN, tl.int32)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for start in range(0, vocabulary, BLOCK):
        # Four words of a counter go to tokens that are 32 apart; see random.rs.
        first = start + lanes // 32 * 128 + lanes % 32
        peak = tl.full([], float("-inf"), tl.float32)
        for word in tl.static_range(4):
            value, _ = load(logits, mask, masked, first + word * 32, vocabulary)
            peak = tl.maximum(peak, tl.max(value, axis=0))
        if (peak >= level) & (peak > float("-inf")):
            counters = (start // 4 + lanes).to(tl.uint32)
            zero = tl.zeros([QUARTER], tl.uint32)
            words = tl.philox(seed, low + zero, high + zero, counters, zero)
            for word in tl.static_range(4):
                offsets = first + word * 32
                value, _ = load(logits, mask, masked, offsets, vocabulary)
                heavy = weight(value, best, temperature)
                runs = keeps(value, offsets, level, last) & (heavy >= least)
                time = tl.div_rn(exponential(words[word]), tl.where(runs, heavy, 1.0))
                time = tl.where(runs, time, float("inf"))
                wins = (time < times) | ((time == times) & (offsets < tokens) & runs)
                times = tl.where(wins, time, times)
                tokens = tl.where(wins, offsets, tokens)
    earliest = tl.min(times, axis=0)
    return tl.min(tl.where(times == earliest, tokens, _NO_TOKEN), axis=0)


@triton.jit
def sample_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, position_ptr,
    logit_start_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words, tokens_ptr,
    BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """One program a logits row: ``tokens[first_row + program]``; -1 where nothing is possible."""
    program = tl.program_id(0)
    logits_row = first_row + program
    logits = logits_ptr + program.to(tl.int64) * logits_stride
    mask_row = tl.load(mask_row_ptr + logits_row)
    masked = tl.where(mask_row >= 0, vocabulary, 0)
    mask = mask_ptr + tl.maximum(mask_row, 0).to(tl.int64) * mask_words

    best = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], -1, tl.int32)
    allowed_count = tl.full([], 0, tl.int32)
    only = tl.full([], -1, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, allowed = load(logits, mask, masked, offsets, vocabulary)
        allowed_count += tl.sum(allowed.to(tl.int32), axis=0)
        only = tl.maximum(only, tl.max(tl.where(allowed, offsets, -1), axis=0))
        peak = tl.max(value, axis=0)
        where = tl.min(tl.where(value == peak, offsets, _NO_TOKEN), axis=0)
        token = tl.where(peak > best, where, token)
        best = tl.maximum(best, peak)

    row = tl.load(logit_row_ptr + logits_row)
    temperature = tl.load(temperature_ptr + row)
    if (masked > 0) & (allowed_count == 1):
        token = only
    elif (best > float("-inf")) & (temperature > 0.0):
        level = tl.full([], float("-inf"), tl.float32)
        last = tl.full([], _NO_TOKEN, tl.int32)
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocabulary):
            level, last = first_until(
                logits, mask, masked, vocabulary, best, temperature, top_k.to(tl.int64),
                False, BLOCK, WAYS,
            )  # fmt: skip
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            total = tl.full([], 0, tl.int64)
            for start in range(0, vocabulary, BLOCK):
                offsets = start + tl.arange(0, BLOCK)
                value, _ = load(logits, mask, masked, offsets, vocabulary)
                each = mass(value, best, temperature)
                total += tl.sum(tl.where(keeps(value, offsets, level, last), each, 0), axis=0)
            wanted = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
            level, last = first_until(
                logits, mask, masked, vocabulary, best, temperature, tl.maximum(wanted, 1),
                True, BLOCK, WAYS,
            )  # fmt: skip
        min_p = tl.load(min_p_ptr + row)
        smallest = 1.1754943508222875e-38
        least = tl.where(min_p > smallest, tl.minimum(min_p, 1.0), smallest)
        seed = tl.load(seed_ptr + row)
        ahead = logits_row - tl.load(logit_start_ptr + row)
        position = tl.load(position_ptr + row) + ahead
        token = first_to_arrive(
            logits, mask, masked, vocabulary, best, temperature, least, level, last,
            seed, position, BLOCK,
        )  # fmt: skip
    tl.store(tokens_ptr + logits_row, token)


def sample(
    inputs: SamplingInputs, logits: torch.Tensor, tokens: torch.Tensor, first: int = 0
) -> None:
    """Choose a token for each of the logits rows ``first`` to ``first + len(logits)``.

    Queues the kernel on the current stream and returns. Rules apply in this order: mask,
    temperature, top-k, top-p, min-p. A mask that allows one token chooses it without a look at
    the logits; where nothing is possible the token is -1. With ``TRITON_INTERPRET=1``, set before
    triton is imported, it runs on the CPU.

    Args:
        inputs: Of the step, on the device of the logits.
        logits: float32, bfloat16 or float16 [rows, vocabulary], those of ``first`` first.
        tokens: int32 by logits row of the step; ``first`` to ``first + rows`` are written.
        first: First logits row.

    Raises:
        ValueError: The logits are of another type or shape.
    """
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"no kernel samples from {logits.dtype}")
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or not 0 < vocabulary < 2**31 - BLOCK:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
    if rows == 0:
        return
    sample_kernel[(rows,)](
        logits, logits.stride(0), vocabulary, first,
        inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p, inputs.seed,
        inputs.sample_position, inputs.logit_start, inputs.logit_row, inputs.mask_row,
        inputs.mask, inputs.mask.shape[-1], tokens,
        BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocabulary))), WAYS=WAYS,
        enable_fp_fusion=False,
    )  # fmt: skip
