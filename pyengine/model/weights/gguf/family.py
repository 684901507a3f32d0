"""A family's models as GGUF describes them, with what its files leave out.

llama.cpp's converter folds what a family does otherwise than others into the weights: it adds the 1
that Gemma's norms add, has decays in the place of their logarithms, and lays rows of some weights
out anew. What it knows of a family, and its files do not say, is data of :mod:`.families`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.intp]


@dataclass(frozen=True)
class Facts:
    """What a file says of its model.

    Attributes:
        name: Of the architecture, with which the names of its values begin.
        metadata: All values of the file.
        tensors: The names of its tensors.
        rotary_factors: What the periods of rotary positions are divided by; empty: by 1.
    """

    name: str
    metadata: Mapping[str, Any]
    tensors: Collection[str]
    rotary_factors: Sequence[float] = ()

    def get(self, key: str, default: Any = None) -> Any:
        """The value called ``key`` behind the architecture's name."""
        value = self.metadata.get(f"{self.name}.{key}")
        return default if value is None else value

    def number(self, key: str) -> Any:
        """The same; of a list, which has one for each layer, the largest."""
        value = self.get(key)
        return max(value, default=None) if isinstance(value, list) else value

    def by_layer(self, key: str) -> list[Any]:
        """The same for each layer."""
        value = self.get(key)
        return value if isinstance(value, list) else [value] * int(self.layers)

    def has(self, tensor: str) -> bool:
        """Whether a tensor's name ends so."""
        return any(name.endswith(tensor) for name in self.tensors)

    @property
    def layers(self) -> int:
        """Layers of the model, without those that draft."""
        return int(self.get("block_count", 0)) - int(self.get("nextn_predict_layers", 0))

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        length = self.get("attention.key_length")
        return int(length or self.get("embedding_length") // self.number("attention.head_count"))


class Layout(NamedTuple):
    """How a file lays the rows of a weight out, or its columns.

    Attributes:
        order: For each row of the checkpoint's weight, of so many, which one it is in the file.
        weights: Weights of that size in the file's tensor, whose rows are mixed.
    """

    order: Callable[[Facts, int], Order]
    weights: int = 1


def _nothing(facts: Facts) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class GgufFamily:
    """A family.

    Attributes:
        architecture: As config.json has it.
        fields: Names in config.json, and behind the architecture's in metadata.
        known: What config.json says of every model of the family.
        flags: Names in config.json, and the ends of tensors' names that tell.
        more: What else follows of the facts.
        names: Names of tensors that differ from those of most families: see :mod:`.tensors`.
        rows: Weights whose rows the file has in another order, by their names within a layer.
        columns: Likewise columns.
        ones: Weights of norms have the 1 added that the family adds.
        values: Widths of values that the family knows, where they are not keys'.
    """

    architecture: str
    fields: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Facts], Mapping[str, Any]] = _nothing
    names: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Layout] = field(default_factory=dict)
    columns: Mapping[str, Layout] = field(default_factory=dict)
    ones: bool = False
    values: bool = False
