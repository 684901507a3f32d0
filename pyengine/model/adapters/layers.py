"""Which part of an adapter each of a rank's layers has.

A layer may be made of several modules, such as queries, keys and values, in an order of its own,
and of a rank's share of their rows or columns. Each of its outputs comes from a row of a module::

    adapter    q_proj: A, B          v_proj: A, B

    layer      shrink  = A of q_proj above A of v_proj      [ranks, inputs]
               expands = B of q_proj: outputs 0 ...         [outputs, ranks of q_proj]
                         B of v_proj: outputs 1280 ...
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import AdapterError
from pyengine.model.adapters.peft import AdapterFile, LowRank
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.origin import Origin


@dataclass(frozen=True, eq=False)
class Expansion:
    """The product of one module with neighbouring outputs.

    Attributes:
        weight: [outputs, ranks].
        first_rank: The first of its ranks among the layer's.
        first_output: The first of its outputs.
        scale: Multiplies what goes in.
    """

    weight: NDArray[Any]
    first_rank: int
    first_output: int
    scale: float


@dataclass(frozen=True, eq=False)
class LayerDelta:
    """What an adapter adds to the outputs of one layer.

    Attributes:
        layer: The layer's number among those that were made.
        shrink: [ranks, inputs].
        expansions: A part for each range of outputs.
    """

    layer: int
    shrink: NDArray[Any]
    expansions: tuple[Expansion, ...]


@dataclass
class AdaptedLayers:
    """The linear layers of a model, by their numbers, as adapters see them.

    Attributes:
        origins: Where the outputs of each layer come from.
    """

    origins: list[tuple[Origin, ...]] = field(default_factory=list)

    def add(self, weight: Matrix) -> int | None:
        """Returns the number of the layer that has this weight; None: adapters cannot reach it."""
        if not weight.origins:
            return None
        self.origins.append(weight.origins)
        return len(self.origins) - 1

    def fit(self, adapter: AdapterFile) -> list[LayerDelta]:
        """The adapter's part of each layer that it changes.

        Raises:
            AdapterError: It has a module that the model has not, or of another shape.
        """
        left = dict(adapter.modules)
        deltas = []
        for layer, origins in enumerate(self.origins):
            for origin in origins:
                if (low_rank := adapter.modules.get(origin.module)) is not None:
                    _check(adapter, origin, low_rank)
                    left.pop(origin.module, None)
            delta = _delta(layer, origins, adapter.modules)
            deltas += [] if delta is None else [delta]
        if left:
            names = ", ".join(sorted(left)[:3]) + (", ..." if len(left) > 3 else "")
            raise AdapterError(
                f"{adapter.folder} changes {names}, which the model has not as a linear layer that "
                "adapters can change; experts, embeddings and heads are none"
            )
        return deltas


def _check(adapter: AdapterFile, origin: Origin, low_rank: LowRank) -> None:
    outputs, inputs = origin.shape
    has = low_rank.up.shape[0], low_rank.down.shape[1]
    if has != (outputs, inputs):
        raise AdapterError(
            f"{adapter.folder}: the adapter of {origin.module!r} is for {has[1]} inputs and "
            f"{has[0]} outputs, but the model has {inputs} and {outputs}"
        )


def _delta(
    layer: int, origins: tuple[Origin, ...], modules: Mapping[str, LowRank]
) -> LayerDelta | None:
    shrinks: list[NDArray[Any]] = []
    expansions: list[Expansion] = []
    first_rank: dict[str, int] = {}
    ranks = output = 0
    for module, same in groupby(origins, lambda origin: origin.module):
        parts = list(same)
        rows = np.concatenate([part.rows for part in parts])
        if (low_rank := modules.get(module)) is not None:
            if module not in first_rank:
                first_rank[module] = ranks
                shrinks.append(low_rank.down[:, parts[0].columns])
                ranks += len(low_rank.down)
            up = low_rank.up[rows]
            expansions.append(Expansion(up, first_rank[module], output, low_rank.scale))
        output += len(rows)
    if not shrinks:
        return None
    kind = np.result_type(*{shrink.dtype for shrink in shrinks})
    return LayerDelta(
        layer, np.concatenate([shrink.astype(kind) for shrink in shrinks]), tuple(expansions)
    )
