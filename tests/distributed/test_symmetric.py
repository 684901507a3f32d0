"""Sums in symmetric memory: by which kernel, when by NCCL, and that all ranks decide alike."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not listed

from pyengine.distributed import group as groups
from pyengine.distributed import symmetric
from pyengine.distributed.group import TorchGroup
from pyengine.distributed.symmetric import SymmetricSums
from pyengine.distributed.symmetric_library import TorchLibrary
from tests.distributed.thread_ranks import together

GPU = torch.device("cuda", 0)
KIB = 1 << 10


class Machine:
    """GPUs that map each other's memory, as threads of the CPU.

    Attributes:
        log: The kernel and bytes of each of rank 0's sums.
        fails: Called with a rank and what it is about to do; may raise.
        skew: Added by a rank to its results.
    """

    def __init__(self, size: int, *, multicast: bool = False) -> None:
        self.size, self.multicast = size, multicast
        self.log: list[tuple[str, int]] = []
        self.fails: Callable[[int, str], None] = lambda rank, what: None
        self.skew: Callable[[int, torch.Tensor], float] = lambda rank, tensor: 0.0
        self.buffers: dict[int, torch.Tensor] = {}
        self.pads = [torch.zeros(4, dtype=torch.int32) for _ in range(size)]
        self._met = threading.Barrier(size, timeout=60)

    def added(self, rank: int, kernel: str, buffer: torch.Tensor) -> torch.Tensor:
        self.fails(rank, kernel)
        nbytes = buffer.numel() * buffer.itemsize
        assert buffer.data_ptr() == self.buffers[rank].data_ptr()
        self._met.wait()
        parts = [self.buffers[each][:nbytes].view(buffer.dtype) for each in range(self.size)]
        total = sum(parts[1:], parts[0]) + self.skew(rank, buffer)
        self._met.wait()
        if rank == 0:
            self.log.append((kernel, nbytes))
        return total


class Handle:
    def __init__(self, machine: Machine) -> None:
        self.multicast_ptr = int(machine.multicast)
        self._machine = machine

    def get_signal_pad(self, rank: int, sizes: Any = (), dtype: Any = None, /) -> torch.Tensor:
        assert dtype == torch.int32
        return self._machine.pads[rank]


class FakeLibrary:
    """See :class:`pyengine.distributed.symmetric_library.Library`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rank = -1

    def join(self, name: str, rank: int, size: int, store: Any) -> None:
        self._rank = rank
        assert (name[:9], size) == ("pyengine-", self._machine.size)
        self._machine.fails(rank, "join")

    def allocate(self, nbytes: int, name: str) -> torch.Tensor:
        self._machine.fails(self._rank, "allocate")
        buffer = self._machine.buffers[self._rank] = torch.zeros(nbytes, dtype=torch.uint8)
        return buffer

    def connect(self, buffer: torch.Tensor, name: str) -> Handle:
        self._machine.fails(self._rank, "connect")
        return Handle(self._machine)

    def one_shot(self, buffer: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
        buffer.copy_(tensor)
        tensor.copy_(self._machine.added(self._rank, "one_shot", buffer))

    def two_shots(self, buffer: torch.Tensor, name: str) -> None:
        buffer.copy_(self._machine.added(self._rank, "two_shots", buffer))

    def in_switch(self, buffer: torch.Tensor, name: str) -> None:
        buffer.copy_(self._machine.added(self._rank, "in_switch", buffer))

    def finish(self, seconds: float) -> None:
        self._machine.fails(self._rank, "finish")

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Lets groups of GPUs be of a machine; what NCCL does is done by gloo."""

    def of(machine: Machine) -> None:
        def nccl(store: Any, rank: int, size: int, _: torch.device) -> Any:
            return groups._gloo(store, rank, size)

        monkeypatch.setattr(symmetric, "RELEASE_S", 0.05)
        monkeypatch.setattr(groups, "_nccl", nccl)
        monkeypatch.setattr(groups, "TorchLibrary", lambda _: FakeLibrary(machine))

    return of


def sums(group: TorchGroup, *tensors: torch.Tensor) -> list[bool]:
    """Whether each of ``tensors``, times one more than a rank, is summed up right."""
    found = []
    for tensor in tensors:
        mine = tensor.clone(memory_format=torch.preserve_format) * (group.rank + 1)
        group.all_reduce(mine)
        found.append(torch.equal(mine, tensor * (group.size * (group.size + 1) // 2)))
    return found


@pytest.mark.parametrize(
    ("size", "multicast", "kernels"),
    [
        (2, False, ["one_shot", "one_shot", "one_shot"]),
        (4, False, ["one_shot", "one_shot", "two_shots"]),
        (4, True, ["one_shot", "one_shot", "in_switch"]),
        (3, False, ["two_shots", "two_shots", "two_shots"]),
    ],
)
def test_small_sums_are_of_one_shot(
    size: int, multicast: bool, kernels: list[str], on: Callable[[Machine], None]
) -> None:
    machine = Machine(size, multicast=multicast)
    on(machine)
    given = [
        torch.ones(nbytes // 2, dtype=torch.bfloat16) for nbytes in (16, 512 * KIB, 2048 * KIB)
    ]

    def work(group: TorchGroup) -> list[bool]:
        assert group.exchanges == "symmetric memory and NCCL"
        if group.rank == 0:
            machine.log.clear()
        return sums(group, *given)

    assert together(size, work, GPU) == [[True] * 3] * size
    assert machine.log == [
        (kernel, tensor.numel() * 2) for kernel, tensor in zip(kernels, given, strict=True)
    ]


def test_what_kernels_do_not_take_goes_by_nccl(on: Callable[[Machine], None]) -> None:
    machine = Machine(2)
    on(machine)
    given = [
        torch.ones(8, dtype=torch.float16),
        torch.ones(8, dtype=torch.float64),
        torch.ones(3),  # no multiple of 16 bytes
        torch.ones(symmetric.MOST_BYTES // 4 + 4),
    ]

    def work(group: TorchGroup) -> list[bool]:
        if group.rank == 0:
            machine.log.clear()
        found = sums(group, *given)
        shifted = torch.ones(9)[1:]
        group.all_reduce(shifted)
        return [*found, bool(shifted.eq(2).all())]

    assert together(2, work, GPU) == [[True] * 5] * 2
    assert machine.log == []


def _raising(rank: int, what: str) -> Callable[[int, str], None]:
    def fails(by: int, at: str) -> None:
        if (by, at) == (rank, what):
            raise RuntimeError(f"{what} fails")

    return fails


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["join", "allocate", "connect", "finish"])
def test_all_ranks_stay_with_nccl_where_one_cannot(
    what: str, rank: int, on: Callable[[Machine], None], caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(2)
    machine.fails = _raising(rank, what)
    on(machine)

    def work(group: TorchGroup) -> tuple[str, list[bool]]:
        if group.rank == 0:
            machine.log.clear()
        return group.exchanges, sums(group, torch.ones(64))

    with caplog.at_level(logging.WARNING, "pyengine"):
        assert together(2, work, GPU) == [("NCCL", [True])] * 2
    assert machine.log == []
    assert sorted(record.getMessage().partition(": ")[2] for record in caplog.records) == [
        f"RuntimeError: {what} fails", "another rank cannot",
    ]  # fmt: skip


@pytest.mark.parametrize("skewed", ["all", "one"])
def test_sums_that_differ_are_not_trusted(
    skewed: str, on: Callable[[Machine], None], caplog: pytest.LogCaptureFixture
) -> None:
    """From NCCL's, or from rank to rank: in the last bit of what is no integer alone."""
    machine = Machine(2)

    def skew(rank: int, tensor: torch.Tensor) -> float:
        if skewed == "all":
            return 1.0 if tensor.numel() == symmetric.MOST_BYTES // 2 else 0.0
        return 1e-3 if rank == 1 and tensor.numel() == 4 else 0.0

    machine.skew = skew
    on(machine)
    assert together(2, lambda group: group.exchanges, GPU) == ["NCCL"] * 2
    numbers = f"{symmetric.MOST_BYTES // 2} numbers of torch.bfloat16"
    expected = numbers if skewed == "all" else "4 numbers of torch.float32"
    assert f"wrong sums of {expected}" in caplog.text


def test_it_can_be_left_off(on: Callable[[Machine], None]) -> None:
    on(Machine(1))
    store = HashStore()
    assert TorchGroup(store, 0, 1, GPU, symmetric=False).exchanges == "NCCL"


def test_kernels_that_wait_for_a_dead_rank_are_let_go() -> None:
    machine = Machine(2)
    mine, theirs = machine.pads[1], machine.pads[0]
    sums = SymmetricSums(FakeLibrary(machine), 1, 2, "pyengine-1")
    sums.allocate(None)
    sums.abort()  # nothing waits yet
    sums.connect()
    theirs.fill_(1)  # the dead rank has not seen what was said last

    def kernel() -> None:
        while theirs.any():
            time.sleep(0)
        while not mine.all():
            time.sleep(0)

    waiting = threading.Thread(target=kernel, daemon=True)
    waiting.start()
    sums.abort()
    sums.abort()
    waiting.join(60)
    assert not waiting.is_alive()


def test_torch_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its operators' signatures; what it needs of ranks is there without its own group."""
    library = TorchLibrary(GPU)
    name, store = "pyengine-test", HashStore()
    library.join(name, 0, 2, store)
    c10d: Any = torch.distributed.distributed_c10d
    found = c10d._resolve_process_group(name)
    assert (found.rank(), found.size()) == (0, 2)
    assert not torch.distributed.is_initialized()
    called = []

    class Bound:
        def __getattr__(self, operator: str) -> Callable[..., None]:
            schema = getattr(torch.ops.symm_mem, operator).default._schema
            kinds = {"Tensor": torch.Tensor, "str": str}

            def call(*given: Any) -> None:
                types = [kinds[str(each.type)] for each in schema.arguments]
                assert [type(each) for each in given] == types
                called.append(operator)

            return call

    library._ops = Bound()
    buffer = torch.zeros(4)
    library.one_shot(buffer, buffer, name)
    library.two_shots(buffer, name)
    library.in_switch(buffer, name)
    assert called == [
        "one_shot_all_reduce_copy_out", "two_shot_all_reduce_", "multimem_all_reduce_",
    ]  # fmt: skip
    memory = library._memory
    assert {"empty_strided_p2p", "rendezvous", "get_signal_pad", "multicast_ptr"} <= set(
        dir(memory)
    )
