"""The parts of flashinfer-python that are called, and of the device that tell when."""

from collections.abc import Callable
from dataclasses import dataclass
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
        event: Makes a mark in the current stream's work.
    """

    decode: Callable[..., Any]
    prefill: Callable[..., Any]
    event: Callable[[], Event]


def load_library() -> Library:
    """The installed one."""
    import flashinfer

    find_ninja()
    return Library(
        decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        event=torch.cuda.Event,
    )
