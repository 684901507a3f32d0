"""Lightning attention (Qin et al., "Various Lengths, Constant Speed: Efficient Language Modeling
with Lightning Attention", 2024), as MiniMax-Text-01 has it: attention without a softmax, whose keys
fade at a fixed rate of each head::

    x ─┬─ linear ─ silu ─ queries, keys, values ─ decaying sum ─ norm ─ * sigmoid ─ linear ─►
       └─ linear ─ gates ────────────────────────────────────────────────┘
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.heads import by_kind
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Activation, Step
from pyengine.model.architectures.state_parts import DecaySum
from pyengine.model.cache_layers import State


@dataclass(frozen=True, kw_only=True)
class DecayAttention:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        heads: Heads of queries, of keys and of values.
        head_dim: Elements of each.
        rates: By which each head's sum fades with each token, [heads].
        activation: The activation of queries, keys and values.
        epsilon: The epsilon of the norm of the output.
    """

    heads: int
    head_dim: int
    rates: tuple[float, ...]
    activation: Activation
    epsilon: float

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(
            heads=self.heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            key_heads=self.heads,
            gates=2 * self.heads,
        )

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        # A row is normalized as one, and no part sums its squares over ranks.
        return {"norm over all heads of lightning attention": 1}

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        ranks, start = workshop.ranks, f"{start}self_attn."
        weights, hidden, parts = workshop.weights, workshop.hidden, workshop.parts
        width, heads = self.heads * self.head_dim, self.heads // ranks
        qkv = weights.outputs({f"{start}qkv_proj.weight": 3 * width}, hidden)
        # Of each head the file has its query, its key and its value; the sum takes values first.
        by_kind_order = by_kind(heads, (self.head_dim,) * 3).reshape(3, -1)[::-1].reshape(-1)
        to_vkq = parts.linear(qkv.reordered(by_kind_order))
        to_gates = parts.linear(weights.outputs({f"{start}output_gate.weight": width}, hidden))
        rule = DecaySum(
            heads=heads,
            groups=heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            rate=np.array(self.rates, np.float32),
        )
        recur = workshop.states.decay_sum(layer, rule)
        norm = parts.norm(weights.vector(f"{start}norm.weight", width), self.epsilon)
        back = weights.inputs(f"{start}out_proj.weight", hidden, width)
        project = parts.linear(back, reduce=True)
        raw = workshop.buffer("before the activation", 3 * width // ranks)
        vkq = workshop.buffer("values, keys and queries", 3 * width // ranks)
        gates = workshop.buffer("gates of the mixer", width // ranks)
        mixed = workshop.buffer("mixed", width // ranks)
        normed = workshop.buffer("normalized", width // ranks)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_vkq(x, raw, tokens)
            to_gates(x, gates, tokens)
            parts.activate(self.activation, raw, vkq, tokens)
            recur(step, vkq, (), mixed, tokens)
            norm(mixed, None, normed, tokens)
            parts.gate(normed, gates, tokens)
            project(normed, out, tokens)

        return mix
