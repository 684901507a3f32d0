"""The ranks that share a model, and what they exchange."""

from typing import Protocol

import torch


class Group(Protocol):
    """One rank's view of the ranks. One thread at a time, and all ranks in the same order.

    On CUDA the calls are queued on the current stream, and a graph can capture them.

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


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Nothing to add."""

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """A copy."""
        out.copy_(tensor)
