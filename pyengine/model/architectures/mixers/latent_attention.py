"""Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient
Mixture-of-Experts Language Model", 2024)::

    x ─┬─ linear ─ norm ─ linear ─ queries ─ absorbed ─┐
       │  (or one linear layer)                        ├─ attention ─ values ─ linear ─►
       └─ linear ─ latent, rotated key ────────────────┘

The file's ``kv_b_proj`` makes each head's keys and values of a latent. Its part for keys is
transposed here, for queries go through it the other way, and is kept in floats: scales of quantized
weights are of neighbouring inputs, which are outputs now. Its part for values stays as the file has
it, quantized perhaps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.blocks import Block, OutputGates
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.heads import Order, by_kind, head_order
from pyengine.model.architectures.latent_parts import LatentHeads
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Linear, Norm, Step
from pyengine.model.architectures.temperatures import Temperatures
from pyengine.model.cache_layers import Latent
from pyengine.model.weights.matrix import Matrix


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        heads: Query heads.
        query_rank: Numbers of what queries are made of; None: they are made of hidden states.
        rank: Numbers of a latent.
        plain: Elements of a query that are not rotated.
        rotated: Elements that are, and those of the key that all heads share.
        value_dim: Elements of a head's value.
        scale: Multiplies the scores.
        latent_scale: Multiplies latents behind their norm.
        interleaved: Rotation turns neighbouring elements, not those half of ``rotated`` apart.
        bias: Whether what makes latents and what follows attention have a bias, and so has what
            queries are made of.
        epsilon: The epsilon of the norms within.
        temperatures: The temperatures of queries by position; None: none.
        start: What the names of its weights begin with.
        out: The name of the output's layer.
        gate: The layer whose sigmoids multiply each head's values; None: there is none.
    """

    heads: int
    query_rank: int | None
    rank: int
    plain: int
    rotated: int
    value_dim: int
    scale: float
    latent_scale: float = 1.0
    interleaved: bool = True
    bias: bool = False
    epsilon: float = 1e-6
    temperatures: Temperatures | None = None
    start: str = "self_attn."
    out: str = "o_proj"
    gate: str | None = None

    @property
    def keeps(self) -> Latent:
        """See :class:`Mixer`."""
        return Latent(self.rank + self.rotated)

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"heads": self.heads}

    @property
    def _turned(self) -> Order:
        """The rotated elements in the kernels' order."""
        order = head_order(self.rotated, self.rotated, interleaved=self.interleaved)
        return np.arange(self.rotated) if order is None else order

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        start, parts, weights = f"{start}{self.start}", workshop.parts, workshop.weights
        heads, hidden = self.heads // workshop.ranks, workshop.hidden
        low, to_queries = self._queries(workshop, start, heads)
        to_latents = self._latents(workshop, start)
        for_keys, for_values = self._heads(workshop, start, heads)
        absorb, to_values = parts.linear_by_head(for_keys), parts.linear_by_head(for_values)
        attend = workshop.latents.attention(layer, self._attention(workshop, layer, start, heads))
        gates: tuple[OutputGates, ...] = ()
        if self.gate is not None:
            gate = weights.outputs({f"{start}{self.gate}.weight": self.heads}, hidden)
            gates = (OutputGates(parts.linear(gate), parts, workshop.buffer("gates", heads)),)
        width, column = self.heads * self.value_dim, heads * self.plain
        back = weights.inputs(f"{start}{self.out}.weight", hidden, width)
        bias = weights.vector(f"{start}{self.out}.bias", hidden) if self.bias else None
        project = parts.linear(back, bias, reduce=True)
        queries = workshop.buffer("queries", heads * (self.plain + self.rotated))
        latents = workshop.buffer("latents and rotated keys", self.rank + self.rotated)
        absorbed = workshop.buffer("absorbed queries", heads * self.rank)
        attended = workshop.buffer("attended latents", heads * self.rank)
        values = workshop.buffer("attended values", width // workshop.ranks)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_queries(x if low is None else low(x, tokens), queries, tokens)
            to_latents(x, latents, tokens)
            absorb(queries, absorbed, tokens)
            attend(step, absorbed, queries, column, latents, attended, tokens)
            to_values(attended, values, tokens)
            for gate in gates:
                gate(x, values, tokens)
            project(values, out, tokens)

        return mix

    def _attention(self, workshop: Workshop, layer: int, start: str, heads: int) -> LatentHeads:
        norm = workshop.weights.vector(f"{start}kv_a_layernorm.weight", self.rank)
        context = workshop.info.max_context
        return LatentHeads(
            heads=heads,
            rank=self.rank,
            rotated=self.rotated,
            norm=norm if self.latent_scale == 1 else norm.astype(np.float32) * self.latent_scale,
            epsilon=self.epsilon,
            angles=workshop.angles(layer, self.rotated),
            scale=self.scale,
            temperatures=None if self.temperatures is None else self.temperatures.table(context),
        )

    def _queries(
        self, workshop: Workshop, start: str, heads: int
    ) -> tuple["LowQueries | None", Linear]:
        """What queries are made of, and the queries: first what is not rotated, of all heads."""
        weights, parts, rank = workshop.weights, workshop.parts, self.query_rank
        rows = self.heads * (self.plain + self.rotated)
        low, name, inputs = None, "q_proj", workshop.hidden
        if rank is not None:
            name, inputs = "q_b_proj", rank
            low = LowQueries(
                self._whole(workshop, f"{start}q_a_proj", rank, np.arange(rank)),
                parts.norm(weights.vector(f"{start}q_a_layernorm.weight", rank), self.epsilon),
                workshop.buffer("what queries are made of", rank),
                workshop.buffer("what queries are made of, normalized", rank),
            )
        order = by_kind(heads, (self.plain, self.rotated))
        turning = order[heads * self.plain :].reshape(heads, self.rotated)[:, self._turned]
        order = np.concatenate((order[: heads * self.plain], turning.reshape(-1)))
        weight = weights.outputs({f"{start}{name}.weight": rows}, inputs)
        return low, parts.linear(weight.reordered(order))

    def _latents(self, workshop: Workshop, start: str) -> Linear:
        order = np.concatenate((np.arange(self.rank), self.rank + self._turned))
        return self._whole(workshop, f"{start}kv_a_proj_with_mqa", len(order), order)

    def _whole(self, workshop: Workshop, name: str, outputs: int, order: Order) -> Linear:
        """A layer that every rank has as a whole, with its outputs in another order."""
        weights = workshop.weights
        weight = weights.table(f"{name}.weight", outputs, workshop.hidden).reordered(order)
        bias: NDArray[np.generic] | None = None
        if self.bias:
            bias = weights.vector(f"{name}.bias", outputs)[order]
        return workshop.parts.linear(weight, bias)

    def _heads(
        self, workshop: Workshop, start: str, heads: int
    ) -> tuple[list[Matrix], list[Matrix]]:
        """Of each head, what queries go through, and what makes values of latents."""
        rows = self.heads * (self.plain + self.value_dim)
        weight = workshop.weights.outputs({f"{start}kv_b_proj.weight": rows}, self.rank)
        both = weight.split([self.plain, self.value_dim] * heads)
        return [each.transposed() for each in both[0::2]], both[1::2]


@dataclass(frozen=True)
class LowQueries:
    """What queries are made of. Its buffers are shared by all layers."""

    linear: Linear
    norm: Norm
    raw: Buffer
    normed: Buffer

    def __call__(self, x: Buffer, tokens: int) -> Buffer:
        """[tokens, hidden] -> ``normed`` [tokens, rank], which is returned."""
        self.linear(x, self.raw, tokens)
        self.norm(self.raw, None, self.normed, tokens)
        return self.normed
