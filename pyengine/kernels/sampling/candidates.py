"""The candidates of a row and the race among them: the parts that sampling kernels share.

Candidates are in the order of their logits, the lower id first of equals, and top-k and top-p keep
the first of them up to a last one, which :mod:`.cut` finds. Probabilities are
counted in integers, which is exact in whatever order a GPU adds.

``BLOCK`` is how many tokens a program works on at a time, a multiple of 128; where a part of a row
is looked at, it begins at a multiple of that.
"""

from pyengine.kernels.language import tl, triton

NO_TOKEN = tl.constexpr(0x7FFFFFFF)
NOTHING = tl.constexpr(-9223372036854775807)
"""Comes behind all that :func:`pack` makes."""


@triton.jit
def masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary):
    """The mask of a logits row, and how many tokens it is for: all, or none."""
    mask_row = tl.load(mask_row_ptr + logits_row)
    masked = tl.where(mask_row >= 0, vocabulary, 0)
    return mask_ptr + tl.maximum(mask_row, 0).to(tl.int64) * mask_words, masked


@triton.jit
def part_of(vocabulary, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Begin and end of this program's part of a row, and its place in the scratch."""
    share = tl.cdiv(tl.cdiv(vocabulary, PARTS), BLOCK) * BLOCK
    begin = tl.program_id(1) * share
    place = tl.program_id(0) * PARTS + tl.program_id(1)
    return begin, tl.minimum(begin + share, vocabulary), place


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
def load_above(logits, mask, masked, offsets, vocabulary, floor):
    """Loads logits as :func:`load` does; below ``floor`` they are minus infinity."""
    value, _allowed = load(logits, mask, masked, offsets, vocabulary)
    return tl.where(value >= floor, value, float("-inf"))


@triton.jit
def look(logits, mask, masked, begin, end, BLOCK: tl.constexpr):
    """Best logit of a part of a row, its lowest token or -1, number of allowed tokens, the last."""
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
def best_logit(best_ptr, parts, MOST: tl.constexpr):
    """The best logit of this program's row, which has at most ``MOST`` parts."""
    part = tl.arange(0, MOST)
    place = tl.program_id(0) * parts + part
    return tl.max(tl.load(best_ptr + place, mask=part < parts, other=float("-inf")), axis=0)


@triton.jit
def best_of_parts(best_ptr, token_ptr, allowed_ptr, only_ptr, PARTS: tl.constexpr):
    """The result of :func:`look` for the whole row."""
    place = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    bests = tl.load(best_ptr + place)
    best = tl.max(bests, axis=0)
    tokens = tl.load(token_ptr + place)
    token = tl.min(tl.where(bests == best, tokens, NO_TOKEN), axis=0)
    allowed_count = tl.sum(tl.load(allowed_ptr + place), axis=0)
    return best, token, allowed_count, tl.max(tl.load(only_ptr + place), axis=0)


@triton.jit
def order_key(value):
    """An int64 that is in the order of the floats."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def float_of(key):
    """The float of an :func:`order_key`, as int32."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(value, token, inside):
    """An int64 that is the greater, the sooner the token comes in order."""
    packed = (order_key(value) << 32) | (0x7FFFFFFF - token).to(tl.int64)
    return tl.where(inside, packed, NOTHING)


@triton.jit
def logit_of(packed):
    """The logit in what :func:`pack` made."""
    return float_of((packed >> 32).to(tl.int32))


@triton.jit
def token_of(packed):
    """The token in what :func:`pack` made."""
    return (0x7FFFFFFF - (packed & 0xFFFFFFFF)).to(tl.int32)


@triton.jit
def keeps(value, offsets, level, last):
    """Whether a token is among those up to the one of logit ``level`` and id ``last``."""
    return (value > level) | ((value == level) & (offsets <= last))
