"""The last token that top-k and top-p keep, searched for among all that a row may order.

Several bounds are tried at a time, each time of the whole row: the largest at and above which there
are k tokens, or their probability. That takes nothing but the row, and some 21 passes of one
program over it for each rule; :mod:`.cut` does it only where there are too many tokens of nearly
equal logits for what it does else.
"""

from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.bins import share_of
from pyengine.kernels.sampling.candidates import NOTHING, load_above, pack
from pyengine.kernels.sampling.noise import mass


@triton.jit
def sums_from(
    logits, mask, masked, vocabulary, floor, best, temperature, bounds,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """Tokens from each of ``bounds`` [WAYS] of :func:`pack` on, or their probabilities: int64."""
    sums = tl.zeros([BLOCK, WAYS], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, floor)
        packed = pack(value, offsets, value > float("-inf"))
        if BY_MASS:
            each = mass(value, best, temperature)
        else:
            each = tl.full([BLOCK], 1, tl.int64)
        sums += tl.where(packed[:, None] >= bounds[None, :], each[:, None], 0)
    return tl.sum(sums, axis=0)


@triton.jit
def last_of_first(
    logits, mask, masked, vocabulary, floor, best, temperature, target,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The last of the first tokens in order whose sum reaches ``target``, packed; NOTHING where
    that of all does not.
    """
    low = tl.full([], NOTHING, tl.int64)
    high = pack(best, tl.full([], 0, tl.int32), best > float("-inf"))
    ways = (tl.arange(0, WAYS) + 1).to(tl.int64)
    while low < high:
        step = tl.maximum(high // WAYS - low // WAYS, 1)  # the difference itself may not fit
        tried = tl.minimum(low + step * ways, high)  # [WAYS]
        sums = sums_from(
            logits, mask, masked, vocabulary, floor, best, temperature, tried, BY_MASS, BLOCK, WAYS
        )  # fmt: skip
        low = tl.max(tl.where(sums >= target, tried, low), axis=0)
        high = tl.min(tl.where(sums >= target, high, tried - 1), axis=0)
    return low


@triton.jit
def last_in_row(
    logits, mask, masked, vocabulary, floor, best, temperature, top_k, top_p,
    BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The :func:`pack` of the last token that top-k and then top-p keep; NOTHING if all are."""
    bound = tl.full([], NOTHING, tl.int64)
    if top_k > 0:
        bound = last_of_first(
            logits, mask, masked, vocabulary, floor, best, temperature, top_k.to(tl.int64),
            False, BLOCK, WAYS,
        )  # fmt: skip
    if top_p < 1.0:
        kept = tl.zeros([WAYS], tl.int64) + bound
        total = tl.max(
            sums_from(
                logits, mask, masked, vocabulary, floor, best, temperature, kept, True, BLOCK, WAYS
            ),
            axis=0,
        )  # fmt: skip
        bound = last_of_first(
            logits, mask, masked, vocabulary, floor, best, temperature, share_of(top_p, total),
            True, BLOCK, WAYS,
        )  # fmt: skip
    return bound
