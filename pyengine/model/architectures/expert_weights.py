"""The weights of a layer's experts, as files have them: one by one, or all in one tensor."""

from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.experts import ExpertWeights
from pyengine.model.architectures.traits import ExpertNames, Mixture
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.sharding import Weights
from pyengine.model.weights.stacked import place


def expert_weights(
    weights: Weights, mlp: str, mixture: Mixture, hidden: int, *, divided: bool
) -> ExpertWeights:
    """The weights of all experts, this rank's share of each; or where they are ``divided`` its own.

    Raises:
        ModelLoadError: A tensor is missing, or has another shape.
    """
    names, inner, count = mixture.names, mixture.inner, mixture.count
    stacked = mixture.stacked
    if stacked is not None and weights.has(f"{mlp}{place(stacked.down.format(0)).tensor}"):
        names = stacked
    down_bias = names.down_bias

    def vector(name: str | None) -> NDArray[np.floating] | None:
        return None if name is None else weights.vector(f"{mlp}{name}", count)

    choice_bias, scales = vector(mixture.bias), vector(mixture.scales)
    with weights.whole_ones(count) if divided else nullcontext(range(count)) as experts:
        return ExpertWeights(
            count,
            experts.start,
            [_gate_up(weights, mlp, names, expert, inner, hidden) for expert in experts],
            [
                weights.inputs(f"{mlp}{names.down.format(expert)}", hidden, inner)
                for expert in experts
            ],
            [
                _gate_up_bias(weights, f"{mlp}{names.gate_up_bias.format(expert)}", names, inner)
                for expert in experts
            ]
            if names.gate_up_bias
            else (),
            [weights.vector(f"{mlp}{down_bias.format(expert)}", hidden) for expert in experts]
            if down_bias
            else (),
            choice_bias,
            scales,
        )


def _gate_up(
    weights: Weights, mlp: str, names: ExpertNames, expert: int, inner: int, hidden: int
) -> Matrix:
    found = [f"{mlp}{name.format(expert)}" for name in names.gate_up]
    if len(found) > 1 or not names.gated:
        return weights.outputs(dict.fromkeys(found, inner), hidden)
    if not names.interleaved:
        return weights.fused(found[0], (inner, inner), hidden)
    pairs = weights.outputs({found[0]: 2 * inner}, hidden)
    return pairs.reordered(_gates_first(pairs.shape[0]))


def _gate_up_bias(
    weights: Weights, name: str, names: ExpertNames, inner: int
) -> NDArray[np.floating]:
    if not names.interleaved:
        return weights.fused_vector(name, (inner, inner))
    pairs = weights.vectors({name: 2 * inner})
    return pairs[_gates_first(len(pairs))]


def _gates_first(count: int) -> NDArray[np.intp]:
    """The order of gate, up, gate, up, ... that has all gates first."""
    return np.arange(count).reshape(-1, 2).T.reshape(-1)
