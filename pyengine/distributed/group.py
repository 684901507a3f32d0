"""The ranks that share a model, and what they exchange."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed

# Not all of what it has is in its types.
distributed: Any = torch.distributed

# A rank that dies closes its connections, and nobody waits for it; one that loads may take long.
PATIENCE = timedelta(days=1)
MEETING_S = 60.0
HERE = "127.0.0.1"


class Group(Protocol):
    """One rank's view of the ranks. One thread at a time, and all ranks in the same order.

    On CUDA what is exchanged between devices is queued on the current stream, and a graph can
    capture it.

    Attributes:
        rank: Which of them this is.
        size: How many there are.
    """

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """``tensor`` becomes the sum of all ranks' in place: the same bits everywhere."""

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """``tensor`` [n, ...] of every rank, one below the other -> ``out`` [size * n, ...]."""

    def least(self, number: int) -> int:
        """The least of the ranks' numbers; waits for all of them."""


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Nothing to add."""

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """A copy."""
        out.copy_(tensor)

    def least(self, number: int) -> int:
        """The only one."""
        return number


def host_store(port: int | None = None) -> Any:
    """Where ranks of this machine meet: None opens it, at ``.port``; the others connect to that.

    Nobody else's machine can.
    """
    listening = None
    if port is None:
        with socket.create_server((HERE, 0)) as server:
            port = server.getsockname()[1]
            listening = server.detach()  # the store's from now on
    return distributed.TCPStore(
        HERE,
        port,
        is_master=listening is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=MEETING_S),
        master_listen_fd=listening,
    )


class TorchGroup:
    """Ranks in processes of one machine: gloo between CPUs, NCCL between GPUs.

    It is no part of torch's default process group, which belongs to whoever embeds the engine.

    Attributes:
        rank: Which of them this is.
        size: How many there are.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        """Meet the others, who do the same.

        Args:
            store: A :func:`host_store`, or any other store of torch's.
            rank: Which of them this is.
            size: How many there are.
            device: This rank's.

        Raises:
            RuntimeError: They did not come in time.
        """
        prefixed = distributed.PrefixStore
        self.rank = rank
        self.size = size
        self._host: Any = _gloo(prefixed("host", store), rank, size)
        self._device: Any = self._host
        if device.type == "cuda":
            self._device = _nccl(prefixed("device", store), rank, size, device)
        self._sum, self._least = _reduction("SUM"), _reduction("MIN")
        self._gather = _in_stream(distributed.distributed_c10d.AllgatherOptions())

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See :class:`Group`."""
        _finish(self._device.allreduce([tensor], self._sum))

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """See :class:`Group`."""
        _finish(self._device._allgather_base(out, tensor, self._gather))

    def least(self, number: int) -> int:
        """See :class:`Group`."""
        numbers = torch.tensor([number])
        _finish(self._host.allreduce([numbers], self._least))
        return int(numbers[0])

    def abort(self) -> None:
        """End what waits on a GPU for a rank that has died: it fails then. Any thread; idempotent.

        On the CPU whoever waits hears of it as the connection is closed.
        """
        if self._device is not self._host:
            self._device.abort()


def _gloo(store: Any, rank: int, size: int) -> Any:
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    # By its name a machine may be anywhere on the network; the ranks are all here.
    options._devices = [gloo.create_device(hostname=HERE)]
    options._timeout = PATIENCE
    return gloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, device: torch.device) -> Any:
    nccl = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = PATIENCE
    with _environment("NCCL_SOCKET_IFNAME", "lo"):
        group = nccl(store, rank, size, options)
        group.eager_connect_single_device(device)
    return group


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Have a variable set, unless it is, as long as a library begins that reads it then.

    NCCL's is where ranks find each other, beside the links between GPUs. Whoever else uses NCCL in
    this process, or in one that it starts, is not meant.
    """
    given = name in os.environ
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if not given:
            os.environ.pop(name, None)


def _reduction(operation: str) -> Any:
    options = _in_stream(distributed.AllreduceOptions())
    options.reduceOp = getattr(distributed.ReduceOp, operation)
    return options


def _in_stream(options: Any) -> Any:
    # On the current stream itself, without one of its own beside it and the events between.
    options.asyncOp = False
    return options


def _finish(work: Any) -> None:
    """On the CPU wait for the end; on a GPU order the current stream behind it."""
    if work is not None:
        work.wait()
