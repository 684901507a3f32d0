"""The model architectures there are: one file each, and their names in config.json."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyengine._core import CpuStep, CpuTensor
from pyengine.errors import ModelLoadError
from pyengine.model.architectures.llama import Llama
from pyengine.model.layers import Kernels, Ops, Workspace
from pyengine.model.loader import Checkpoint
from pyengine.model.runner import ModelInfo


class Architecture(Protocol):
    """A model with its weights, and the buffers of its steps."""

    @property
    def logits_rows(self) -> Workspace:
        """Where ``logits`` writes: its rows are the most that one call takes."""

    @property
    def recordable(self) -> bool:
        """Whether a program can record it: all of it is done by the kernels."""

    def forward(self, on: Ops, step: CpuStep, token_ids: CpuTensor, tokens: int) -> None:
        """Compute the tokens of a step, int32 [tokens], and store their keys and values."""

    def logits(self, on: Ops, last: CpuTensor, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``last[first : first + rows]`` of the step, in ``logits_rows``.

        ``last`` is int32, indices into the step's tokens.
        """


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
