"""From logits to tokens on a GPU, the tokens those of the Rust sampler.

What is sampled is defined in ``kernels/cpu/src/sampler/mod.rs`` and its rules, the noise in
``kernels/cpu/src/random.rs``; :mod:`pyengine.kernels.sampling_reference` says the same in torch,
:mod:`pyengine.kernels.candidates` how it is found.

Masks and temperature are applied to the logits as they are read, each time, so that no pass over
the row is spent on them; penalties and biases are few and were done in place before
(:mod:`pyengine.kernels.edit`). One pass over a row finds its best token, which is all that a greedy
one needs, a second runs the race; top-k and top-p take some twenty each. After the first pass a row
is in the cache.

With many rows a program has one. Few rows would leave most of a GPU idle, so each is split between
programs: they look for the best of their parts (``peak_kernel``), run the race among their tokens
(``sample_kernel``), and the first of the winners is the winner (``finish_kernel``). That is exact,
for maxima, counts, and minima of (time, token) do not depend on how they are put together. A row
with top-k or top-p has one program from the second kernel on.

Bytes moved: rows * vocabulary logits, and a bit for each where there is a mask.
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.candidates import NO_TOKEN, first_to_arrive, limits, look
from pyengine.kernels.inputs import SamplingInputs
from pyengine.kernels.language import tl, triton

BLOCK = 1024
"""Tokens that a program works on at a time; a multiple of 128."""

WAYS = 8
"""Thresholds that are tried at a time."""

PROGRAMS = 264
"""Programs that are wanted at least: two for each multiprocessor of an H200."""

MAX_PARTS = 64
"""Programs that share a row at most."""


@dataclass(frozen=True)
class SamplingScratch:
    """What the programs that share a row leave for each other, by row and part.

    Attributes:
        best: float32, the best logit.
        token: int32, the lowest token that has it; -1 where there is none.
        allowed: int32, how many tokens the mask allows.
        only: int32, the last of these.
        time: float32, when the first token arrives.
        winner: int32, that token.
    """

    best: torch.Tensor
    token: torch.Tensor
    allowed: torch.Tensor
    only: torch.Tensor
    time: torch.Tensor
    winner: torch.Tensor

    @classmethod
    def for_rows(cls, rows: int, vocabulary: int, device: torch.device | str) -> "SamplingScratch":
        """Enough for every call with up to ``rows`` rows of ``vocabulary`` logits."""
        count = max((n * parts_of(n, vocabulary) for n in range(1, rows + 1)), default=0)
        kinds = (torch.float32, torch.int32, torch.int32, torch.int32, torch.float32, torch.int32)
        return cls(*(torch.zeros(count, dtype=kind, device=device) for kind in kinds))


def parts_of(rows: int, vocabulary: int) -> int:
    """How many programs share a row where there are so many rows: a power of two."""
    wanted = min(-(-PROGRAMS // rows), -(-vocabulary // BLOCK), MAX_PARTS)
    return 1 << (wanted - 1).bit_length()


@triton.jit
def masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary):
    """The mask of a logits row, and how many tokens it is for: all, or none."""
    mask_row = tl.load(mask_row_ptr + logits_row)
    masked = tl.where(mask_row >= 0, vocabulary, 0)
    return mask_ptr + tl.maximum(mask_row, 0).to(tl.int64) * mask_words, masked


@triton.jit
def part_of(vocabulary, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Where this program's part of a row begins and ends, and its place in the scratch."""
    share = tl.cdiv(tl.cdiv(vocabulary, PARTS), BLOCK) * BLOCK
    begin = tl.program_id(1) * share
    place = tl.program_id(0) * PARTS + tl.program_id(1)
    return begin, tl.minimum(begin + share, vocabulary), place


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def peak_kernel(
    logits_ptr, logits_stride, vocabulary, first_row, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, token_ptr, allowed_ptr, only_ptr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A grid of logits rows and parts: the best of each part."""
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * logits_stride
    mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, first_row + row, vocabulary)
    begin, end, place = part_of(vocabulary, PARTS, BLOCK)
    best, token, allowed_count, only = look(logits, mask, masked, begin, end, BLOCK)
    tl.store(best_ptr + place, best)
    tl.store(token_ptr + place, token)
    tl.store(allowed_ptr + place, allowed_count)
    tl.store(only_ptr + place, only)


@triton.jit
def best_of_parts(best_ptr, token_ptr, allowed_ptr, only_ptr, PARTS: tl.constexpr):
    """What :func:`look` would say of the whole row."""
    place = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    bests = tl.load(best_ptr + place)
    best = tl.max(bests, axis=0)
    tokens = tl.load(token_ptr + place)
    token = tl.min(tl.where(bests == best, tokens, NO_TOKEN), axis=0)
    allowed_count = tl.sum(tl.load(allowed_ptr + place), axis=0)
    return best, token, allowed_count, tl.max(tl.load(only_ptr + place), axis=0)


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def sample_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, position_ptr,
    logit_start_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words, tokens_ptr,
    best_ptr, token_ptr, allowed_ptr, only_ptr, time_ptr, winner_ptr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, WAYS: tl.constexpr,
):  # fmt: skip
    """A grid of logits rows and parts: ``tokens[first_row + row]``, or the winner of the part.

    The token is -1 where nothing is possible.
    """
    program = tl.program_id(0)
    logits_row = first_row + program
    logits = logits_ptr + program.to(tl.int64) * logits_stride
    mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
    begin, end, place = part_of(vocabulary, PARTS, BLOCK)
    if PARTS == 1:
        best, token, allowed_count, only = look(logits, mask, masked, 0, vocabulary, BLOCK)
    else:
        best, token, allowed_count, only = best_of_parts(
            best_ptr, token_ptr, allowed_ptr, only_ptr, PARTS
        )

    row = tl.load(logit_row_ptr + logits_row)
    temperature = tl.load(temperature_ptr + row)
    time = tl.full([], -1.0, tl.float32)  # before any other: it is known already
    if (masked > 0) & (allowed_count == 1):
        token = only
    elif (best > float("-inf")) & (temperature > 0.0):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        # Where tokens are cut off, the first program has all of the row, the others nothing.
        cut = ((top_k > 0) & (top_k < vocabulary)) | (top_p < 1.0)
        begin = tl.where(cut & (begin > 0), vocabulary, begin)
        end = tl.where(cut, vocabulary, end)
        level = tl.full([], float("-inf"), tl.float32)
        last = tl.full([], NO_TOKEN, tl.int32)
        if begin < end:
            level, last = limits(
                logits, mask, masked, vocabulary, best, temperature, top_k, top_p, BLOCK, WAYS
            )
        min_p = tl.load(min_p_ptr + row)
        smallest = 1.1754943508222875e-38
        least = tl.where(min_p > smallest, tl.minimum(min_p, 1.0), smallest)
        seed = tl.load(seed_ptr + row)
        ahead = logits_row - tl.load(logit_start_ptr + row)
        position = tl.load(position_ptr + row) + ahead
        time, token = first_to_arrive(
            logits, mask, masked, begin, end, best, temperature, least, level, last,
            seed, position, BLOCK,
        )  # fmt: skip
    if PARTS == 1:
        tl.store(tokens_ptr + logits_row, token)
    else:
        tl.store(time_ptr + place, time)
        tl.store(winner_ptr + place, token)


@triton.jit(do_not_specialize=["first_row"])
def finish_kernel(time_ptr, winner_ptr, tokens_ptr, first_row, PARTS: tl.constexpr):
    """One program a logits row: the first of the winners of its parts."""
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

    Queues one to three kernels on the current stream and returns; can be captured. A token depends
    on its logits, its mask, and its sampling row's rules, seed and position alone. Rules apply in
    this order: mask, temperature, top-k, top-p, min-p. A mask that allows one token chooses it
    without a look at the logits. NaN counts as minus infinity; where nothing is possible the token
    is -1.

    Args:
        inputs: Of the step.
        logits: [rows, vocabulary], float32, bfloat16 or float16; each row in one piece.
        tokens: int32 by logits row; entries ``first`` to ``first + rows`` are written.
        first: First logits row.
        scratch: For as many rows at least; it lets programs share rows where these are few. None:
            every row has one program. The tokens are the same.

    Raises:
        ValueError: The logits are of another type or layout.
    """
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"no kernel samples from {logits.dtype}")
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1 or not 0 < vocabulary < 2**31 - MAX_PARTS * BLOCK:
        raise ValueError("logits must be [rows, vocabulary], each row in one piece")
    if rows == 0:
        return
    block = min(BLOCK, max(128, triton.next_power_of_2(vocabulary)))
    # As many threads as the race has lanes, a quarter of the block.
    warps = max(4, block // 128)
    parts = 1 if scratch is None else parts_of(rows, vocabulary)
    if scratch is None:
        # Nobody reads or writes it then.
        looked = (inputs.temperature, tokens, tokens, tokens)
        raced = (inputs.temperature, tokens)
    else:
        if len(scratch.best) < rows * parts:
            raise ValueError(f"the scratch is for less than {rows} rows of {vocabulary} logits")
        looked = (scratch.best, scratch.token, scratch.allowed, scratch.only)
        raced = (scratch.time, scratch.winner)
    if parts > 1:
        peak_kernel[(rows, parts)](
            logits, logits.stride(0), vocabulary, first,
            inputs.mask_row, inputs.mask, inputs.mask.shape[-1], *looked,
            PARTS=parts, BLOCK=block, enable_fp_fusion=False,
        )  # fmt: skip
    sample_kernel[(rows, parts)](
        logits, logits.stride(0), vocabulary, first,
        inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p, inputs.seed,
        inputs.sample_position, inputs.logit_start, inputs.logit_row, inputs.mask_row,
        inputs.mask, inputs.mask.shape[-1], tokens, *looked, *raced,
        PARTS=parts, BLOCK=block, WAYS=WAYS, num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip
    if parts > 1:
        finish_kernel[(rows,)](*raced, tokens, first, PARTS=parts, num_warps=1)
