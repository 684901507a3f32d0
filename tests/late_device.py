"""A device that works as late as it may, for hazards of overlap that a fast device hides.

The device queues every torch operation of a GPU's runner. It does them in order when the host waits
for a mark, with the memory as it is then. A host buffer that is written again too early, a result
that is read too early, or a plan that overwrites another then gives other tokens. A host read of
the device without a wait (an ``item``, a mask's indices) is an error, as in torch's sync-debug mode
on a GPU.

Operators of torch are caught by a dispatch mode: views are made at once, all else is queued, with
results whose memory is rubbish meanwhile. What takes a kernel on a GPU but many operators, and a
look at the data, in its reference on the CPU is queued as a whole.

A graph is what was queued while it was captured: the same operators with the same numbers on the
same memory.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_map_only

from pyengine.kernels import feed, hand_over
from pyengine.kernels.attention.paged import Pages
from pyengine.kernels.sampling import greedy, penalties, top_logprobs, verify
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.model.torch.device.ops import REFERENCES, TorchOps
from pyengine.model.torch.device.queue import CpuQueue, HostMark
from pyengine.model.torch.layers import parts as torch_layers
from tests.attention_reference import attention_reference

Work = Callable[[], object]

aten = torch.ops.aten
# What gives the host a number, or a shape that only the data tells.
WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.lift_fresh.default,  # torch.tensor of numbers: a copy from memory that is not pinned
}
RUBBISH = 0x5B


class LateQueue(CpuQueue):
    """A :class:`pyengine.model.torch.device.queue.DeviceQueue` that works when it is waited for.

    Attributes:
        overlap: 1.
        waited: How often the host waited for work that was not done.
        replays: Graphs that were replayed.
    """

    overlap = 1

    def __init__(self, luck: random.Random | None = None) -> None:
        """With ``luck`` the device now and then works unasked, on some of what is queued."""
        super().__init__()
        self.waited = self.replays = 0
        self.done = self.asked = 0
        self._luck = luck
        self._work: deque[Work] = deque()
        self._captured: list[Work] | None = None
        self._at_once = False
        # Kept, or the device might get memory that was the host's.
        self._host: dict[int, torch.Tensor] = {}
        self._mode = LateMode(self)

    @contextmanager
    def _working(self) -> Iterator[None]:
        with torch.inference_mode(), self._mode:
            yield

    def working(self) -> AbstractContextManager[None]:
        return self._working()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        memory = super().host_memory(nbytes)
        self._host[memory.untyped_storage().data_ptr()] = memory
        return memory

    def mark(self) -> "LateMark":  # type: ignore[override]  # one that waits is no HostMark
        assert self._captured is None, "an event in a graph"
        if self._luck is not None and self._luck.random() < 0.3:
            self.reach(self.done + self._luck.randrange(len(self._work) + 1))
        return LateMark(self)

    def finish(self) -> None:
        self.reach(self.asked)

    def add(self, work: Work) -> None:
        """Queue ``work``."""
        if self._captured is not None:
            self._captured.append(work)
            return
        self._work.append(work)
        self.asked += 1

    def reach(self, count: int) -> None:
        """Do the first so many of all that was ever asked."""
        assert self._captured is None, "a wait in a graph"
        with torch.inference_mode(), self.at_once():
            while self.done < count:
                self._work.popleft()()
                self.done += 1

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, operators are what they always are."""
        before, self._at_once = self._at_once, True
        try:
            yield
        finally:
            self._at_once = before

    def capture(self, work: Callable[[], None]) -> tuple["LateGraph", int]:
        """See :class:`pyengine.model.torch.device.graphs.Capturer`."""
        captured: list[Work] = []
        self._captured = captured
        try:
            work()
        finally:
            self._captured = None
        return LateGraph(self, captured), 1 << 20

    def operator(self, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Queue an operator of torch; what it gives."""
        tensors = [each for each in tree_flatten((args, kwargs))[0] if torch.is_tensor(each)]
        if self._at_once or called.is_view or not tensors:
            return called(*args, **kwargs)
        assert called not in WAITS, f"{called} waits for the device"
        index = called in (aten.index.Tensor, aten.index_put_.default)
        assert not index or all(each.dtype != torch.bool for each in tensors[1:]), "a mask waits"
        written = _written(called, args, kwargs)
        for each in tensors:
            assert self._captured is None or not self._is_host(each), "host memory in a graph"
        for each in filter(self._is_host, written):
            # A read before the copy was waited for must not find the old content.
            with self.at_once():
                each.view(-1).view(torch.uint8).fill_(RUBBISH)
        if written:
            self.add(lambda: called(*args, **kwargs))
            return written[0] if len(written) == 1 else tuple(written)
        on_meta = tree_map_only(torch.Tensor, lambda each: each.to("meta"), (args, kwargs))
        with self.at_once():
            shapes = called(*on_meta[0], **{**on_meta[1], **_meta_device(on_meta[1])})
            results = tree_map_only(torch.Tensor, _rubbish, shapes)
        into = [each for each in tree_flatten(results)[0] if torch.is_tensor(each)]

        def work() -> None:
            given = tree_flatten(called(*args, **kwargs))[0]
            for result, each in zip(into, given, strict=True):
                result.copy_(each)

        self.add(work)
        return results

    def _is_host(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._host


def _written(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = []
    for at, argument in enumerate(called._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(kwargs[argument.name] if argument.name in kwargs else args[at])
    return found


def _meta_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": "meta"} if kwargs.get("device") is not None else {}


def _rubbish(like: torch.Tensor) -> torch.Tensor:
    found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    if found.numel():
        storage: Any = found.untyped_storage()  # its fill_ has no type
        storage.fill_(RUBBISH)
    return found


class LateMode(TorchDispatchMode):
    """Hands operators to a queue."""

    def __init__(self, queue: LateQueue) -> None:
        super().__init__()
        self.queue = queue

    def __torch_dispatch__(
        self, called: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.queue.operator(called, args, kwargs or {})


class LateMark:
    """Comes when the device comes to it."""

    def __init__(self, queue: LateQueue) -> None:
        self._queue = queue
        self._host: HostMark | None = None
        queue.add(self._come)
        self._number = queue.asked

    def _come(self) -> None:
        self._host = HostMark()

    def has_come(self) -> bool:
        return self._queue.done >= self._number

    def wait(self) -> bool:
        there = self.has_come()
        self._queue.waited += not there
        self._queue.reach(self._number)
        return not there

    def elapsed_time(self, later: "LateMark", /) -> float:
        assert self._host is not None
        assert later._host is not None, "a mark that has not come has no time"
        return self._host.elapsed_time(later._host)


class LateGraph:
    """What was queued in a capture."""

    def __init__(self, queue: LateQueue, captured: list[Work]) -> None:
        self._queue = queue
        self._captured = captured

    def replay(self) -> None:
        self._queue.replays += 1
        for work in self._captured:
            self._queue.add(work)


def kernel(called: Callable[..., None]) -> Callable[..., None]:
    """``called`` as one kernel: where a late device works it is queued, with its arguments."""

    def launch(*args: Any, **kwargs: Any) -> None:
        mode = _get_current_dispatch_mode()
        if not isinstance(mode, LateMode) or mode.queue._at_once:
            called(*args, **kwargs)
        else:
            mode.queue.add(lambda: called(*args, **kwargs))

    return launch


def attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: Pages,
    out: torch.Tensor,
    *,
    rows: int,
    one_query: bool,
    shared: torch.Tensor | None = None,
    **given: Any,
) -> None:
    """As :func:`pyengine.kernels.attention.paged.attention`: shared pages are those of row 0."""
    if shared is not None:
        indices = pages.page_indices.clone()
        starts = pages.page_indptr[: rows + 1].tolist()
        count = int(shared) // keys.shape[1]
        for start, end in pairwise(starts):
            if start < end:
                indices[start : start + count] = pages.page_indices[:count]
        pages = Pages(pages.query_start, pages.kv_length, pages.page_indptr, indices)
    names = ("scale", "window", "chunk", "positions", "soft_cap", "sinks")
    asked = {name: given[name] for name in names}
    attention_reference(queries, keys, values, pages, out, rows=rows, one_query=one_query, **asked)


def queue_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """References of kernels are single pieces of work, where a late device works."""
    for module, name in (
        (feed, "feed_reference"),
        (greedy, "greedy_reference"),
        (penalties, "apply_penalties_reference"),
        (penalties, "restore_reference"),
        (top_logprobs, "top_logprobs_reference"),
        (verify, "verify_reference"),
        (sampling_reference, "sample"),
    ):
        monkeypatch.setattr(module, name, kernel(getattr(module, name)))
    for name in ("hand_over_reference", "take_tokens_reference"):
        whole = kernel(getattr(hand_over, name))
        monkeypatch.setattr(f"pyengine.model.torch.draft.{name}", whole)
    ops = TorchOps(*(kernel(each) for each in vars(REFERENCES).values()))
    monkeypatch.setattr(torch_layers, "torch_ops", lambda device: ops)
    monkeypatch.setattr("pyengine.model.torch.attention.triton.attention", kernel(attention))
    # Of a model this small it never does.
    target = "pyengine.model.torch.attention.cascade.cascade_pays"
    monkeypatch.setattr(target, lambda *_, **__: True)
