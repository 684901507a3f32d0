"""Mixtures of experts for the Rust kernels."""

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from numpy.typing import NDArray

from pyengine._core import CpuExperts, CpuLinear
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import Activation
from pyengine.model.weights.matrix import Matrix

Pack = Callable[[Matrix, NDArray[Any] | None], CpuLinear]
"""Copies weights [out, in] and a bias [out]."""


def make_experts(
    routing: Routing, weights: ExpertWeights, activation: Activation, pack: Pack
) -> CpuExperts:
    """A layer's experts, with copies of their weights."""
    gate_up = zip_longest(weights.gate_up, weights.gate_up_bias)
    down = zip_longest(weights.down, weights.down_bias)
    return CpuExperts(
        [pack(matrix, bias) for matrix, bias in gate_up],
        [pack(matrix, bias) for matrix, bias in down],
        activation.kind,
        limit=activation.limit,
        bias=_floats(weights.choice_bias),
        scales=_floats(weights.scales),
        chosen=routing.chosen,
        sigmoid=routing.sigmoid,
        normalized=routing.normalized,
        scale=routing.scale,
        groups=routing.groups,
        chosen_groups=routing.chosen_groups,
        group_best=routing.group_best,
        weighs_inputs=routing.weighs_inputs,
        first=weights.first,
        count=weights.count,
    )


def _floats(numbers: NDArray[Any] | None) -> list[float] | None:
    return None if numbers is None else [float(number) for number in numbers]
