"""Mamba-2 (Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality", 2024)::

    x ─┬─ linear ─ convolution ─ values, keys, queries ─┐
       ├─ linear ─ steps ───────────────────────────────┴─ decaying sum ─ norm, gates ─ linear ─►
       └─ linear ─ gates ──────────────────────────────────────────────────┘

In the paper's letters values are x, keys B, queries C, and steps dt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import SILU, Parts, Step
from pyengine.model.architectures.state_parts import (
    Convolution,
    DecaySum,
    GatedNorm,
)
from pyengine.model.cache_layers import State


@dataclass(frozen=True)
class Multipliers:
    """What a linear layer's outputs are multiplied by, of each kind.

    Attributes:
        gates: The factor of gates.
        values: The factor of values.
        keys: The factor of keys.
        queries: The factor of queries.
        steps: The factor of steps.
    """

    gates: float = 1.0
    values: float = 1.0
    keys: float = 1.0
    queries: float = 1.0
    steps: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        heads: Heads of values.
        head_dim: Elements of each.
        groups: Heads of keys and of queries.
        size: Elements of each: the size of a state.
        kernel: Inputs of the convolution.
        epsilon: The epsilon of the norm.
        name: What the names of weights begin with.
        bias: Whether the linear layers have biases.
        convolution_bias: Whether the convolution has.
        norm: Whether gates multiply before the norm or behind it; None: there is no norm.
        multipliers: Factors of the outputs of the first linear layer.
    """

    heads: int
    head_dim: int
    groups: int
    size: int
    kernel: int
    epsilon: float
    name: str = "mamba."
    bias: bool = False
    convolution_bias: bool = True
    norm: Literal["before", "behind"] | None = "before"
    multipliers: Multipliers = Multipliers()

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(
            channels=self._inner + 2 * self._keys,
            kernel=self.kernel,
            heads=self.heads,
            key_dim=self.size,
            value_dim=self.head_dim,
            key_heads=self.groups,
            gates=2 * self.heads,
        )

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"groups of the state space": self.groups}

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _keys(self) -> int:
        return self.groups * self.size

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        ranks, start = workshop.ranks, f"{start}{self.name}"
        weights, hidden, parts = workshop.weights, workshop.hidden, workshop.parts
        channels, inner = (self._inner, self._keys, self._keys), self._inner // ranks
        widths = self._inner, *channels, self.heads
        cuts = [inner, sum(channels) // ranks, self.heads // ranks]
        matrices = weights.fused(f"{start}in_proj.weight", widths, hidden).split(cuts)
        biases = (
            [None] * 3
            if not self.bias
            else np.split(
                weights.fused_vector(f"{start}in_proj.bias", widths), np.cumsum(cuts)[:-1]
            )
        )
        to_gates, to_inputs, to_steps = map(parts.linear, matrices, biases)
        back = weights.inputs(f"{start}out_proj.weight", hidden, self._inner)
        back_bias = weights.vector(f"{start}out_proj.bias", hidden) if self.bias else None
        project = parts.linear(back, back_bias, reduce=True)
        rule = DecaySum(
            heads=self.heads // ranks,
            groups=self.groups // ranks,
            key_dim=self.size,
            value_dim=self.head_dim,
            rate=np.exp(workshop.numbers(f"{start}A_log", self.heads)),
            bias=workshop.numbers(f"{start}dt_bias", self.heads),
            skip=workshop.numbers(f"{start}D", self.heads),
        )
        recur = workshop.states.decay_sum(layer, rule)
        scale_gates, scale_steps = self._scaled(parts)
        convolve = self._convolution(workshop, layer, start, channels)
        norm = self._gating(workshop, start, inner)
        gates = workshop.buffer("gates of the mixer", inner)
        raw = workshop.buffer("before the convolution", cuts[1])
        vkq = workshop.buffer("behind the convolution", cuts[1])
        steps, mixed = workshop.buffer("steps", cuts[2]), workshop.buffer("mixed", inner)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_gates(x, gates, tokens)
            to_inputs(x, raw, tokens)
            to_steps(x, steps, tokens)
            scale_gates(gates, tokens)
            scale_steps(steps, tokens)
            convolve(step, raw, vkq, tokens)
            recur(step, vkq, (steps,), mixed, tokens)
            norm(mixed, gates, tokens)
            project(mixed, out, tokens)

        return mix

    def _convolution(
        self, workshop: Workshop, layer: int, start: str, channels: tuple[int, ...]
    ) -> Convolution:
        filters = workshop.filters([f"{start}conv1d"], channels, self.kernel)
        many = self.multipliers
        factors = many.values, many.keys, many.queries
        # What multiplies a channel's inputs may as well multiply its filter.
        counts = [count // workshop.ranks for count in channels]
        filters = filters * np.repeat(np.array(factors, np.float32), counts)[:, None]
        bias = None
        if self.convolution_bias:
            bias = workshop.weights.fused_vector(f"{start}conv1d.bias", channels)
        return workshop.states.convolution(layer, filters, bias, "silu")

    def _scaled(self, parts: Parts) -> tuple["Scaled", "Scaled"]:
        return Scaled(parts, self.multipliers.gates), Scaled(parts, self.multipliers.steps)

    def _gating(self, workshop: Workshop, start: str, width: int) -> GatedNorm:
        parts = workshop.parts
        if self.norm is None:
            return SiluGates(parts, workshop.buffer("activated gates", width))
        weight = workshop.weights.vectors({f"{start}norm.weight": self._inner})
        return parts.gated_norm(
            weight, self.epsilon, self._inner // self.groups, gate_first=self.norm == "before"
        )


@dataclass(frozen=True)
class Scaled:
    """Multiplies rows in place, unless it is by 1."""

    parts: Parts
    factor: float

    def __call__(self, x: Buffer, rows: int) -> None:
        """Computes the first ``rows`` rows."""
        if self.factor != 1.0:
            self.parts.scale(x, self.factor, rows)


@dataclass(frozen=True)
class SiluGates:
    """Gates without a norm: see :class:`pyengine.model.architectures.state_parts.GatedNorm`."""

    parts: Parts
    activated: Buffer

    def __call__(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """X * silu(gates), in place."""
        self.parts.activate(SILU, gates, self.activated, rows)
        self.parts.multiply(x, self.activated, 0, rows)
