"""Kimi Delta Attention (Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture",
2025): Gated DeltaNet with a decay for each element of a key::

    x ─┬─ linear ─ convolution ─ queries, keys, values ─┐
       ├─ linear ─ b ───────────────────────────────────┤
       ├─ linear ─ linear ─ decays ─────────────────────┴─ delta rule ─ norm ─ * sigmoid ─ linear ─►
       └─ linear ─ linear ─ gates ─────────────────────────────────────────────┘

Ling 3 (inclusionAI, 2026) makes decays and gates by one linear layer each, and bounds the decays.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Linear, Step
from pyengine.model.architectures.state_parts import (
    DeltaRule,
)
from pyengine.model.cache_layers import State

KINDS = "q", "k", "v"


@dataclass(frozen=True, kw_only=True)
class KimiDelta:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        heads: Heads of queries, keys and values.
        head_dim: Elements of each, and numbers of what decays and gates are made of.
        kernel: Inputs of the convolutions.
        epsilon: The epsilon of the norm of the output.
        start: What the names of its weights begin with.
        out: The name of the output's layer.
        narrow: Whether decays and gates are made of ``head_dim`` numbers, or of hidden states.
        bound: The least logarithm of a decay, below 0; None: there is none.
    """

    heads: int
    head_dim: int
    kernel: int
    epsilon: float
    start: str = "self_attn."
    out: str = "o_proj"
    narrow: bool = True
    bound: float | None = None

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(
            channels=3 * self._width,
            kernel=self.kernel,
            heads=self.heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            key_heads=self.heads,
            gates=self.heads + self._width,
        )

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"heads of the delta rule": self.heads}

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        weights, parts, ranks = workshop.weights, workshop.parts, workshop.ranks
        start, hidden, all_of_it = f"{start}{self.start}", workshop.hidden, self._width
        heads, width = self.heads // ranks, all_of_it // ranks
        qkv = {f"{start}{kind}_proj.weight": all_of_it for kind in KINDS}
        to_qkv = parts.linear(weights.outputs(qkv, hidden))
        to_b = parts.linear(weights.outputs({f"{start}b_proj.weight": self.heads}, hidden))
        to_decays, to_gates = (self._wide(workshop, f"{start}{kind}_") for kind in "fg")
        filters = workshop.filters(
            [f"{start}{kind}_conv1d" for kind in KINDS], (all_of_it,) * 3, self.kernel
        )
        convolve = workshop.states.convolution(layer, filters, None, "silu")
        rule = DeltaRule(
            key_heads=heads,
            value_heads=heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            rate=np.exp(workshop.numbers(f"{start}A_log[:]", self.heads)),
            bias=workshop.numbers(f"{start}dt_bias[:]", all_of_it),
            bound=self.bound,
        )
        recur = workshop.states.delta_rule(layer, rule)
        weight = np.tile(weights.vector(f"{start}o_norm.weight", self.head_dim), heads)
        norm = parts.gated_norm(
            weight, self.epsilon, self.head_dim, gate_first=False, function="sigmoid"
        )
        back = weights.inputs(f"{start}{self.out}.weight", hidden, all_of_it)
        project = parts.linear(back, reduce=True)
        raw = workshop.buffer("before the convolution", 3 * width)
        read = workshop.buffer("behind the convolution", 3 * width)
        b, decays = workshop.buffer("b", heads), workshop.buffer("decays", width)
        gates, mixed = workshop.buffer("gates of the mixer", width), workshop.buffer("mixed", width)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_qkv(x, raw, tokens)
            to_b(x, b, tokens)
            to_decays(x, decays, tokens)
            to_gates(x, gates, tokens)
            convolve(step, raw, read, tokens)
            recur(step, read, (b, decays), mixed, tokens)
            norm(mixed, gates, tokens)
            project(mixed, out, tokens)

        return mix

    def _wide(self, workshop: Workshop, start: str) -> Linear:
        """From hidden states to a number for each element of the heads."""
        if not self.narrow:
            weight = {f"{start}proj.weight": self._width}
            return workshop.parts.linear(workshop.weights.outputs(weight, workshop.hidden))
        dim = self.head_dim
        second = workshop.weights.outputs({f"{start}b_proj.weight": self._width}, dim)
        # Every rank has the first of two layers as a whole.
        first = workshop.weights.table(f"{start}a_proj.weight", dim, workshop.hidden)
        to_few, to_all = workshop.parts.linear(first), workshop.parts.linear(second)
        few = workshop.buffer("what decays and gates are made of", dim)

        def both(x: Buffer, out: Buffer, rows: int) -> None:
            to_few(x, few, rows)
            to_all(few, out, rows)

        return both
