"""The ranks that share a model, and what they exchange."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed

# Its type stubs lack some names that are used here.
distributed: Any = torch.distributed

# Long, as one rank may load for long; a rank that dies closes its connections, which ends every
# wait. Once all have loaded, a step's time is the limit: see TorchGroup.limit.
LOADING_TIMEOUT = timedelta(days=1)
MEETING_TIMEOUT_S = 60.0
LOCALHOST = "127.0.0.1"


class Group(Protocol):
    """One rank's view of the ranks. One thread at a time, and all ranks in the same order.

    On CUDA exchanges between devices are queued on the current stream; a graph can capture them.

    Attributes:
        rank: This rank's number.
        size: Number of ranks.
    """

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by the sum of all ranks' tensors: the same bits on every rank."""

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Concatenate every rank's ``tensor`` [n, ...] into ``out`` [size * n, ...]."""

    def least(self, number: int) -> int:
        """The least of the ranks' numbers; waits for all ranks."""

    def limit(self, seconds: float) -> None:
        """Let an exchange that takes longer fail, from now on."""


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Nothing: there is nothing to add."""

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Copy ``tensor``."""
        out.copy_(tensor)

    def least(self, number: int) -> int:
        """``number``."""
        return number

    def limit(self, seconds: float) -> None:
        """Nothing: nothing is waited for."""


def host_store(port: int | None = None) -> Any:
    """The store by which ranks find each other; only this machine can connect.

    Args:
        port: Where an open store listens; None opens one, whose ``port`` the others take.
    """
    listening = None
    if port is None:
        with socket.create_server((LOCALHOST, 0)) as server:
            port = server.getsockname()[1]
            listening = server.detach()  # the store's from now on
    return distributed.TCPStore(
        LOCALHOST,
        port,
        is_master=listening is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=MEETING_TIMEOUT_S),
        master_listen_fd=listening,
    )


class TorchGroup:
    """Ranks in processes of one machine: gloo between CPUs, NCCL between GPUs.

    It leaves torch's default process group to the program that embeds the engine.

    Attributes:
        rank: This rank's number.
        size: Number of ranks.
        exchanges: How ranks exchange, in words.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        """Connect to the other ranks, which do the same.

        Args:
            store: A :func:`host_store`, or another store of torch's.
            rank: This rank's number.
            size: Number of ranks.
            device: This rank's device.

        Raises:
            RuntimeError: A rank did not come in time.
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
        self.exchanges = "gloo" if device.type == "cpu" else "NCCL"

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

    def limit(self, seconds: float) -> None:
        """See :class:`Group`."""
        for group in {id(each): each for each in (self._host, self._device)}.values():
            group._set_default_timeout(timedelta(seconds=seconds))

    def abort(self) -> None:
        """Fail the exchanges that wait on a GPU for a rank that has died. Any thread; idempotent.

        On the CPU an exchange fails by itself, as the connection is closed.
        """
        if self._device is not self._host:
            self._device.abort()


def _gloo(store: Any, rank: int, size: int) -> Any:
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    # By the machine's name gloo might listen on the network; all ranks are on this machine.
    options._devices = [gloo.create_device(hostname=LOCALHOST)]
    options._timeout = LOADING_TIMEOUT
    return gloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, device: torch.device) -> Any:
    nccl = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = LOADING_TIMEOUT
    # Buffers that are registered as a graph is captured take part of all ranks.
    with _environment("NCCL_SOCKET_IFNAME", "lo"), _environment("NCCL_GRAPH_REGISTER", "0"):
        group = nccl(store, rank, size, options)
        group.eager_connect_single_device(device)
    return group


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, unless it is set, while a library reads it.

    NCCL reads by which network interface its ranks find each other. Other users of NCCL in this
    process, and its children, do not see the variable.
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
