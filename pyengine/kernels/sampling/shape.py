"""Shapes logits before any token is cut off: top-n-sigma's least logit, and the temperature.

Both are by logits row, and kernels that follow read them. Definitions are in
``kernels/cpu/src/sampler/top_n_sigma.rs`` and ``dynamic.rs``; sums are of integers, and what is
made of them is rounded after every operation, so that the numbers are those of the CPU.
"""

from pyengine.kernels.chain import wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.candidates import best_logit, load_above, masks_of
from pyengine.kernels.sampling.noise import depth, exp, ln, mass
from pyengine.kernels.sampling.rules import real, word

_TEMPERATURE, _TOP_N_SIGMA = word("temperature"), word("top_n_sigma")
_RANGE, _EXPONENT = word("dynatemp_range"), word("dynatemp_exponent")
_SMALLEST = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def floor_of(logits, mask, masked, vocabulary, best, n, BLOCK: tl.constexpr):
    """The least logit that is at most ``n`` standard deviations below the best, which is finite."""
    lowest = tl.full([], float("-inf"), tl.float32)
    counts = tl.zeros([BLOCK], tl.int64)
    depths = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, lowest)
        possible = value > float("-inf")
        counts += possible.to(tl.int64)
        depths += tl.where(possible, below(value, best), 0)
    count = tl.sum(counts, axis=0)
    mean = tl.sum(depths, axis=0) // count
    squares = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, lowest)
        apart = below(value, best) - mean
        squares += tl.where(value > float("-inf"), apart * apart, 0)
    wide = n.to(tl.float64)
    widest = wide * wide * tl.sum(squares, axis=0).to(tl.float64)
    floors = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, lowest)
        deep = below(value, best)
        inside = (deep * deep).to(tl.float64) * count.to(tl.float64) <= widest
        inside = inside & (value > float("-inf"))
        floors = tl.minimum(floors, tl.where(inside, value, float("inf")))
    return tl.min(floors, axis=0)


@triton.jit
def below(value, best):
    """How far below the best a logit is: int64, in units of 2^-11, at most 2^22."""
    return (tl.minimum(best - value, 2048.0) * 2048.0 + 0.5).to(tl.int64)


@triton.jit
def temperature_of(
    logits, mask, masked, vocabulary, floor, best, temperature, around, exponent,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The dynamic temperature, from ``around`` below ``temperature`` to ``around`` above it."""
    one = tl.full([], 1.0, tl.float32)
    least = tl.where(best == float("inf"), best, float("-inf"))
    counts = tl.zeros([BLOCK], tl.int64)
    masses = tl.zeros([BLOCK], tl.int64)
    depths = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        value = load_above(logits, mask, masked, offsets, vocabulary, floor)
        possible = (value > float("-inf")) & (value >= least)
        each = tl.where(possible, mass(value, best, one), 0)
        counts += possible.to(tl.int64)
        masses += each
        depths += each * depth(tl.where(possible, value, best), best, one)
    count = tl.sum(counts, axis=0).to(tl.float32)
    total = tl.sum(masses, axis=0).to(tl.float32)
    mean = tl.div_rn(tl.sum(depths, axis=0).to(tl.float32), total) * 6.103515625e-05
    entropy = ln(total * 9.313225746154785e-10) + mean
    share = tl.full([], 0.0, tl.float32)
    if count > 1.0:
        share = tl.div_rn(entropy, ln(count))
        power = exp(exponent * ln(tl.maximum(share, _SMALLEST)))
        power = tl.where(share < _SMALLEST, 0.0, power)
        share = tl.where(share >= 1.0, 1.0, power)
    low = tl.maximum(temperature - around, 0.0)
    high = temperature + around
    return tl.maximum(low + (high - low) * share, _SMALLEST)


@triton.jit(do_not_specialize=["first_row", "mask_words", "parts"])
def shape_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, floor_ptr, temperature_ptr, parts,
    MAX_PARTS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a logits row. Rows without these rules are not read."""
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    row = tl.load(logit_row_ptr + first_row + program)
    temperature = real(sampling_ptr, row, _TEMPERATURE)
    n = real(sampling_ptr, row, _TOP_N_SIGMA)
    around = real(sampling_ptr, row, _RANGE)
    floor = tl.full([], float("-inf"), tl.float32)
    if (temperature > 0.0) & ((n > 0.0) | (around > 0.0)):
        best = best_logit(best_ptr, parts, MAX_PARTS)
        if best > float("-inf"):
            logits = logits_ptr + program.to(tl.int64) * logits_stride
            mask, masked = masks_of(
                mask_ptr, mask_row_ptr, mask_words, first_row + program, vocabulary
            )
            if (n > 0.0) & (best < float("inf")):
                floor = floor_of(logits, mask, masked, vocabulary, best, n, BLOCK)
            if around > 0.0:
                exponent = real(sampling_ptr, row, _EXPONENT)
                temperature = temperature_of(
                    logits, mask, masked, vocabulary, floor, best, temperature, around, exponent,
                    BLOCK,
                )  # fmt: skip
    tl.store(floor_ptr + program, floor)
    tl.store(temperature_ptr + program, temperature)
