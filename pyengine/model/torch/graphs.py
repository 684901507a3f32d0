"""CUDA graphs of steps: which there are, when one is captured, which is given up.

A step that decodes is hundreds of small kernels, which the device finishes faster than the CPU can
queue them; a graph queues them all at once. A graph is for one size, so a step is padded to the
next *bucket* (1, 2, 4, 8, 16, 24, 32, ... tokens), and a graph is kept for each *key*: the part of
the step, its bucket, and what else its kernels depend on.

No step waits for its graph. A key is computed kernel by kernel until it was asked for
:data:`PATIENCE` times; that step is computed in its bucket, which also compiles what the capture
must find compiled, and when all of it is queued, its sampling too, the CPU captures the graph while
the device works::

    CPU     queue ── capture ───┐ plan, queue the next step
    device     ├── the step ────┼──┤     ├── ...
                                └ what the capture takes longer than the step, the next one waits

A capture takes as long as the CPU takes to queue the kernels once more and the driver to build the
graph of them. At most one in :data:`REST` steps captures, so no stream of tokens is held up longer
than one capture at a time; :attr:`Graphs.longest_s` says how long that was.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

PATIENCE = 3
REST = 4
MAX_TOKENS = 512
"""Larger steps take the device longer than it takes the CPU to queue them."""

Key = Hashable

logger = logging.getLogger("pyengine")


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queue all of it."""


class Capturer(Protocol):
    """What captures on a device."""

    def capture(self, work: Callable[[], None]) -> tuple[Graph, int]:
        """Record what ``work`` queues, without doing it; and the bytes that this took.

        Raises:
            Exception: It cannot be captured.
        """


def bucket(count: int, most: int) -> int:
    """The smallest size of a graph that holds ``count``, at most ``most`` (which is one too)."""
    size = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
    return min(size, most)


class Graphs:
    """The graphs that are kept, the least recently used of them given up. One thread at a time.

    O(1) a step beside captures. What graphs take is measured as they are captured: room is made
    before, as much as the same key or else the largest so far took. One that was larger makes more
    room afterwards; one that is alone too large is dropped, and not tried again.

    Attributes:
        limit: Bytes that all graphs may take.
        used: Bytes that they take.
        captures: How many were captured so far.
        longest_s: Seconds that the longest capture took.
        given_up: Told the key of each graph that is given up, or was captured in vain.
    """

    def __init__(self, capturer: Capturer, limit: int) -> None:
        self._capturer = capturer
        self.limit = limit
        self.used = 0
        self.captures = 0
        self.longest_s = 0.0
        self.given_up: Callable[[Key], None] | None = None
        self._kept: OrderedDict[Key, tuple[Graph, int]] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._asked: dict[Key, int] = {}
        self._hopeless: set[Key] = set()
        self._rest = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def begin_step(self) -> None:
        """Another step is launched."""
        self._rest = max(0, self._rest - 1)

    def find(self, key: Key) -> Graph | None:
        """The graph of ``key``, if there is one: it is about to be used."""
        found = self._kept.get(key)
        if found is None:
            self._asked[key] = self._asked.get(key, 0) + 1
            return None
        self._kept.move_to_end(key)
        return found[0]

    def is_due(self, key: Key) -> bool:
        """Whether the step that did not find ``key`` is the one to capture it."""
        return (
            self._rest == 0
            and self._asked.get(key, 0) >= PATIENCE
            and key not in self._kept
            and key not in self._hopeless
        )

    def capture(self, key: Key, work: Callable[[], None]) -> None:
        """Capture ``work``, which this step has queued; never raises for what it is.

        Args:
            key: For which it is kept, if it fits.
            work: Queues the same kernels on the same memory every time.
        """
        self._rest = REST
        self._asked.pop(key, None)
        expected = self._sizes.get(key, max(self._sizes.values(), default=0))
        self._give_up(self.limit - min(expected, self.limit))
        begun = time.monotonic()
        try:
            graph, size = self._capturer.capture(work)
        except Exception:
            logger.warning("%s cannot be captured in a graph", key, exc_info=True)
            self._refuse(key)
            return
        self.captures += 1
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self._sizes[key] = size
        if size > self.limit:
            logger.warning(
                "the graph of %s takes %d MiB: 'graph_memory_mib' is too small", key, size >> 20
            )
            self._refuse(key)
            return
        self._give_up(self.limit - size)
        self._kept[key] = graph, size
        self.used += size

    def clear(self) -> None:
        """Give all of them up."""
        self._give_up(-1)

    def _refuse(self, key: Key) -> None:
        self._hopeless.add(key)
        if self.given_up is not None:
            self.given_up(key)

    def _give_up(self, most: int) -> None:
        while self._kept and self.used > most:
            key, (_, size) = self._kept.popitem(last=False)
            self.used -= size
            if self.given_up is not None:
                self.given_up(key)
