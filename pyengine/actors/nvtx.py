"""Ranges of NVTX around what the scheduler does in a step, which Nsight Systems shows."""

from typing import Any

from pyengine.actors.scheduler import SchedulerActor
from pyengine.errors import ConfigError

PARTS = ("drain", "launch", "sample", "commit")
"""The methods of the scheduler that are ranges, called ``pyengine`` and the method's name."""


def mark_ranges(scheduler: SchedulerActor) -> None:
    """Make ranges of the parts of each step. Before the scheduler's thread is started.

    Raises:
        ConfigError: torch is one without NVTX.
    """
    import torch

    nvtx: Any = torch.cuda.nvtx
    try:
        nvtx.mark("pyengine starts")
    except RuntimeError as error:
        raise ConfigError(f"'nvtx' needs a torch for GPUs: {error}", param="nvtx") from None
    for name in PARTS:
        setattr(scheduler, name, nvtx.range(f"pyengine {name}")(getattr(scheduler, name)))
