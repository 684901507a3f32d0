"""Typical-p and XTC: tokens that they drop at both ends of what top-k, top-p and min-p leave.

A row keeps the tokens from a first to a last one: a ceiling and the id there, a level and the id
there. Definitions are in ``kernels/cpu/src/sampler/typical.rs`` and ``xtc.rs``; all is counted in
integers. One program a row; rows without these rules are not read, and nothing is stored for them.
"""

from pyengine.kernels.chain import wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.bins import cuts_of, share_of
from pyengine.kernels.sampling.candidates import (
    NO_TOKEN,
    best_logit,
    keeps,
    load_above,
    logit_of,
    masks_of,
    pack,
    token_of,
)
from pyengine.kernels.sampling.noise import depth, mass, weight
from pyengine.kernels.sampling.rules import long, real, word

_MIN_P, _TYPICAL_P, _SEED = word("min_p"), word("typical_p"), word("seed")
_PROBABILITY, _THRESHOLD = word("xtc_probability"), word("xtc_threshold")
_FARTHEST = tl.constexpr(22 << 14)  # from the entropy, of tokens with a mass; see typical.rs
_NONE = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # before all that are packed


@triton.jit
def least_weight(sampling_ptr, row):
    """The least weight that min-p keeps, above 0."""
    min_p = real(sampling_ptr, row, _MIN_P)
    smallest = 1.1754943508222875e-38
    return tl.where(min_p > smallest, tl.minimum(min_p, 1.0), smallest)


@triton.jit
def trims_of(sampling_ptr, row):
    """Whether a row has a typical-p, and whether it may exclude top choices."""
    typical = real(sampling_ptr, row, _TYPICAL_P) < 1.0
    chance = real(sampling_ptr, row, _PROBABILITY) > 0.0
    return typical, chance & (real(sampling_ptr, row, _THRESHOLD) <= 0.5)


@triton.jit
def kept_from(value, offsets, ceiling, first):
    """Whether a token is among those from the one of logit ``ceiling`` and id ``first`` on."""
    return (value < ceiling) | ((value == ceiling) & (offsets >= first))


@triton.jit
def masses_of(
    logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level, last
):  # fmt: skip
    """Logits, depths and masses of tokens; and whether all rules before typical-p keep them."""
    value = load_above(logits, mask, masked, offsets, vocabulary, floor)
    kept = keeps(value, offsets, level, last) & (weight(value, best, temperature) >= least)
    each = tl.where(kept, mass(value, best, temperature), 0)
    return value, depth(tl.where(kept, value, best), best, temperature), each, kept


@triton.jit
def typical_limits(
    logits, mask, masked, vocabulary, floor, best, temperature, least, level, last, typical_p,
    BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """The least and the best logit that typical-p keeps.

    A token's distance from the entropy is that of its depth from the mean depth. Several distances
    are tried at a time.
    """
    totals = tl.zeros([BLOCK], tl.int64)
    depths = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        _value, deep, each, _kept = masses_of(
            logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level, last
        )  # fmt: skip
        totals += each
        depths += each * deep
    total = tl.sum(totals, axis=0)
    mean = (tl.sum(depths, axis=0) // total).to(tl.int32)
    wanted = share_of(typical_p, total)

    near = tl.full([], 0, tl.int32)
    far = tl.full([], _FARTHEST, tl.int32)
    ways = tl.arange(0, WAYS)
    while near < far:
        tried = near + (far - near) * ways // WAYS  # [WAYS], below far
        sums = tl.zeros([BLOCK, WAYS], tl.int64)
        for start in range(0, vocabulary, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            _value, deep, each, _kept = masses_of(
                logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level,
                last,
            )  # fmt: skip
            inside = tl.abs(deep - mean)[:, None] <= tried[None, :]  # [BLOCK, WAYS]
            sums += tl.where(inside, each[:, None], 0)
        enough = tl.sum(sums, axis=0) >= wanted
        near = tl.max(tl.where(enough, near, tried + 1), axis=0)
        far = tl.min(tl.where(enough, tried, far), axis=0)

    lows = tl.full([BLOCK], float("inf"), tl.float32)
    highs = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, deep, _each, kept = masses_of(
            logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level, last
        )  # fmt: skip
        inside = kept & (tl.abs(deep - mean) <= far)
        lows = tl.minimum(lows, tl.where(inside, value, float("inf")))
        highs = tl.maximum(highs, tl.where(inside, value, float("-inf")))
    return tl.min(lows, axis=0), tl.max(highs, axis=0)


@triton.jit
def last_likely(
    logits, mask, masked, vocabulary, floor, best, temperature, least, level, last, ceiling,
    threshold, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last token in order with a probability of ``threshold``, packed; _NONE if none has."""
    totals = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, _deep, each, _kept = masses_of(
            logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level, last
        )  # fmt: skip
        totals += tl.where(value <= ceiling, each, 0)
    wanted = share_of(threshold, tl.sum(totals, axis=0))
    lasts = tl.full([BLOCK], _NONE, tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value, _deep, each, _kept = masses_of(
            logits, mask, masked, offsets, vocabulary, floor, best, temperature, least, level, last
        )  # fmt: skip
        likely = (each >= wanted) & (value <= ceiling)
        lasts = tl.minimum(lasts, tl.where(likely, pack(value, offsets, likely), _NONE))
    return tl.min(lasts, axis=0)


@triton.jit
def happens(seed, position, probability):
    """Whether the likely tokens of a position are dropped; see ``Stream::common_word``."""
    zero = tl.zeros([1], tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32) + zero
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32) + zero
    drawn, _b, _c, _d = tl.philox(seed, low, high, zero, zero + 1)
    chance = probability.to(tl.float64) * 4294967296.0
    return tl.max((drawn.to(tl.int64).to(tl.float64) < chance).to(tl.int32), axis=0) > 0


@triton.jit(do_not_specialize=["first_row", "mask_words", "parts"])
def trim_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, position_ptr, logit_start_ptr, logit_row_ptr,
    mask_row_ptr, mask_ptr, mask_words,
    best_ptr, floor_ptr, temperature_ptr, level_ptr, last_ptr, ceiling_ptr, top_ptr, parts,
    MAX_PARTS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a logits row: the last and the first token that it keeps."""
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    logits_row = first_row + program
    row = tl.load(logit_row_ptr + logits_row)
    typical, excludes = trims_of(sampling_ptr, row)
    if typical | excludes:
        _top_k, _top_p, cuts = cuts_of(sampling_ptr, row, vocabulary)
        temperature = tl.load(temperature_ptr + program)
        best = best_logit(best_ptr, parts, MAX_PARTS)
        if (temperature > 0.0) & (best > float("-inf")):
            floor = tl.load(floor_ptr + program)
            logits = logits_ptr + program.to(tl.int64) * logits_stride
            mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
            level = tl.full([], float("-inf"), tl.float32)
            last = tl.full([], NO_TOKEN, tl.int32)
            if cuts:
                level = tl.load(level_ptr + program)
                last = tl.load(last_ptr + program)
            least = least_weight(sampling_ptr, row)
            ceiling = best
            top = tl.full([], 0, tl.int32)
            if typical:
                low, ceiling = typical_limits(
                    logits, mask, masked, vocabulary, floor, best, temperature, least, level, last,
                    real(sampling_ptr, row, _TYPICAL_P), BLOCK, WAYS,
                )  # fmt: skip
                last = tl.where(low > level, NO_TOKEN, last)
                level = tl.maximum(level, low)
            if excludes:
                ahead = logits_row - tl.load(logit_start_ptr + row)
                position = tl.load(position_ptr + row) + ahead
                seed = long(sampling_ptr, row, _SEED)
                if happens(seed, position, real(sampling_ptr, row, _PROBABILITY)):
                    packed = last_likely(
                        logits, mask, masked, vocabulary, floor, best, temperature, least, level,
                        last, ceiling, real(sampling_ptr, row, _THRESHOLD), BLOCK,
                    )  # fmt: skip
                    if packed < _NONE:
                        ceiling = logit_of(packed)
                        top = token_of(packed)
            tl.store(level_ptr + program, level)
            tl.store(last_ptr + program, last)
            tl.store(ceiling_ptr + program, ceiling)
            tl.store(top_ptr + program, top)
