"""Finds where top-k and top-p cut a row off, by all programs that share it.

::

    bins of logits   0 │ 1 │ 2 │ 3 │ 4 │ ... │ last     the best logit's is 0
    tokens in each   1   0   3   9  25                  spread_kernel: all programs of the row
    k = 10                      └─ the tenth is in here
    its tokens       gather_kernel: again all programs
    the last kept    cut_kernel: one program, which reads only these

Bins are ``BINS`` equal steps of the logit, from the best one down to e^-12 of its probability; the
last has all below. A row's tokens are counted, and their probabilities added, by bin: integers,
whose sums do not depend on the order of the programs. The bin in which k or p is reached has few
tokens, seldom more than some hundreds of a vocabulary of 128k, and only these are searched. Where
there are more than ``ROOM`` of them (thousands of equal logits, a k or p that reaches into the last
bin), the program of that row searches in all of it, again and again: it is slow, and as exact.

Both rules at once: what top-p wants is a share of what top-k leaves, which is known exactly only
when the k-th token is. Before that it is between the sums without and with its bin, and the bins
that either leads to are gathered.

Bytes read of a row of V logits of b bytes, in the whole of sampling: 4 * V * b, in four launches of
many programs: its best, the bins, the gathering, the race. Besides, each program that gathers reads
8 * ``BINS`` bytes for top-p and 4 * ``BINS`` for top-k, and the one that cuts those and at most
8 * ``ROOM``. Programs add to a row's bins in the device's memory, token by token: few are above the
last bin, and that one's tokens a program sums up by itself. (Histograms in shared memory would be
fewer additions, but Triton 3.6 makes of one a vote of each warp on each bin.)
"""

from dataclasses import dataclass
from typing import Any

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.bins import bin_of, bins_of_cut, cuts_of, last_kept
from pyengine.kernels.sampling.candidates import (
    NO_TOKEN,
    NOTHING,
    best_logit,
    load_above,
    logit_of,
    masks_of,
    pack,
    part_of,
    token_of,
)
from pyengine.kernels.sampling.noise import mass
from pyengine.kernels.sampling.threshold import last_in_row

MAX_PARTS = 64
"""Programs that share a row at most."""

BINS = 1024
"""Bins of a row; a power of two."""

ROOM = 2048
"""Tokens of a row that are gathered at most; a power of two."""

WAYS = 8
"""Bounds that are tried at a time where there are more."""


@dataclass(frozen=True)
class CutScratch:
    """Memory in which the kernels leave results for each other, by row.

    Attributes:
        counts: int32 [rows, BINS], tokens by bin; where there is a top-k.
        masses: int64 [rows, BINS], their probabilities; where there is a top-p.
        gathered: int32 [rows], tokens that were asked for.
        packed: int64 [rows, ROOM], as many of them as there is room for.
        level: float32 [rows], the logit of the last token that is kept.
        last: int32 [rows], its id.
    """

    counts: torch.Tensor
    masses: torch.Tensor
    gathered: torch.Tensor
    packed: torch.Tensor
    level: torch.Tensor
    last: torch.Tensor

    @classmethod
    def for_rows(cls, rows: int, device: torch.device | str) -> "CutScratch":
        """Enough for every call with up to ``rows`` rows."""
        int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
        int64: dict[str, Any] = {"dtype": torch.int64, "device": device}
        return cls(
            torch.zeros(rows, BINS, **int32),
            torch.zeros(rows, BINS, **int64),
            torch.zeros(rows, **int32),
            torch.zeros(rows, ROOM, **int64),
            torch.zeros(rows, device=device),
            torch.zeros(rows, **int32),
        )


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def spread_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, floor_ptr, temperature_ptr, counts_ptr, masses_ptr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of logits rows and parts: adds the tokens of a part up by bin."""
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    logits_row = first_row + program
    row = tl.load(logit_row_ptr + logits_row)
    top_k, top_p, cuts = cuts_of(sampling_ptr, row, vocabulary)
    temperature = tl.load(temperature_ptr + program)
    floor = tl.load(floor_ptr + program)
    if cuts:
        logits = logits_ptr + program.to(tl.int64) * logits_stride
        mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
        begin, end, _part = part_of(vocabulary, PARTS, BLOCK)
        best = best_logit(best_ptr, PARTS, PARTS)
        counts_ptr += program.to(tl.int64) * BINS
        masses_ptr += program.to(tl.int64) * BINS
        low_count = tl.zeros([BLOCK], tl.int32)
        low_mass = tl.zeros([BLOCK], tl.int64)
        for start in range(begin, end, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value = load_above(logits, mask, masked, offsets, end, floor)
            possible = value > float("-inf")
            place = bin_of(value, best, temperature, BINS)
            is_low = possible & (place == BINS - 1)
            is_high = possible & (place < BINS - 1)
            if top_k > 0:
                low_count += is_low.to(tl.int32)
                tl.atomic_add(counts_ptr + place, 1, mask=is_high, sem="relaxed")
            if top_p < 1.0:
                each = mass(value, best, temperature)
                low_mass += tl.where(is_low, each, 0)
                tl.atomic_add(masses_ptr + place, each, mask=is_high, sem="relaxed")
        if top_k > 0:
            tl.atomic_add(counts_ptr + BINS - 1, tl.sum(low_count, axis=0), sem="relaxed")
        if top_p < 1.0:
            tl.atomic_add(masses_ptr + BINS - 1, tl.sum(low_mass, axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["first_row", "mask_words"])
def gather_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, floor_ptr, temperature_ptr, counts_ptr, masses_ptr, gathered_ptr, packed_ptr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, ROOM: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of logits rows and parts: the tokens of the bins in which a row is cut.

    They come in any order, on which nothing depends that is read of them.
    """
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    logits_row = first_row + program
    row = tl.load(logit_row_ptr + logits_row)
    top_k, top_p, cuts = cuts_of(sampling_ptr, row, vocabulary)
    temperature = tl.load(temperature_ptr + program)
    floor = tl.load(floor_ptr + program)
    if cuts:
        logits = logits_ptr + program.to(tl.int64) * logits_stride
        mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
        begin, end, _part = part_of(vocabulary, PARTS, BLOCK)
        best = best_logit(best_ptr, PARTS, PARTS)
        bins = program.to(tl.int64) * BINS
        bin_k, _ahead, _least, _most, first_p, last_p = bins_of_cut(
            counts_ptr + bins, masses_ptr + bins, top_k, top_p, BINS
        )
        packed_ptr += program.to(tl.int64) * ROOM
        for start in range(begin, end, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            value = load_above(logits, mask, masked, offsets, end, floor)
            place = bin_of(value, best, temperature, BINS)
            wanted = (place == bin_k) | ((place >= first_p) & (place <= last_p))
            wanted = (wanted & (value > float("-inf"))).to(tl.int32)
            found = tl.sum(wanted, axis=0)
            if found > 0:
                at = tl.atomic_add(gathered_ptr + program, found, sem="relaxed")
                at += tl.cumsum(wanted, axis=0) - 1
                stored = (wanted != 0) & (at < ROOM)
                tl.store(packed_ptr + at, pack(value, offsets, stored), mask=stored)


@triton.jit(do_not_specialize=["first_row", "mask_words", "parts"])
def cut_kernel(
    logits_ptr, logits_stride, vocabulary, first_row,
    sampling_ptr, logit_row_ptr, mask_row_ptr, mask_ptr, mask_words,
    best_ptr, floor_ptr, temperature_ptr, counts_ptr, masses_ptr, gathered_ptr, packed_ptr,
    level_ptr, last_ptr, parts, MAX_PARTS: tl.constexpr, BLOCK: tl.constexpr,
    BINS: tl.constexpr, ROOM: tl.constexpr, WAYS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a logits row that is cut: logit and id of the last token that it keeps.

    ``parts`` is no constant, for this kernel takes the longest to compile.
    """
    wait_for_inputs(CHAINED)
    program = tl.program_id(0)
    logits_row = first_row + program
    row = tl.load(logit_row_ptr + logits_row)
    top_k, top_p, cuts = cuts_of(sampling_ptr, row, vocabulary)
    temperature = tl.load(temperature_ptr + program)
    floor = tl.load(floor_ptr + program)
    best = best_logit(best_ptr, parts, MAX_PARTS)
    if cuts & (best > float("-inf")):
        gathered = tl.load(gathered_ptr + program)
        if gathered <= ROOM:
            at = tl.arange(0, ROOM)
            packed_ptr += program.to(tl.int64) * ROOM
            packed = tl.load(packed_ptr + at, mask=at < gathered, other=NOTHING)
            bins = program.to(tl.int64) * BINS
            bound = last_kept(
                counts_ptr + bins, masses_ptr + bins, packed, best, temperature, top_k, top_p, BINS
            )  # fmt: skip
        else:
            logits = logits_ptr + program.to(tl.int64) * logits_stride
            mask, masked = masks_of(mask_ptr, mask_row_ptr, mask_words, logits_row, vocabulary)
            bound = last_in_row(
                logits, mask, masked, vocabulary, floor, best, temperature, top_k, top_p,
                BLOCK, WAYS,
            )  # fmt: skip
        everything = bound == NOTHING
        level = tl.where(everything, float("-inf"), logit_of(bound))
        tl.store(level_ptr + program, level)
        tl.store(last_ptr + program, tl.where(everything, NO_TOKEN, token_of(bound)))


def find(
    logits: torch.Tensor,
    stride: int,
    vocabulary: int,
    first: int,
    sampling: torch.Tensor,
    logit_row: torch.Tensor,
    masks: tuple[torch.Tensor, torch.Tensor, int],
    shape: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scratch: CutScratch,
    grid: tuple[int, int],
    block: int,
) -> None:
    """Leave in ``scratch.level`` and ``scratch.last`` where each row is cut that is.

    Queues three kernels behind those that looked for the best logits, cleared the bins and left the
    shape of each row (:mod:`.shape`); can be captured. Arguments are those of
    :func:`.sample.sample`, made ready there.

    Args:
        logits: [rows, vocabulary].
        stride: From a row to the next.
        vocabulary: Tokens.
        first: Logits row of the step that is the first of ``logits``.
        sampling: The rules of each sampling row.
        logit_row: The sampling row of each logits row.
        masks: The row of the mask of each logits row; the masks; their words.
        shape: The best logit by row and part; by row the least logit that the rules before leave,
            and the temperature.
        scratch: For as many rows at least.
        grid: Rows, and programs that share one.
        block: Tokens that a program works on at a time.
    """
    rows, parts = grid
    row = (logits, stride, vocabulary, first, sampling, logit_row, *masks, *shape)
    bins = (scratch.counts, scratch.masses)
    gathered = (*bins, scratch.gathered, scratch.packed)
    sizes = {"BLOCK": block, "BINS": BINS, "enable_fp_fusion": False, **chained(logits.device)}
    spread_kernel[grid](*row, *bins, PARTS=parts, **sizes, num_warps=4)
    gather_kernel[grid](*row, *gathered, PARTS=parts, ROOM=ROOM, **sizes, num_warps=4)
    cut_kernel[(rows,)](
        *row, *gathered, scratch.level, scratch.last, parts,
        MAX_PARTS=MAX_PARTS, ROOM=ROOM, WAYS=WAYS, **sizes, num_warps=max(4, block // 128),
    )  # fmt: skip
