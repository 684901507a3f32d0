"""The model architectures there are: one file each, and their names in config.json."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.llama import llama
from pyengine.model.architectures.mistral import mistral
from pyengine.model.architectures.parts import Buffer, Parts, Step
from pyengine.model.architectures.phi3 import phi3
from pyengine.model.architectures.qwen2 import qwen2
from pyengine.model.architectures.qwen3 import qwen3
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class Architecture(Protocol):
    """A model with its weights, and the buffers of its steps."""

    @property
    def logits_rows(self) -> Buffer:
        """Where ``logits`` writes: its rows are the most that one call takes."""

    def forward(self, step: Step, tokens: int) -> None:
        """Compute the first ``tokens`` tokens of a step, and store their keys and values."""

    def logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``logit_token[first : first + rows]``, in ``logits_rows``."""


Build = Callable[[ModelInfo, Mapping[str, Any], Weights, Parts], Architecture]

ARCHITECTURES: dict[str, Build] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Phi3ForCausalLM": phi3,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}


def find_architecture(name: str) -> Build:
    """The architecture called ``name``.

    Raises:
        ModelLoadError: There is none of that name; says which there are.
    """
    build = ARCHITECTURES.get(name)
    if build is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(f"architecture {name!r} is not supported; there are: {known}")
    return build
