"""Sums in symmetric memory: a buffer of each GPU that all ranks map, so that one kernel reads what
the others have, without a library's protocol between them.

::

    bytes of a tensor   16 ────────── a limit by ranks ───────────── 8 MiB ───────►
    2 ranks             one shot ─────────────────────────────────────┤ NCCL
    4, 8 ranks          one shot ─────┤ in the switch, or two shots ──┤ NCCL
    others              two shots ────────────────────────────────────┤ NCCL

*One shot*: each rank reads the tensors of all. *Two shots*: each sums up a part of all tensors, and
reads the other parts' sums. *In the switch*: the same, but NVSwitch adds and hands out (NVLink
SHARP). The kernels are torch's (``torch.ops.symm_mem``); a graph captures them with the buffer's
address, which stays. Steps of decodes are sums of some hundred KiB, two a layer, whose time is
latency: larger ones are NCCL's.
"""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from pyengine.actors.actor import logger
from pyengine.distributed.symmetric_library import Handle, Library

MOST_BYTES = 8 << 20
"""Of a tensor: 512 tokens of 8,192 numbers of 16 bits, the largest step that is in a graph."""

ONE_SHOT_BYTES = {2: MOST_BYTES, 4: 512 << 10, 8: 256 << 10}
"""By number of ranks, the most at which one shot is the sooner done: of n ranks it moves n / 2
times the bytes of two shots, which take another wait for all, some 3 us. For these numbers of ranks
alone the kernel adds in the order of ranks; else the sums of ranks differ in their last bits."""

DTYPES = (torch.bfloat16, torch.float32)
ALIGNMENT = 16
PROBE_S = 30.0
"""Seconds that the first sums may take."""
RELEASE_S = 10.0
"""Seconds for which kernels that wait for a dead rank are let go: those of one step."""


class Exchange(Protocol):
    """What is known to work, and what ranks agree by; see :class:`.group.Group`."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by the sum of all ranks' tensors."""

    def least(self, number: int) -> int:
        """The least of the ranks' numbers; waits for all ranks."""


class SymmetricSums:
    """The sums of one rank. One thread at a time, and all ranks in the same order, on one stream.

    What is summed up how depends on shape and type alone, so all ranks take the same way.
    """

    def __init__(self, library: Library, rank: int, size: int, name: str) -> None:
        """``name`` is the ranks' own among all that the process has."""
        self._library, self._rank, self._size, self._name = library, rank, size, name
        self._one_shot_bytes = ONE_SHOT_BYTES.get(size, 0)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._handle: Handle | None = None
        self._tried: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._aborted = threading.Event()

    def allocate(self, store: Any) -> None:
        """Take the buffer, which stays where it is."""
        self._library.join(self._name, self._rank, self._size, store)
        self._buffer = self._library.allocate(MOST_BYTES, self._name)

    def connect(self) -> None:
        """Map the buffers of all ranks; waits for them."""
        self._handle = self._library.connect(self._buffer, self._name)

    def try_out(self) -> None:
        """Sum up tensors of all sizes and types that matter, and keep the results.

        Raises:
            TimeoutError: The ranks' GPUs do not see each other's signals.
        """
        limit = self._one_shot_bytes or MOST_BYTES
        for nbytes in sorted({ALIGNMENT, limit, min(limit + ALIGNMENT, MOST_BYTES), MOST_BYTES}):
            for dtype in DTYPES:
                noise = torch.Generator().manual_seed(nbytes + self._rank)
                count = nbytes // dtype.itemsize
                # Sums of integers are exact in any order; those of other numbers are not.
                whole = torch.randint(-8, 9, (count,), generator=noise)
                others = torch.randn(count, generator=noise)
                given, added, others = (
                    each.to(self._buffer.device, dtype) for each in (whole, whole, others)
                )
                self.add(added)
                self.add(others)
                self._tried.append((given, added, others))
        self._library.finish(PROBE_S)

    def compare(self, exchange: Exchange) -> None:
        """Compare those results with the sums of ``exchange``.

        Raises:
            RuntimeError: They are others, or not the same on all ranks.
        """
        wrong = []
        for expected, added, others in self._tried:
            exchange.all_reduce(expected)
            bits = int(others.view(torch.int16).sum(dtype=torch.int64))
            alike = exchange.least(bits) == -exchange.least(-bits)
            if not torch.equal(added, expected) or not alike:
                wrong.append(f"{added.numel()} numbers of {added.dtype}")
        self._tried.clear()
        if wrong:
            raise RuntimeError(f"wrong sums of {', '.join(wrong)}")

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` can be summed up here."""
        nbytes = tensor.numel() * tensor.itemsize
        return bool(
            tensor.dtype in DTYPES
            and tensor.is_contiguous()
            and 0 < nbytes <= MOST_BYTES
            and nbytes % ALIGNMENT == 0
            and tensor.storage_offset() * tensor.itemsize % ALIGNMENT == 0
        )

    def add(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor``, which is one that it :meth:`takes`, by the sum of all ranks'."""
        numbers = tensor.view(-1)
        nbytes = numbers.numel() * numbers.itemsize
        buffer = self._buffer[:nbytes].view(tensor.dtype)
        if nbytes <= self._one_shot_bytes:
            self._library.one_shot(buffer, numbers, self._name)
            return
        buffer.copy_(numbers)
        if self._handle is not None and self._handle.multicast_ptr:
            self._library.in_switch(buffer, self._name)
        else:
            self._library.two_shots(buffer, self._name)
        numbers.copy_(buffer)

    def abort(self) -> None:
        """Let the kernels go that wait for a rank which has died. Any thread; idempotent."""
        if self._handle is not None and not self._aborted.is_set():
            self._aborted.set()
            threading.Thread(
                target=self._release, args=[self._handle], name="pyengine-release", daemon=True
            ).start()

    def _release(self, handle: Handle) -> None:
        """Say to each kernel that waits that the others are there, and have seen that it is."""
        until = time.monotonic() + RELEASE_S
        with suppress(Exception), self._library.beside():  # the device may have died itself
            pads = [handle.get_signal_pad(rank, (), torch.int32) for rank in range(self._size)]
            while time.monotonic() < until:
                for rank, pad in enumerate(pads):
                    pad.fill_(int(rank == self._rank))
                time.sleep(0.001)


def symmetric_sums(
    exchange: Exchange, store: Any, library: Callable[[], Library]
) -> SymmetricSums | None:
    """Sums that all ranks can do in symmetric memory; None, with a line in the log, if one cannot.

    All ranks call this at the same time. They agree after each part of the way, so that none waits
    for one that has given up.

    Args:
        exchange: The ranks, by a library.
        store: A store of torch's, by which they find each other.
        library: Makes what is called; may fail.
    """
    if exchange.rank == 0:
        store.set("name", f"pyengine-{uuid.uuid4().hex}")
    name = store.get("name").decode()
    sums: list[SymmetricSums] = []

    def allocate() -> None:
        sums.append(SymmetricSums(library(), exchange.rank, exchange.size, name))
        sums[0].allocate(store)

    parts = (
        allocate,
        lambda: sums[0].connect(),
        lambda: sums[0].try_out(),
        lambda: sums[0].compare(exchange),
    )
    for part in parts:
        why = None
        try:
            part()
        except Exception as error:  # noqa: BLE001 - whatever it is, NCCL does the same
            why = f"{type(error).__name__}: {error}"
        if exchange.least(why is None) == 0:
            if sums:
                sums[0].abort()
            logger.warning(
                "ranks sum up by NCCL, not in symmetric memory: %s", why or "another rank cannot"
            )
            return None
    return sums[0]
