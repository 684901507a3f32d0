"""Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta
Rule", 2024), as Qwen3-Next has it::

    x ─┬─ linear ─ convolution ─ queries, keys, values ─┐
       ├─ linear ─ b, a ────────────────────────────────┴─ delta rule ─ norm ─ * silu ─ linear ─►
       └─ linear ─ gates ───────────────────────────────────────────────────────┘
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.heads import by_kind
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Step
from pyengine.model.architectures.state_parts import (
    DeltaRule,
)
from pyengine.model.cache_layers import State
from pyengine.model.weights.matrix import Matrix


@dataclass(frozen=True)
class DeltaNames:
    """The names of weights, behind the layer's.

    Attributes:
        qkv: Queries, keys and values; one name where a file has one weight of all three.
        gates: The weight of the output's gates.
        b: The weight of how much a token adds.
        a: The weight of how much of the state a token leaves.
        by_head: One weight has, for each head of keys, its queries, its keys, the values and the
            gates of the heads that share it, and another so ``b`` and ``a``: these two names.
        convolution: The weight of the convolution; a name or three, as for ``qkv``.
        norm: The norm of the recurrence's output.
        out: To hidden states.
    """

    qkv: tuple[str, ...] = ("in_proj_qkv",)
    gates: str = "in_proj_z"
    b: str = "in_proj_b"
    a: str = "in_proj_a"
    by_head: tuple[str, str] | None = None
    convolution: tuple[str, ...] = ("conv1d",)
    norm: str = "norm"
    out: str = "out_proj"


@dataclass(frozen=True, kw_only=True)
class GatedDelta:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        key_heads: Heads of queries and keys.
        value_heads: Heads of values, a multiple of that.
        key_dim: Elements of a query and a key.
        value_dim: Elements of a value.
        kernel: Inputs of the convolution.
        epsilon: The epsilon of the norm of the output.
        strength: See :class:`pyengine.model.architectures.state_parts.DeltaRule`.
        names: The names of the weights.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    epsilon: float
    strength: float = 1.0
    names: DeltaNames = field(default_factory=DeltaNames)

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(
            channels=2 * self._keys + self._values,
            kernel=self.kernel,
            heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            key_heads=self.key_heads,
            gates=2 * self.value_heads,
        )

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"key heads of the delta rule": self.key_heads}

    @property
    def _keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def _values(self) -> int:
        return self.value_heads * self.value_dim

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        weights, parts, ranks = workshop.weights, workshop.parts, workshop.ranks
        start = f"{start}linear_attn."
        widths = self._keys, self._keys, self._values
        weight, ba = self._weights(workshop, start)
        to_qkv, to_gates = workshop.linears(weight, (sum(widths), self._values))
        to_ba = parts.linear(ba)
        channels, values, heads = sum(widths) // ranks, self._values // ranks, self.value_heads
        rule = DeltaRule(
            key_heads=self.key_heads // ranks,
            value_heads=heads // ranks,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            rate=np.exp(workshop.numbers(f"{start}A_log", heads)),
            bias=workshop.numbers(f"{start}dt_bias", heads),
            strength=self.strength,
        )
        recur = workshop.states.delta_rule(layer, rule)
        names = [f"{start}{name}" for name in self.names.convolution]
        filters = workshop.filters(names, widths, self.kernel)
        convolve = workshop.states.convolution(layer, filters, None, "silu")
        weight_of_norm = weights.vector(f"{start}{self.names.norm}.weight", self.value_dim)
        norm = parts.gated_norm(
            np.tile(weight_of_norm, heads // ranks), self.epsilon, self.value_dim, gate_first=False
        )
        back = weights.inputs(f"{start}{self.names.out}.weight", workshop.hidden, self._values)
        project = parts.linear(back, reduce=True)
        raw = workshop.buffer("before the convolution", channels)
        qkv = workshop.buffer("behind the convolution", channels)
        both = workshop.buffer("b and a", 2 * heads // ranks)
        gates = workshop.buffer("gates of the mixer", values)
        mixed = workshop.buffer("mixed", values)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_qkv(x, raw, tokens)
            to_ba(x, both, tokens)
            to_gates(x, gates, tokens)
            convolve(step, raw, qkv, tokens)
            recur(step, qkv, (both,), mixed, tokens)
            norm(mixed, gates, tokens)
            project(mixed, out, tokens)

        return mix

    def _weights(self, workshop: Workshop, start: str) -> tuple[Matrix, Matrix]:
        """From hidden states to queries, keys, values and gates; and to ``b`` and ``a``."""
        weights, hidden, names = workshop.weights, workshop.hidden, self.names
        keys, values, heads = self._keys, self._values, self.value_heads
        if names.by_head is not None:
            qkvz, both = (f"{start}{name}.weight" for name in names.by_head)
            groups, each = self.key_heads // workshop.ranks, heads // self.key_heads
            wide = each * self.value_dim
            order = by_kind(groups, (self.key_dim, self.key_dim, wide, wide))
            return (
                weights.outputs({qkvz: 2 * (keys + values)}, hidden).reordered(order),
                weights.outputs({both: 2 * heads}, hidden).reordered(by_kind(groups, (each, each))),
            )
        gates = {f"{start}{names.gates}.weight": values}
        ba = {f"{start}{name}.weight": heads for name in (names.b, names.a)}
        if len(names.qkv) == 1:
            name, widths = f"{start}{names.qkv[0]}.weight", (keys, keys, values)
            qkv = weights.fused(name, widths, hidden)
            return qkv.above(weights.outputs(gates, hidden)), weights.outputs(ba, hidden)
        rows = dict(zip(names.qkv, (keys, keys, values), strict=True))
        by_name = {f"{start}{name}.weight": count for name, count in rows.items()}
        return weights.outputs(by_name | gates, hidden), weights.outputs(ba, hidden)
