"""The bins of a row's logits, and where in them it is cut; see :mod:`.cut`."""

from pyengine.kernels.language import tl, triton
from pyengine.kernels.sampling.candidates import NOTHING, logit_of
from pyengine.kernels.sampling.noise import mass
from pyengine.kernels.sampling.rules import integer, real, word

_TEMPERATURE, _TOP_K, _TOP_P = word("temperature"), word("top_k"), word("top_p")
_NATS = tl.constexpr(12.0)
"""Below the best the last bin begins: most of a vocabulary is there, and p is seldom reached."""


@triton.jit
def cuts_of(sampling_ptr, row, vocabulary):
    """Top-k, or 0; top-p, or 1; and whether either is to be looked at: not in greedy rows."""
    top_k = integer(sampling_ptr, row, _TOP_K)
    top_k = tl.where((top_k > 0) & (top_k < vocabulary), top_k, 0)
    top_p = real(sampling_ptr, row, _TOP_P)
    top_p = tl.where(top_p < 1.0, top_p, 1.0)  # a NaN keeps all
    temperature = real(sampling_ptr, row, _TEMPERATURE)
    return top_k, top_p, (temperature > 0.0) & ((top_k > 0) | (top_p < 1.0))


@triton.jit
def clear_bins(counts_ptr, masses_ptr, gathered_ptr, PARTS: tl.constexpr, BINS: tl.constexpr):
    """Clears this program's share of its row's bins."""
    SHARE: tl.constexpr = BINS // PARTS
    row = tl.program_id(0)
    at = row.to(tl.int64) * BINS + tl.program_id(1) * SHARE + tl.arange(0, SHARE)
    tl.store(counts_ptr + at, tl.zeros([SHARE], tl.int32))
    tl.store(masses_ptr + at, tl.zeros([SHARE], tl.int64))
    if tl.program_id(1) == 0:
        tl.store(gathered_ptr + row, 0)


@triton.jit
def bin_of(value, best, temperature, BINS: tl.constexpr):
    """A logit's bin: a larger one's is the same or an earlier one, as every operation is monotonic.

    Of a temperature below 1 the steps are those of 1: then a large k is reached in a bin too.
    """
    warm = tl.minimum(tl.maximum(temperature, 1.0), 1e30)
    below = tl.where(value == best, 0.0, best - value)  # where the best is infinite, too
    return tl.minimum(below * tl.div_rn(BINS / _NATS, warm), BINS - 1.0).to(tl.int32)


@triton.jit
def share_of(top_p, total):
    """The probability that is to be reached, of all that there is."""
    wanted = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
    return tl.maximum(wanted, 1)


@triton.jit
def bins_of_cut(counts_ptr, masses_ptr, top_k, top_p, BINS: tl.constexpr):
    """In which bins a row is cut.

    Returns the bin of the k-th token (``BINS`` where there are fewer), tokens and mass before it,
    the mass up to its end, and the first and last bin in which p may be reached.
    """
    place = tl.arange(0, BINS)
    bin_k = tl.full([], BINS, tl.int32)
    ahead = tl.full([], 0, tl.int32)
    if top_k > 0:
        counts = tl.load(counts_ptr + place)
        bin_k = tl.sum((tl.cumsum(counts, axis=0) < top_k).to(tl.int32), axis=0)
        ahead = tl.sum(tl.where(place < bin_k, counts, 0), axis=0)
    least = tl.full([], 0, tl.int64)
    most = tl.full([], 0, tl.int64)
    first_p = tl.full([], BINS, tl.int32)
    last_p = tl.full([], -1, tl.int32)
    if top_p < 1.0:
        masses = tl.load(masses_ptr + place)
        least = tl.sum(tl.where(place < bin_k, masses, 0), axis=0)
        most = tl.sum(tl.where(place <= bin_k, masses, 0), axis=0)
        reached = tl.cumsum(masses, axis=0)
        first_p = tl.sum((reached < share_of(top_p, least)).to(tl.int32), axis=0)
        last_p = tl.sum((reached < share_of(top_p, most)).to(tl.int32), axis=0)
    return bin_k, ahead, least, most, first_p, last_p


@triton.jit
def reaches(packed, among, each, target):
    """The last of the first tokens ``among`` these whose amounts reach ``target``, in order."""
    low = tl.min(tl.where(among, packed, 0x7FFFFFFFFFFFFFFF), axis=0)
    high = tl.max(tl.where(among, packed, NOTHING), axis=0)
    amounts = tl.where(among, each, 0)
    while low < high:
        tried = (low >> 1) + (high >> 1) + ((low | high) & 1)  # their difference may not fit
        enough = tl.sum(tl.where(packed >= tried, amounts, 0), axis=0) >= target
        low = tl.where(enough, tried, low)
        high = tl.where(enough, high, tried - 1)
    return low


@triton.jit
def last_kept(
    counts_ptr, masses_ptr, packed, best, temperature, top_k, top_p, BINS: tl.constexpr
):  # fmt: skip
    """The :func:`pack` of the last token that is kept; NOTHING if all are.

    ``packed`` are the gathered tokens, then NOTHING.
    """
    bin_k, ahead, total, most, _first_p, _last_p = bins_of_cut(
        counts_ptr, masses_ptr, top_k, top_p, BINS
    )
    there = packed > NOTHING
    value = tl.where(there, logit_of(packed), float("-inf"))
    place = tl.where(there, bin_of(value, best, temperature, BINS), BINS)
    each = mass(value, best, temperature)
    bound = tl.full([], NOTHING, tl.int64)
    if bin_k < BINS:
        in_bin = place == bin_k
        bound = reaches(packed, in_bin, in_bin.to(tl.int64), (top_k - ahead).to(tl.int64))
        total += tl.sum(tl.where(in_bin & (packed >= bound), each, 0), axis=0)
    else:
        total = most
    if top_p < 1.0:
        wanted = share_of(top_p, total)
        bins = tl.arange(0, BINS)
        masses = tl.load(masses_ptr + bins)
        bin_p = tl.sum((tl.cumsum(masses, axis=0) < wanted).to(tl.int32), axis=0)
        before = tl.sum(tl.where(bins < bin_p, masses, 0), axis=0)
        bound = reaches(packed, place == bin_p, each, wanted - before)
    return bound
