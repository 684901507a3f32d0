"""The last token that top-k and top-p keep, searched for among the bit patterns of float32.

Several thresholds are tried at a time, each time of the whole row: the largest at and above which
there are k tokens, or their probability. That takes nothing but the row, and some thirteen passes
of one program over it; :mod:`.cut` does it only where there are too many tokens of
nearly equal logits for what it does else.
"""

from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.candidates import NO_TOKEN, float_of, keeps, load_above, order_key
from pyengine.kernels.sampling.noise import mass

_ABOVE_MINUS_INFINITY = tl.constexpr(-2139095040)


@triton.jit
def amount(value, best, temperature, BY_MASS: tl.constexpr):
    """A token's part of the sum that a rule looks at: its probability, or one."""
    if BY_MASS:
        each = mass(value, best, temperature)
    else:
        each = (value > float("-inf")).to(tl.int64)
    return each


@triton.jit
def first_until(
    logits, mask, masked, vocabulary, floor, best, temperature, target,
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
        sums = tl.zeros([BLOCK, WAYS], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value = load_above(logits, mask, masked, offsets, vocabulary, floor)
            each = amount(value, best, temperature, BY_MASS)
            hit = order_key(value)[:, None] >= tried[None, :]  # [BLOCK, WAYS]
            sums += tl.where(hit, each[:, None], 0)
        enough = tl.sum(sums, axis=0) >= target
        low = tl.max(tl.where(enough, tried, low), axis=0)
        high = tl.min(tl.where(enough, high, tried - 1), axis=0)

    level = float_of(low.to(tl.int32))
    sums_above = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, floor)
        each = amount(value, best, temperature, BY_MASS)
        sums_above += tl.where(value > level, each, 0)
    above = tl.sum(sums_above, axis=0)
    # Of equal logits the lowest ids, as many as are still wanted.
    one = tl.maximum(amount(level, best, temperature, BY_MASS), 1)
    wanted = (target - above + one - 1) // one
    seen = tl.full([], 0, tl.int64)
    last = tl.full([], NO_TOKEN, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, floor)
        equal = (value == level).to(tl.int32)
        number = seen + tl.cumsum(equal, axis=0)
        found = (equal != 0) & (number == wanted)
        last = tl.minimum(last, tl.min(tl.where(found, offsets, NO_TOKEN), axis=0))
        seen += tl.sum(equal, axis=0)
    return level, last


@triton.jit
def limits(
    logits, mask, masked, vocabulary, floor, best, temperature, top_k, top_p,
    BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """Logit and id of the last token that top-k and then top-p keep."""
    level = tl.full([], float("-inf"), tl.float32)
    last = tl.full([], NO_TOKEN, tl.int32)
    if (top_k > 0) & (top_k < vocabulary):
        level, last = first_until(
            logits, mask, masked, vocabulary, floor, best, temperature, top_k.to(tl.int64),
            False, BLOCK, WAYS,
        )  # fmt: skip
    if top_p < 1.0:
        masses = tl.zeros([BLOCK], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value = load_above(logits, mask, masked, offsets, vocabulary, floor)
            each = mass(value, best, temperature)
            masses += tl.where(keeps(value, offsets, level, last), each, 0)
        total = tl.sum(masses, axis=0)
        wanted = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        level, last = first_until(
            logits, mask, masked, vocabulary, floor, best, temperature, tl.maximum(wanted, 1),
            True, BLOCK, WAYS,
        )  # fmt: skip
    return level, last
