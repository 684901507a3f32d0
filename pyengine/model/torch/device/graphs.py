"""CUDA graphs of steps: which are kept, when one is captured, when one is evicted.

A step that decodes is hundreds of small kernels, which the device finishes faster than the CPU can
queue them; a graph queues them all at once. A graph is for one size, so a step is padded to the
next *bucket* (1, 2, 4, 8, 16, 24, 32, ... tokens), and a graph is kept for each *key*: the part of
the step, its bucket, and what else its kernels depend on.

The start captures the graphs of steps that only decode (:meth:`Graphs.at_once`). No other step
waits for its graph: steps of a key are queued kernel by kernel until the key was asked for
:data:`CAPTURE_AFTER` times; that step is computed in its bucket, which also compiles what the
capture must find compiled, and when all of it is queued, its sampling too, the CPU captures the
graph while the device works::

    CPU     queue ── capture ───┐ plan, queue the next step
    device     ├── the step ────┼──┤     ├── ...
                                └ a capture longer than its step delays the next step

A capture takes as long as the CPU takes to queue the kernels once more and the driver to build
their graph. At most one in :data:`CAPTURE_INTERVAL` steps captures, so that a stream of tokens is
delayed by one capture at a time; :attr:`Graphs.longest_s` is the longest.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

CAPTURE_AFTER = 3
"""Steps of a key before its graph is captured, the capturing one counted in."""
CAPTURE_INTERVAL = 4
"""Steps from one capture to the next, at least."""
MAX_TOKENS = 512
"""Larger steps take the device longer than it takes the CPU to queue them."""

FAILED = 1 << 62
"""Bytes of a graph that could not be captured: more than any takes."""

Key = Hashable

logger = logging.getLogger("pyengine")


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queue all of it."""


class Capturer(Protocol):
    """Captures work on a device."""

    def capture(self, work: Callable[[], None]) -> tuple[Graph, int]:
        """Record what ``work`` queues, without computing it.

        Returns the graph, and the bytes of memory that it took.

        Raises:
            Exception: ``work`` cannot be captured.
        """


def bucket(count: int, most: int) -> int:
    """The smallest graph size of at least ``count``; ``most`` is the largest size."""
    size = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
    return min(size, most)


def mixed_bucket(count: int, most: int) -> int:
    """The same for a step with prompts, whose number of tokens is another each time: sizes are an
    eighth of a power of two apart, or 8 where that is less, so that there are few of them.

    A step of any number of tokens up to 512 gets 8% more on average, at most a quarter where it has
    more than 32.
    """
    step = max(8, 1 << max(0, (count - 1).bit_length() - 3))
    return min(-(-count // step) * step, most)


class Graphs:
    """The graphs that are kept within a limit of memory. One thread at a time.

    O(1) a step beside captures. The least recently used graphs are evicted. The size of a graph is
    known once it is captured: before, room is made for as much as the same key, or else the largest
    graph so far, took; afterwards for the rest. A graph that alone exceeds the limit is dropped,
    and its key is not captured again.

    Attributes:
        limit: Bytes that all graphs may take.
        used: Bytes that they take.
        captures: Graphs captured so far.
        longest_s: Seconds that the longest capture took.
        on_evict: Called with the key of each graph that is evicted, or could not be kept.
    """

    def __init__(
        self, capturer: Capturer, limit: int, agree: Callable[[int], int] | None = None
    ) -> None:
        """Within ``limit`` bytes.

        Args:
            capturer: Captures.
            limit: See above.
            agree: Of ranks that share a model, what a capture took on the one where it took most,
                given what it took here; waits for all of them. So they keep and give up the same
                graphs: a library may exchange memory as one is captured, which takes all ranks.
        """
        self._capturer = capturer
        self._agree = agree or (lambda size: size)
        self.limit = limit
        self.used = 0
        self.captures = 0
        self.longest_s = 0.0
        self.on_evict: Callable[[Key], None] | None = None
        self._kept: OrderedDict[Key, tuple[Graph, int]] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._misses: dict[Key, int] = {}
        self._refused: set[Key] = set()
        self._cooldown = 0
        self._at_once = False

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def begin_step(self) -> None:
        """Count a launched step."""
        self._cooldown = max(0, self._cooldown - 1)

    def find(self, key: Key) -> Graph | None:
        """The graph of ``key``, which is used next; None where there is none."""
        found = self._kept.get(key)
        if found is None:
            self._misses[key] = self._misses.get(key, 0) + 1
            return None
        self._kept.move_to_end(key)
        return found[0]

    def is_due(self, key: Key) -> bool:
        """Whether the step that found no graph of ``key`` shall capture one."""
        if key in self._kept or key in self._refused:
            return False
        wanted = self._cooldown == 0 and self._misses.get(key, 0) >= CAPTURE_AFTER
        return self._at_once or wanted

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, every step that finds no graph captures one."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def capture(self, key: Key, work: Callable[[], None]) -> None:
        """Capture ``work``, which this step has queued. A failure is logged, not raised.

        Args:
            key: The graph is kept for it, if it fits.
            work: Queues the same kernels on the same memory every time.
        """
        self._cooldown = CAPTURE_INTERVAL
        self._misses.pop(key, None)
        expected = self._sizes.get(key, max(self._sizes.values(), default=0))
        self._evict_to(self.limit - min(expected, self.limit))
        begun = time.monotonic()
        graph, size = None, FAILED
        try:
            graph, size = self._capturer.capture(work)
        except Exception:
            logger.warning("%s cannot be captured in a graph", key, exc_info=True)
        size = self._agree(size)
        if graph is None or size == FAILED:
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
        self._evict_to(self.limit - size)
        self._kept[key] = graph, size
        self.used += size

    def clear(self) -> None:
        """Evict all graphs."""
        self._evict_to(-1)

    def _refuse(self, key: Key) -> None:
        self._refused.add(key)
        if self.on_evict is not None:
            self.on_evict(key)

    def _evict_to(self, most: int) -> None:
        while self._kept and self.used > most:
            key, (_, size) = self._kept.popitem(last=False)
            self.used -= size
            if self.on_evict is not None:
                self.on_evict(key)
