"""From logits to tokens on a GPU, the tokens those of the Rust sampler.

What is sampled is defined in ``kernels/cpu/src/sampler/mod.rs`` and its rules, the noise in
``kernels/cpu/src/random.rs``; :mod:`.reference` says the same in torch, :mod:`.candidates` how it
is found.

Masks and temperature are applied to the logits as they are read, each time, so that no pass over
the row is spent on them; penalties and biases are few and were done in place before
(:mod:`.penalties`).

A row is split between programs where rows are few, for else most of a GPU would be idle. They look
for the best of their parts (``peak_kernel``), find where top-k and top-p cut the row off
(:mod:`.cut`, whose kernels end at once for rows without) and what typical-p and XTC keep
(:mod:`.trim`, likewise), behind top-n-sigma and the dynamic temperature (:mod:`.shape`, likewise),
run the race among their tokens (``sample_kernel``), and the first of the winners is the winner
(``finish_kernel``). That is exact, for maxima, sums of integers, and minima of (time, token) do not
depend on how they are put together.

Each kernel begins when the one before it on the stream has ended: that is all that programs which
read what others wrote rely on.

Bytes moved: rows * vocabulary logits, and a bit for each where there is a mask; out of the cache a
second time for the race, and twice more for rows that are cut.
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling import cut
from pyengine.kernels.sampling.bins import clear_bins, cuts_of
from pyengine.kernels.sampling.candidates import (
    NO_TOKEN,
    best_of_parts,
    keeps,
    load_above,
    look,
    masks_of,
    part_of,
)
from pyengine.kernels.sampling.cut import MAX_PARTS, CutScratch
from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.kernels.sampling.noise import exponential, weight
from pyengine.kernels.sampling.rules import long, word
from pyengine.kernels.sampling.shape import shape_kernel
from pyengine.kernels.sampling.trim import kept_from, least_weight, trim_kernel, trims_of

_SEED = word("seed")

BLOCK = 1024
"""Tokens that a program works on at a time; a multiple of 128."""

PROGRAMS = 264
"""Programs that are wanted at least: two for each multiprocessor of an H200."""


@dataclass(frozen=True)
class SamplingScratch:
    """Memory in which programs that share a row leave results for each other, by row and part.

    Attributes:
        best: float32, the best logit.
        token: int32, the lowest token that has it; -1 where there is none.
        allowed: int32, how many tokens the mask allows.
        only: int32, the last of these.
        time: float32, when the first token arrives.
        winner: int32, that token.
        floor: float32 by row, the least logit that top-n-sigma keeps.
        temperature: float32 by row.
        ceiling: float32 by row, the best logit that typical-p and XTC keep; where one of them is.
        top: int32 by row, the lowest token of that logit that is kept.
        cut: For rows that top-k and top-p cut.
    """

    best: torch.Tensor
    token: torch.Tensor
    allowed: torch.Tensor
    only: torch.Tensor
    time: torch.Tensor
    winner: torch.Tensor
    floor: torch.Tensor
    temperature: torch.Tensor
    ceiling: torch.Tensor
    top: torch.Tensor
    cut: CutScratch

    @classmethod
    def for_rows(cls, rows: int, vocabulary: int, device: torch.device | str) -> "SamplingScratch":
        """Enough for every call with up to ``rows`` rows of ``vocabulary`` logits."""
        count = max((n * parts_of(n, vocabulary) for n in range(1, rows + 1)), default=0)

        def of(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        looked = (of(torch.float32), of(torch.int32), of(torch.int32), of(torch.int32))
        times = (of(torch.float32), of(torch.int32))
        floor, temperature, ceiling = (torch.zeros(rows, device=device) for _ in range(3))
        top = torch.zeros(rows, dtype=torch.int32, device=device)
        of_row = (floor, temperature, ceiling, top)
        return cls(*looked, *times, *of_row, CutScratch.for_rows(rows, device))

    @property
    def looked(self) -> tuple[torch.Tensor, ...]:
        """The results of looking at the parts."""
        return self.best, self.token, self.allowed, self.only


def parts_of(rows: int, vocabulary: int) -> int:
    """Number of programs that share a row, a power of two."""
    wanted = min(-(-PROGRAMS // rows), -(-vocabulary // BLOCK), MAX_PARTS)
    return 1 << (wanted - 1).bit_length()


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def peak_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, token_ptr, allowed_ptr, only_ptr, counts_ptr, masses_ptr, gathered_ptr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of logits rows and parts: the best of each part; and clears the bins of rows."""
    wait_for_inputs(CHAINED)
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * logits_stride
    mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, first_row + row, vocabulary)
    begin, end, place = part_of(vocabulary, PARTS, BLOCK)
    best, token, allowed_count, only = look(logits, mask, masked, begin, end, BLOCK)
    tl.store(best_ptr + place, best)
    tl.store(token_ptr + place, token)
    tl.store(allowed_ptr + place, allowed_count)
    tl.store(only_ptr + place, only)
    sampling_row = tl.load(logit_row_ptr + first_row + row)
    _top_k, _top_p, cuts = cuts_of(sampling_ptr, sampling_row, vocabulary)
    if cuts:
        clear_bins(counts_ptr, masses_ptr, gathered_ptr, PARTS, BINS)


@triton.jit
def first_to_arrive(
    logits, mask, masked, begin, end, floor, best, temperature, least, level, last, ceiling, top,
    seed, position, BLOCK: tl.constexpr,
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
        for quarter in tl.static_range(4):
            value = load_above(logits, mask, masked, first + quarter * 32, end, floor)
            peak = tl.maximum(peak, tl.max(value, axis=0))
        if (peak >= level) & (peak > float("-inf")):
            counters = (start // 4 + lanes).to(tl.uint32)
            zero = tl.zeros([QUARTER], tl.uint32)
            words = tl.philox(seed, low + zero, high + zero, counters, zero)
            for quarter in tl.static_range(4):
                offsets = first + quarter * 32
                value = load_above(logits, mask, masked, offsets, end, floor)
                heavy = weight(value, best, temperature)
                runs = keeps(value, offsets, level, last) & kept_from(value, offsets, ceiling, top)
                runs = runs & (heavy >= least)
                time = tl.div_rn(exponential(words[quarter]), tl.where(runs, heavy, 1.0))
                time = tl.where(runs, time, float("inf"))
                wins = (time < times) | ((time == times) & (offsets < tokens) & runs)
                times = tl.where(wins, time, times)
                tokens = tl.where(wins, offsets, tokens)
    earliest = tl.min(times, axis=0)
    return earliest, tl.min(tl.where(times == earliest, tokens, NO_TOKEN), axis=0)


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def sample_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, position_ptr,
    logit_start_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, token_ptr, allowed_ptr, only_ptr,
    floor_ptr, temperature_ptr, level_ptr, last_ptr, ceiling_ptr, top_ptr,
    time_ptr, winner_ptr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of logits rows and parts: the winner of the part; -1 where nothing is possible."""
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    logits_row = first_row + program
    logits = logits_ptr + program.to(tl.int64) * logits_stride
    mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
    begin, end, place = part_of(vocabulary, PARTS, BLOCK)
    best, token, allowed_count, only = best_of_parts(
        best_ptr, token_ptr, allowed_ptr, only_ptr, PARTS
    )
    row = tl.load(logit_row_ptr + logits_row)
    _top_k, _top_p, cuts = cuts_of(sampling_ptr, row, vocabulary)
    temperature = tl.load(temperature_ptr + program)
    time = tl.full([], -1.0, tl.float32)  # before any other: it is known already
    if (masked > 0) & (allowed_count == 1):
        token = only
    elif (best > float("-inf")) & (temperature > 0.0):
        level = tl.full([], float("-inf"), tl.float32)
        last = tl.full([], NO_TOKEN, tl.int32)
        ceiling = best
        top = tl.full([], 0, tl.int32)
        typical, excludes = trims_of(sampling_ptr, row)
        if cuts | typical | excludes:
            level = tl.load(level_ptr + program)
            last = tl.load(last_ptr + program)
        if typical | excludes:
            ceiling = tl.load(ceiling_ptr + program)
            top = tl.load(top_ptr + program)
        floor = tl.load(floor_ptr + program)
        least = least_weight(sampling_ptr, row)
        seed = long(sampling_ptr, row, _SEED)
        ahead = logits_row - tl.load(logit_start_ptr + row)
        position = tl.load(position_ptr + row) + ahead
        time, token = first_to_arrive(
            logits, mask, masked, begin, end, floor, best, temperature, least, level, last,
            ceiling, top, seed, position, BLOCK,
        )  # fmt: skip
    tl.store(time_ptr + place, time)
    tl.store(winner_ptr + place, token)


@triton.jit(do_not_specialize=["first_row"])
def finish_kernel(
    time_ptr, winner_ptr, tokens_ptr, first_row, PARTS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a logits row: the first of the winners of its parts."""
    wait_for_inputs(CHAINED)
    row = tl.program_id(0)
    place = row * PARTS + tl.arange(0, PARTS)
    times = tl.load(time_ptr + place)
    winners = tl.load(winner_ptr + place)
    earliest = tl.min(times, axis=0)
    token = tl.min(tl.where(times == earliest, winners, NO_TOKEN), axis=0)
    tl.store(tokens_ptr + first_row + row, token)


def sample(
    inputs: SamplingInputs,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    first: int = 0,
    scratch: SamplingScratch | None = None,
) -> None:
    """Choose a token for each of the logits rows ``first`` to ``first + len(logits)``.

    Queues eight kernels on the current stream and returns; can be captured. A token depends on its
    logits, its mask, and its sampling row's rules, seed and position alone. Rules apply in this
    order: mask, top-n-sigma, temperature, top-k, top-p, min-p, typical-p, XTC. A mask that allows
    one token chooses it without a look at the logits. NaN counts as minus infinity; where nothing
    is possible the token is -1.

    Args:
        inputs: The inputs of the step.
        logits: [rows, vocabulary], float32, bfloat16 or float16; each row in one piece.
        tokens: int32 by logits row; entries ``first`` to ``first + rows`` are written.
        first: First logits row.
        scratch: For as many rows at least. None: it is allocated for this call.

    Raises:
        ValueError: The logits are of another type or layout, or the scratch is too small.
    """
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"no kernel samples from {logits.dtype}")
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or not 0 < vocabulary < 2**31 - MAX_PARTS * BLOCK:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
    if rows == 0:
        return
    parts = parts_of(rows, vocabulary)
    if scratch is None:
        scratch = SamplingScratch.for_rows(rows, vocabulary, logits.device)
    if len(scratch.best) < rows * parts or len(scratch.cut.last) < rows:
        raise ValueError(f"the scratch is for less than {rows} rows of {vocabulary} logits")
    block = min(BLOCK, max(128, triton.next_power_of_2(vocabulary)))
    shape = {"PARTS": parts, "BLOCK": block}
    grid = (rows, parts)
    of_row = (logits, logits.stride(0), vocabulary, first)
    rules = inputs.sampling
    masks = (inputs.mask_row, inputs.mask, inputs.mask.shape[-1])
    bins = (scratch.cut.counts, scratch.cut.masses)
    chain = {**chained(logits.device), "enable_fp_fusion": False}
    peak_kernel[grid](
        *of_row, rules, inputs.logit_row, *masks, *scratch.looked, *bins, scratch.cut.gathered,
        **shape, BINS=cut.BINS, **chain,
    )  # fmt: skip
    one = {"MAX_PARTS": MAX_PARTS, "BLOCK": block, "num_warps": max(4, block // 128)}
    shaped = (scratch.best, scratch.floor, scratch.temperature)
    shape_kernel[(rows,)](*of_row, rules, inputs.logit_row, *masks, *shaped, parts, **one, **chain)
    cut.find(*of_row, rules, inputs.logit_row, masks, shaped, scratch.cut, grid, block)
    limits = (scratch.cut.level, scratch.cut.last, scratch.ceiling, scratch.top)
    places = (inputs.sample_position, inputs.logit_start, inputs.logit_row)
    trim_kernel[(rows,)](
        *of_row, rules, *places, *masks, *shaped, *limits, parts,
        **one, WAYS=cut.WAYS, **chain,
    )  # fmt: skip
    sample_kernel[grid](
        *of_row, rules, *places, *masks, *scratch.looked, *shaped[1:], *limits,
        scratch.time, scratch.winner,
        **shape, num_warps=max(4, block // 128), **chain,
    )  # fmt: skip
    finish_kernel[(rows,)](
        scratch.time, scratch.winner, tokens, first,
        PARTS=parts, num_warps=1, **chain,
    )  # fmt: skip
