"""Bound of a prefix cache of the same size: blocks in order of use, nothing else in it.

Requests come one after the other, in the order of their arrival, each at its end before the next:
what runs at once in an engine and takes room meanwhile is not counted.
"""

from collections import OrderedDict
from collections.abc import Iterable

from pyengine.profiling.workload import Job


def ideal_cached_share(jobs: Iterable[Job], num_blocks: int, block_size: int) -> float:
    """The share of prompt tokens that are found: full blocks of the longest prefix that is kept.

    The least recently used block goes first. A prompt's last token is always computed, and an
    answer's blocks take room as a prompt's do. O(blocks of all requests).
    """
    kept: OrderedDict[object, None] = OrderedDict()
    found = total = 0
    for number, job in enumerate(jobs):
        total += len(job.prompt)
        blocks: list[object] = []
        prefix = 0
        for start in range(0, len(job.prompt) - block_size + 1, block_size):
            prefix = hash((prefix, *job.prompt[start : start + block_size]))
            blocks.append(prefix)
        usable = blocks[: (len(job.prompt) - 1) // block_size]
        hits = next((at for at, block in enumerate(usable) if block not in kept), len(usable))
        found += hits * block_size
        length = (len(job.prompt) + job.answer_tokens) // block_size
        blocks += [("answer", number, at) for at in range(len(blocks), length)]
        # The end first: a prefix without its beginning is of no use.
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > num_blocks:
            kept.popitem(last=False)
    return found / total if total else 0.0
