"""What of torch's symmetric memory is called: operators, the memory, how ranks find each other."""

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Handle(Protocol):
    """A buffer that all ranks have mapped; torch's ``_SymmetricMemory``.

    Attributes:
        multicast_ptr: Where the switch hands out what is written; 0 if it does not.
    """

    multicast_ptr: int

    def get_signal_pad(
        self, rank: int, sizes: tuple[int, ...] = (), dtype: torch.dtype | None = None, /
    ) -> torch.Tensor:
        """The words by which the kernels of ``rank`` learn that those of others are there."""


class Library(Protocol):
    """What of torch is called, and of the device."""

    def join(self, name: str, rank: int, size: int, store: Any) -> None:
        """Let ranks of ``name`` find each other by ``store``."""

    def allocate(self, nbytes: int, name: str) -> torch.Tensor:
        """Memory that other ranks can map, uint8 [nbytes]."""

    def connect(self, buffer: torch.Tensor, name: str) -> Handle:
        """Map the buffers of all ranks; waits for them."""

    def one_shot(self, buffer: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
        """Replace ``tensor`` by the sum of all; ``buffer`` is as long."""

    def two_shots(self, buffer: torch.Tensor, name: str) -> None:
        """Replace ``buffer`` by the sum of all."""

    def in_switch(self, buffer: torch.Tensor, name: str) -> None:
        """The same, by the switch."""

    def finish(self, seconds: float) -> None:
        """Wait until the device has done what was queued.

        Raises:
            TimeoutError: It takes longer.
        """

    def beside(self) -> AbstractContextManager[Any]:
        """Inside, work is queued beside what was queued before, not behind it."""


class TorchLibrary:
    """The library of this process and its GPU."""

    def __init__(self, device: torch.device) -> None:
        """On ``device``; registers torch's operators."""
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory  # noqa: F401 - defines torch.ops.symm_mem

        self._memory: Any = _SymmetricMemory
        self._ops: Any = torch.ops.symm_mem
        self._device = device
        self._groups: list[Any] = []

    def join(self, name: str, rank: int, size: int, store: Any) -> None:
        """See :class:`Library`. torch's world of ranks, which is the program's, is not asked."""
        from torch._C import _distributed_c10d as c10d

        self._memory.set_group_info(name, rank, size, store)
        group: Any = c10d.ProcessGroup(store, rank, size)
        group._set_group_name(name)
        register: Any = c10d._register_process_group
        register(name, group)
        self._groups.append(group)  # torch does not keep it

    def allocate(self, nbytes: int, name: str) -> torch.Tensor:
        """See :class:`Library`."""
        with torch.cuda.device(self._device):
            buffer: torch.Tensor = self._memory.empty_strided_p2p(
                (nbytes,), (1,), torch.uint8, self._device, name
            )
        return buffer

    def connect(self, buffer: torch.Tensor, name: str) -> Handle:
        """See :class:`Library`."""
        with torch.cuda.device(self._device):
            handle: Handle = self._memory.rendezvous(buffer, name)
        return handle

    def one_shot(self, buffer: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
        """See :class:`Library`."""
        self._ops.one_shot_all_reduce_copy_out(buffer, tensor, "sum", name, tensor)

    def two_shots(self, buffer: torch.Tensor, name: str) -> None:
        """See :class:`Library`."""
        self._ops.two_shot_all_reduce_(buffer, "sum", name)

    def in_switch(self, buffer: torch.Tensor, name: str) -> None:
        """See :class:`Library`."""
        self._ops.multimem_all_reduce_(buffer, "sum", name)

    def finish(self, seconds: float) -> None:
        """See :class:`Library`."""
        with torch.cuda.device(self._device):
            end: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            end.record()
            until = time.monotonic() + seconds
            while not end.query():
                if time.monotonic() > until:
                    raise TimeoutError(f"the first sums take more than {seconds:g} s")
                time.sleep(0.001)

    def beside(self) -> AbstractContextManager[Any]:
        """See :class:`Library`."""
        stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(stream)
