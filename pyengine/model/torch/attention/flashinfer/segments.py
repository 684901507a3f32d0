"""The rows of a step by the kernel that is good at them.

A step's decoding rows come first, its prompts behind them::

    rows      a b c       d   e e e e ...        a a a  b  c c
              decode      ── prompt ──           ─── short ───   (with drafts)

FlashInfer's kernels of FlashAttention 3, which it takes for prompts on Hopper, have tiles of 128
queries of one row and one head and do not cut the keys: a row of one query or a few costs as much
as one of 128 (flashinfer-ai/flashinfer#1340, #2400). Those of FlashAttention 2 put all query heads
of a key into one tile, and cut the keys.
"""

from typing import Literal, NamedTuple

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention import variants

Kind = Literal["decode", "short", "prompt"]


class Segment(NamedTuple):
    """Consecutive rows of one kind.

    Attributes:
        kind: ``decode``: one query each; ``short``: up to :data:`SHORT_QUERIES` of
            :mod:`pyengine.model.torch.attention.variants`; ``prompt``: more.
        rows: The first row, and the end.
        tokens: Their first query token, and the end.
    """

    kind: Kind
    rows: tuple[int, int]
    tokens: tuple[int, int]


def segments(host: StepBuffers, rows: int) -> list[Segment]:
    """The segments of a step padded to ``rows`` rows: one or two. O(rows), in numpy."""
    decodes = min(host.num_decode_rows, rows)
    if host.num_decode_rows == host.num_rows:
        decodes = rows  # those that pad it are like them, or have no query
    found = [_segment(host, 0, decodes), _segment(host, decodes, rows)]
    found = [each for each in found if each.rows[0] < each.rows[1]]
    if len({each.kind for each in found}) < len(found):
        return [Segment(found[0].kind, (0, rows), (0, int(host.query_start[rows])))]
    return found


def _segment(host: StepBuffers, first: int, end: int) -> Segment:
    starts = host.query_start[first : end + 1]
    tokens = int(starts[0]), int(starts[-1])
    longest = int((starts[1:] - starts[:-1]).max(initial=0))
    kind: Kind = "short"
    if longest == 1 and tokens[1] - tokens[0] == end - first:
        kind = "decode"
    elif longest > variants.SHORT_QUERIES:
        kind = "prompt"
    return Segment(kind, (first, end), tokens)
