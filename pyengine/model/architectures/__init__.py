"""The model architectures there are: one file each, and their names in config.json."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from pyengine._core import CpuStep
from pyengine.errors import ModelLoadError
from pyengine.model.architectures.llama import Llama
from pyengine.model.layers import Kernels, Workspace
from pyengine.model.loader import Checkpoint
from pyengine.model.runner import ModelInfo


class Architecture(Protocol):
    """A model with its weights, and the buffers of its steps."""

    @property
    def logits_rows(self) -> Workspace:
        """Where ``logits`` writes: its rows are the most that one call takes."""

    def forward(self, step: CpuStep, token_ids: torch.Tensor) -> None:
        """Compute the tokens of a step, int32 [tokens], and store their keys and values."""

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] that follow the tokens ``last``, int32 [rows], of the step."""


Build = Callable[[ModelInfo, Mapping[str, Any], Checkpoint, Kernels], Architecture]

ARCHITECTURES: dict[str, Build] = {"LlamaForCausalLM": Llama}


def find_architecture(name: str) -> Build:
    """What builds the architecture called ``name``.

    Raises:
        ModelLoadError: There is none of that name; says which there are.
    """
    build = ARCHITECTURES.get(name)
    if build is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(f"architecture {name!r} is not supported; there are: {known}")
    return build
