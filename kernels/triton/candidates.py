"""Which tokens of a row may be sampled, and which of them wins: what the sampler is made of.

Nothing is sorted. Candidates are in the order of their logits, the lower id first of equals, and
top-k and top-p keep the first of them up to a threshold, which is searched for among the bit
patterns of float32, several at a time: the largest at and above which there are k tokens, or
their probability. Probabilities are counted in integers, which is exact in whatever order a GPU
adds.

``BLOCK`` is how many tokens a program works on at a time, a multiple of 128; where a part of a row
is looked at, it begins at a multiple of that.
"""

from pyengine.kernels.language import tl, triton
from pyengine.kernels.noise import exponential, mass, weight

NO_TOKEN = tl.constexpr(0x7FFFFFFF)
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
def look(logits, mask, masked, begin, end, BLOCK: tl.constexpr):
    """Of a part of a row: best logit, its lowest token or -1, how many are allowed, the last."""
    # Each thread keeps what it saw; they are put together once, at the end.
    bests = tl.full([BLOCK], float("-inf"), tl.float32)
    tokens = tl.full([BLOCK], -1, tl.int32)
    counts = tl.zeros([BLOCK], tl.int32)
    lasts = tl.full([BLOCK], -1, tl.int32)
    for start in range(begin, end, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, allowed = load(logits, mask, masked, offsets, end)
        counts += allowed.to(tl.int32)
        lasts = tl.where(allowed, offsets, lasts)
        tokens = tl.where(value > bests, offsets, tokens)
        bests = tl.maximum(bests, value)
    best = tl.max(bests, axis=0)
    token = tl.min(tl.where(bests == best, tokens, NO_TOKEN), axis=0)
    allowed_count = tl.sum(counts, axis=0)
    only = tl.max(lasts, axis=0)
    return best, token, allowed_count, only


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
        sums = tl.zeros([BLOCK, WAYS], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value, _ = load(logits, mask, masked, offsets, vocabulary)
            each = amount(value, best, temperature, BY_MASS)
            hit = order_key(value)[:, None] >= tried[None, :]  # [BLOCK, WAYS]
            sums += tl.where(hit, each[:, None], 0)
        enough = tl.sum(sums, axis=0) >= target
        low = tl.max(tl.where(enough, tried, low), axis=0)
        high = tl.min(tl.where(enough, high, tried - 1), axis=0)

    threshold = low.to(tl.int32)
    level = (threshold ^ ((threshold >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    sums_above = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, _ = load(logits, mask, masked, offsets, vocabulary)
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
        value, _ = load(logits, mask, masked, offsets, vocabulary)
        equal = (value == level).to(tl.int32)
        number = seen + tl.cumsum(equal, axis=0)
        found = (equal != 0) & (number == wanted)
        last = tl.minimum(last, tl.min(tl.where(found, offsets, NO_TOKEN), axis=0))
        seen += tl.sum(equal, axis=0)
    return level, last


@triton.jit
def limits(
    logits, mask, masked, vocabulary, best, temperature, top_k, top_p,
    BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """Logit and id of the last token that top-k and then top-p keep."""
    level = tl.full([], float("-inf"), tl.float32)
    last = tl.full([], NO_TOKEN, tl.int32)
    if (top_k > 0) & (top_k < vocabulary):
        level, last = first_until(
            logits, mask, masked, vocabulary, best, temperature, top_k.to(tl.int64),
            False, BLOCK, WAYS,
        )  # fmt: skip
    if top_p < 1.0:
        masses = tl.zeros([BLOCK], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value, _ = load(logits, mask, masked, offsets, vocabulary)
            each = mass(value, best, temperature)
            masses += tl.where(keeps(value, offsets, level, last), each, 0)
        total = tl.sum(masses, axis=0)
        wanted = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        level, last = first_until(
            logits, mask, masked, vocabulary, best, temperature, tl.maximum(wanted, 1),
            True, BLOCK, WAYS,
        )  # fmt: skip
    return level, last


@triton.jit
def first_to_arrive(
    logits, mask, masked, begin, end, best, temperature, least, level, last, seed, position,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Time and token of the winner of the exponential race among those of a part that are kept."""
    QUARTER: tl.constexpr = BLOCK // 4
    lanes = tl.arange(0, QUARTER)
    times = tl.full([QUARTER], float("inf"), tl.float32)
    tokens = tl.full([QUARTER], NO_TOKEN, tl.int32)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for start in range(begin, end, BLOCK):
        # Four words of a counter go to tokens that are 32 apart; see random.rs.
        first = start + lanes // 32 * 128 + lanes % 32
        peak = tl.full([], float("-inf"), tl.float32)
        for word in tl.static_range(4):
            value, _ = load(logits, mask, masked, first + word * 32, end)
            peak = tl.maximum(peak, tl.max(value, axis=0))
        if (peak >= level) & (peak > float("-inf")):
            counters = (start // 4 + lanes).to(tl.uint32)
            zero = tl.zeros([QUARTER], tl.uint32)
            words = tl.philox(seed, low + zero, high + zero, counters, zero)
            for word in tl.static_range(4):
                offsets = first + word * 32
                value, _ = load(logits, mask, masked, offsets, end)
                heavy = weight(value, best, temperature)
                runs = keeps(value, offsets, level, last) & (heavy >= least)
                time = tl.div_rn(exponential(words[word]), tl.where(runs, heavy, 1.0))
                time = tl.where(runs, time, float("inf"))
                wins = (time < times) | ((time == times) & (offsets < tokens) & runs)
                times = tl.where(wins, time, times)
                tokens = tl.where(wins, offsets, tokens)
    earliest = tl.min(times, axis=0)
    return earliest, tl.min(tl.where(times == earliest, tokens, NO_TOKEN), axis=0)
