"""Opens a model's weights: from its folder, or made up."""

from contextlib import AbstractContextManager

import torch

from pyengine.model.runner import Progress
from pyengine.model.spec import ModelSpec
from pyengine.model.weights.checkpoint import Checkpoint
from pyengine.model.weights.dummy import DummyWeights
from pyengine.model.weights.sharding import RankWeights

READERS = 8
"""Threads that read weights: a disk, and the copies to a GPU, are faster in parallel."""


def open_weights(
    spec: ModelSpec,
    device: torch.device | None = None,
    *,
    rank: int = 0,
    ranks: int = 1,
    readers: int = READERS,
    progress: Progress | None = None,
) -> AbstractContextManager[RankWeights]:
    """The weights of ``spec``, from its folder or made up.

    Args:
        spec: The model.
        device: Where they go; None is the CPU.
        rank: Whose share is read.
        ranks: Among how many.
        readers: Threads that read; with 0 a tensor is there when it is asked for.
        progress: Called with (bytes loaded, bytes in all), on the caller's thread.

    Raises:
        ModelLoadError: There are none, or a file is damaged or missing.
    """
    device, dtype = device or torch.device("cpu"), getattr(torch, spec.info.dtype)
    if spec.dummy:
        deviation = float(spec.config.get("initializer_range") or 0.02)
        return DummyWeights(device, dtype, rank, ranks, deviation=deviation)
    return Checkpoint(
        spec.info.folder, device, dtype, rank, ranks, readers=readers, progress=progress
    )
