"""Layers with a state on the CPU: the Rust kernels, over the slots of the model's pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuTensor
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.state_parts import DecaySum, DeltaRule
from pyengine.model.cache_layers import state_places
from pyengine.model.cpu.attention import CpuStepTensors
from pyengine.model.cpu.executor import Executor
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.runner import ModelInfo

Place = tuple[int, int]
"""Where a kernel's state begins in a slot, and where its drafts do, in floats."""


class CpuStateOps:
    """See :class:`pyengine.model.architectures.state_parts.States`."""

    def __init__(self, executor: Executor, info: ModelInfo) -> None:
        self._executor = executor
        self._places = state_places(info.layers, info.max_draft)

    def convolution(
        self,
        layer: int,
        weight: NDArray[np.float32],
        bias: NDArray[Any] | None,
        activation: str | None,
    ) -> "CpuConvolution":
        """A layer's convolution."""
        place = self._places[layer]
        return CpuConvolution(
            self._executor,
            (place.convolution, place.drafts),
            cpu_tensor(np.array(weight, np.float32)),
            _vector(bias),
            activation == "silu",
        )

    def delta_rule(self, layer: int, rule: DeltaRule) -> "CpuDeltaRule":
        """A layer's gated delta rule."""
        return CpuDeltaRule(self._executor, self._recurrent(layer), rule)

    def decay_sum(self, layer: int, rule: DecaySum) -> "CpuDecaySum":
        """A layer's decaying sum."""
        return CpuDecaySum(self._executor, self._recurrent(layer), rule)

    def _recurrent(self, layer: int) -> Place:
        place = self._places[layer]
        return place.recurrent, place.recurrent_drafts


@dataclass(frozen=True)
class CpuConvolution:
    """A causal convolution of each channel."""

    executor: Executor
    place: Place
    weight: CpuTensor
    bias: CpuTensor | None
    silu: bool

    def __call__(self, step: CpuStepTensors, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, channels] -> ``out`` [tokens, channels]."""
        self.executor.program.convolve(
            step.states,
            self.place,
            x.kernel,
            self.weight,
            self.bias,
            out.kernel,
            silu=self.silu,
        )


class CpuDeltaRule:
    """The gated delta rule."""

    def __init__(self, executor: Executor, place: Place, rule: DeltaRule) -> None:
        self._executor = executor
        self._place = place
        self._rule = rule
        self._rates, self._bias = cpu_tensor(_floats(rule.rate)), cpu_tensor(_floats(rule.bias))

    def __call__(
        self, step: CpuStepTensors, x: Buffer, gates: Sequence[Buffer], out: Buffer, tokens: int
    ) -> None:
        """Queries, keys and values, and the gates -> ``out`` [tokens, value_heads * value_dim]."""
        rule = self._rule
        keys, values = rule.key_heads * rule.key_dim, rule.value_heads * rule.value_dim
        queries, key, value = _columns(x, keys, keys, values)
        betas, decays = (
            _columns(gates[0], rule.value_heads, len(rule.bias))
            if len(gates) == 1
            else [each.kernel for each in gates]
        )
        self._executor.program.delta_rule(
            step.states,
            self._place,
            queries,
            key,
            value,
            decays,
            betas,
            self._rates,
            self._bias,
            out.kernel,
            key_heads=rule.key_heads,
            scale=rule.key_dim**-0.5,
            bound=rule.bound,
            strength=rule.strength,
        )


class CpuDecaySum:
    """A decaying sum."""

    def __init__(self, executor: Executor, place: Place, rule: DecaySum) -> None:
        self._executor = executor
        self._place = place
        self._rule = rule
        self._rates = cpu_tensor(_floats(rule.rate))
        self._bias, self._skip = _vector(rule.bias), _vector(rule.skip)

    def __call__(
        self, step: CpuStepTensors, x: Buffer, gates: Sequence[Buffer], out: Buffer, tokens: int
    ) -> None:
        """Values, keys and queries, and gates -> ``out`` [tokens, heads * value_dim]."""
        rule = self._rule
        keys = rule.groups * rule.key_dim
        if len(gates) == 3:
            value, key, queries = x.kernel, gates[1].kernel, gates[2].kernel
        else:
            value, key, queries = _columns(x, rule.heads * rule.value_dim, keys, keys)
        self._executor.program.decay_sum(
            step.states,
            self._place,
            queries,
            key,
            value,
            gates[0].kernel if gates else None,
            self._rates,
            self._bias,
            self._skip,
            out.kernel,
            key_heads=rule.groups,
        )


def _floats(numbers: NDArray[Any]) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def _vector(numbers: NDArray[Any] | None) -> CpuTensor | None:
    return None if numbers is None else cpu_tensor(_floats(numbers))


def _columns(buffer: Buffer, *widths: int) -> list[CpuTensor]:
    """Neighbouring columns of a buffer, which they are views of."""
    ends = np.cumsum(widths)
    return [
        cpu_tensor(buffer.tensor[:, end - width : end])
        for end, width in zip(ends, widths, strict=True)
    ]
