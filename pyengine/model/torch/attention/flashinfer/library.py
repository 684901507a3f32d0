"""The parts of flashinfer-python that are called, and of the device that tell when."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from pyengine.model.torch.attention.flashinfer.toolchain import find_ninja


class Event(Protocol):
    """A mark in the device's work, such as :class:`torch.cuda.Event`."""

    def record(self) -> None:
        """Mark what was queued so far."""

    def synchronize(self) -> None:
        """Wait until the device has done what was marked; at once where nothing was."""


@dataclass(frozen=True)
class Library:
    """The parts of flashinfer and of the device that are used.

    Attributes:
        decode: ``BatchDecodeWithPagedKVCacheWrapper``.
        prefill: ``BatchPrefillWithPagedKVCacheWrapper``.
        merge: ``merge_state_in_place``.
        event: Makes a mark in the current stream's work.
        copy: Queues the copy of pinned memory, the second, to the first, on the device.
        put: Puts the second tensor's rows where the first, bool, says so into the third, by one
            kernel.
    """

    decode: Callable[..., Any]
    prefill: Callable[..., Any]
    merge: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    event: Callable[[], Event]
    copy: Callable[[torch.Tensor, torch.Tensor], object]
    put: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def put(rows: torch.Tensor, found: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` gets what of ``found`` is in ``rows``: bool, which is broadcast to both."""
    torch.where(rows, found, out, out=out)


def load_library() -> Library:
    """The installed one."""
    import flashinfer

    find_ninja()
    return Library(
        decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        merge=flashinfer.merge_state_in_place,
        event=torch.cuda.Event,
        copy=partial(torch.Tensor.copy_, non_blocking=True),
        put=put,
    )
