"""Mamba's selective state space (Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective
State Spaces", 2023)::

    x ─┬─ linear ─ convolution ─ values ─┬───────────────────────────┐
       │                                 ├─ linear ─ keys, queries ──┤
       │                                 └─ linear ─ linear ─ steps ─┴─ sum ─ * silu ─ linear ─►
       └─ linear ─ gates ───────────────────────────────────────────────────────┘

In the paper's letters values are x, keys B, queries C, and steps dt. Each channel is a head of one
value, with a rate for each element of a key. Jamba and Falcon Mamba normalize keys, queries and
what steps are made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.mixers.state_space import SiluGates
from pyengine.model.architectures.parts import Linear, Norm, Step
from pyengine.model.architectures.state_parts import DecaySum
from pyengine.model.cache_layers import State
from pyengine.model.weights.matrix import Matrix


@dataclass(frozen=True, kw_only=True)
class SelectiveScan:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        channels: Values of a token.
        size: Elements of keys and of queries: the size of a channel's state.
        rank: Numbers that steps are made of.
        kernel: Inputs of the convolution.
        epsilon: The epsilon of the norms.
        name: What the names of weights begin with.
        bias: Whether the first and the last linear layer have biases.
        convolution_bias: Whether the convolution has.
        norms: Whether there are norms, with weights or without.
    """

    channels: int
    size: int
    rank: int
    kernel: int
    epsilon: float = 1e-6
    name: str = "mixer."
    bias: bool = False
    convolution_bias: bool = True
    norms: Literal["weighed", "plain"] | None = None

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(
            channels=self.channels,
            kernel=self.kernel,
            heads=self.channels,
            key_dim=self.size,
            value_dim=1,
            key_heads=1,
            gates=(self.size + 1) * self.channels,
        )

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"channels of the state space": self.channels}

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        start, parts, weights = f"{start}{self.name}", workshop.parts, workshop.weights
        channels, hidden = self.channels // workshop.ranks, workshop.hidden
        both = (self.channels, self.channels)
        halves = weights.fused(f"{start}in_proj.weight", both, hidden).split([channels] * 2)
        biases: list[NDArray[Any] | None] = [None, None]
        if self.bias:
            biases = list(np.split(weights.fused_vector(f"{start}in_proj.bias", both), 2))
        to_values, to_gates = map(parts.linear, halves, biases)
        bias = {f"{start}conv1d.bias": self.channels}
        convolve = workshop.states.convolution(
            layer,
            workshop.filters([f"{start}conv1d"], (self.channels,), self.kernel),
            weights.vectors(bias) if self.convolution_bias else None,
            "silu",
        )
        made_of = weights.inputs(
            f"{start}x_proj.weight", self.rank + 2 * self.size, self.channels
        ).split([self.rank, self.size, self.size])
        made = [
            self._made(workshop, f"{start}{kind}_layernorm", each)
            for kind, each in zip(("dt", "b", "c"), made_of, strict=True)
        ]
        steps = {f"{start}dt_proj.weight": self.channels}
        to_steps = parts.linear(weights.outputs(steps, self.rank))
        rule = DecaySum(
            heads=channels,
            groups=1,
            key_dim=self.size,
            value_dim=1,
            rate=np.exp(workshop.numbers(f"{start}A_log[:]", self.channels * self.size)),
            bias=workshop.numbers(f"{start}dt_proj.bias", self.channels),
            skip=workshop.numbers(f"{start}D", self.channels),
        )
        recur = workshop.states.decay_sum(layer, rule)
        gate = SiluGates(parts, workshop.buffer("activated gates", channels))
        back = weights.inputs(f"{start}out_proj.weight", hidden, self.channels)
        back_bias = weights.vector(f"{start}out_proj.bias", hidden) if self.bias else None
        project = parts.linear(back, back_bias, reduce=True)
        buffers = "before the convolution", "values", "steps", "gates of the mixer", "mixed"
        raw, values, wide, gates, mixed = (workshop.buffer(use, channels) for use in buffers)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_values(x, raw, tokens)
            to_gates(x, gates, tokens)
            convolve(step, raw, values, tokens)
            low, keys, queries = (each(values, tokens) for each in made)
            to_steps(low, wide, tokens)
            recur(step, values, (wide, keys, queries), mixed, tokens)
            gate(mixed, gates, tokens)
            project(mixed, out, tokens)

        return mix

    def _made(self, workshop: Workshop, name: str, weight: Matrix) -> "Made":
        """What makes something of values: a rank has a share of these, and the sum of all."""
        width, parts = weight.shape[0], workshop.parts
        norms = []
        if self.norms is not None:
            of_file = self.norms == "weighed"
            own = workshop.weights.vector(f"{name}.weight", width) if of_file else None
            norms = [parts.norm(np.ones(width, np.float32) if own is None else own, self.epsilon)]
        return Made(
            parts.linear(weight, reduce=True),
            norms,
            workshop.buffer(f"{name[-12:]}, before its norm", width),
            workshop.buffer(f"{name[-12:]}", width),
        )


@dataclass(frozen=True)
class Made:
    """Something that is made of values, and normalized perhaps."""

    linear: Linear
    norms: list[Norm]
    raw: Buffer
    out: Buffer

    def __call__(self, values: Buffer, tokens: int) -> Buffer:
        """[tokens, channels] -> ``out``, which is returned."""
        self.linear(values, self.raw if self.norms else self.out, tokens)
        for norm in self.norms:
            norm(self.raw, None, self.out, tokens)
        return self.out
