"""The linear layers and norms of a decoder, made of its weights by its traits.

A rank has a share of each: of the outputs of ``qkv`` and ``gate_up``, of the inputs of ``out`` and
``down``.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.cache_scales import CacheScales, cache_scales
from pyengine.model.architectures.expert_weights import expert_weights
from pyengine.model.architectures.heads import (
    Order,
    by_kind,
    head_order,
    rows_order,
)
from pyengine.model.architectures.parts import (
    Activation,
    Experts,
    HeadNorm,
    LayerAttention,
    Linear,
    Norm,
    Parts,
    Rotation,
)
from pyengine.model.architectures.reading import count, whole_heads
from pyengine.model.architectures.rotary import rotary_table, rotated_elements, still
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.sharding import Weights


class Projections:
    """Makes the linear layers and norms of a decoder, each from its weights. One thread at a time.

    Attributes:
        info: The model's dimensions and data types.
        config: Its config.json.
        weights: The weights of the parts' rank.
        parts: The parts of the device.
        traits: What sets the model apart.
        rotary: The rotary parameters of each layer; None for one without positions.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: Mapping[str, Any],
        weights: Weights,
        parts: Parts,
        traits: Traits,
    ) -> None:
        self.info = info
        self.config = config
        self.weights = weights
        self.parts = parts
        self.traits = traits
        self.rotary = traits.rotary or (whole_heads(config),) * len(info.layers)
        self._tables: dict[str, NDArray[np.float32]] = {}

    def inner(self, layer: int) -> int:
        """Width of a layer's dense feed-forward layer, over all ranks.

        Raises:
            ModelLoadError: config.json does not say.
        """
        return (
            self.traits.inner[layer]
            if self.traits.inner
            else count(self.config, "intermediate_size")
        )

    def attention(self) -> dict[int, LayerAttention]:
        """How each layer attends that does."""
        traits, context = self.traits, self.info.max_context
        layers = {}
        for index, keys in self.info.attention_layers.items():
            rotary, dim = self.rotary[index], keys.head_dim
            temperatures = traits.temperatures[index] if traits.temperatures else None
            scales = self._cache_scales(index)
            layers[index] = LayerAttention(
                angles=self._angles(dim, None if traits.qk_norm_behind else rotary),
                scale=traits.attention_scale or dim**-0.5,
                window=keys.window,
                chunk=keys.chunk,
                soft_cap=traits.attention_cap,
                sinks=self.sinks(index),
                temperatures=None if temperatures is None else temperatures.table(context),
                key_scale=scales.keys,
                value_scale=scales.values,
            )
        return layers

    def _cache_scales(self, layer: int) -> CacheScales:
        """The scales of a layer's keys and values, which may be another layer's."""
        info, names = self.info, self.traits.names
        if not info.kv_cache_dtype.startswith("float8"):
            return CacheScales()
        reads = info.attention_layers[layer].reads
        cache = f"{names.layer.format(layer if reads is None else reads)}{names.attention}"
        return cache_scales(self.weights, self.config, cache)

    def angles(self, layer: int, elements: int) -> NDArray[np.float32]:
        """The rotary table of a layer, [positions, elements]: see :attr:`LayerAttention.angles`."""
        return self._angles(elements, self.rotary[layer])

    def _angles(self, dim: int, rotary: Mapping[str, Any] | None) -> NDArray[np.float32]:
        """Angles of all positions, after the angles of short sequences where those differ.

        The same array for the same rotation; None: nothing is rotated.
        """
        key = json.dumps((rotary, dim), sort_keys=True)
        if key not in self._tables:
            lengths = [self.info.short_context, self.info.max_context]
            self._tables[key] = np.concatenate(
                [
                    still(each, dim)
                    if rotary is None
                    else rotary_table(self.config, dim, each, rotary)
                    for each in lengths
                    if each is not None
                ]
            )
        return self._tables[key]

    def rotations(self, layer: int) -> tuple[Rotation, ...]:
        """Rotations of queries and keys before their norms; none where attention rotates them."""
        rotary, heads = self.rotary[layer], self.info.attention_layers[layer]
        if rotary is None or not self.traits.qk_norm_behind:
            return ()
        count = (self.info.num_heads + heads.kv_heads) // self.parts.ranks
        return (self.parts.rotation(self._angles(heads.head_dim, rotary), count),)

    def norm(self, name: str | None) -> Norm:
        """The norm called ``name``, of hidden states; None: what only adds."""
        if name is None:
            return self.parts.no_norm()
        traits, width = self.traits, self.info.hidden_size
        if traits.norm_weight:
            weight = self._norm_weight(self.weights.vector(f"{name}.weight", width))
        else:
            weight = np.ones(width, np.float32)
        if not traits.layer_norm:
            return self.parts.norm(weight, traits.epsilon)
        bias = self.weights.vector(f"{name}.bias", width) if traits.norm_bias else None
        return self.parts.layer_norm(weight, bias, traits.epsilon)

    def qkv(self, layer: int, attention: str) -> tuple[Linear, tuple[Linear, ...]]:
        """From hidden states to queries, keys and values; ``attention`` begins the names. And to
        the gates of attention's output: one layer, or none.

        To queries alone where the layer reads another one's keys and values.
        """
        names, info, heads = self.traits.names.qkv, self.info, self.info.attention_layers[layer]
        has_bias, gates = self.traits.qkv_bias, self.traits.attention_gates
        gated = gates is not None and gates.name is None
        queries, kv = info.num_heads * heads.head_dim, heads.size
        if self.traits.qkv_by_head:
            weight, bias = self._outputs(
                {f"{attention}{names[0]}": queries + 2 * kv}, has_bias=has_bias
            )
            groups = heads.kv_heads // self.parts.ranks
            own = queries // heads.kv_heads, heads.head_dim, heads.head_dim
            apart = by_kind(groups, own)
            weight = weight.reordered(apart)
            bias = None if bias is None else bias[apart]
        elif len(names) == 1:
            name, widths = f"{attention}{names[0]}", (queries, kv, kv)
            weight = self.weights.fused(self._weight(name), widths, info.hidden_size)
            bias = self.weights.fused_vector(f"{name}.bias", widths) if has_bias else None
        else:
            query, key, value = (f"{attention}{name}" for name in names)
            rows = {query: queries * (2 if gated else 1)}
            if kv:
                rows |= {key: kv}
            if kv and layer not in self.traits.keys_are_values:
                rows |= {value: kv}
            weight, bias = self._outputs(rows, has_bias=has_bias)
            if kv and layer in self.traits.keys_are_values:
                shared = kv // self.parts.ranks
                weight = weight.repeating_last(shared)
                bias = None if bias is None else np.concatenate((bias, bias[-shared:]))
        to_gates: tuple[Linear, ...] = ()
        if gated:
            weight, bias, to_gates = self._without_gates(weight, bias, queries, heads.head_dim)
        elif gates is not None:
            width = info.num_heads if gates.by_head else queries
            given, _ = self._outputs({f"{attention}{gates.name}": width}, has_bias=False)
            to_gates = (self.parts.linear(given),)
        order = self._order(layer)
        if order is not None:
            ranks, dim = self.parts.ranks, heads.head_dim
            count = (queries + kv) // dim // ranks
            rows_in_order = rows_order(order, count, kv // ranks)
            weight = weight.reordered(rows_in_order)
            bias = None if bias is None else bias[rows_in_order]
        return self.parts.linear(weight, bias), to_gates

    def _without_gates(
        self, weight: Matrix, bias: NDArray[Any] | None, queries: int, dim: int
    ) -> tuple[Matrix, NDArray[Any] | None, tuple[Linear, ...]]:
        """Weight and bias without the gates behind each head's queries, and the layer of those."""
        queries //= self.parts.ranks
        both, kv = weight.split([2 * queries, weight.shape[0] - 2 * queries])
        apart = by_kind(queries // dim, (dim, dim))
        own, gates = both.reordered(apart).split([queries, queries])
        if bias is None:
            return own.above(kv), None, (self.parts.linear(gates),)
        own_bias, gates_bias = bias[: 2 * queries][apart].reshape(2, queries)
        rest = np.concatenate((own_bias, bias[2 * queries :]))
        return own.above(kv), rest, (self.parts.linear(gates, gates_bias),)

    def qk_norm(self, layer: int, attention: str) -> tuple[HeadNorm, ...]:
        """The norms of queries and keys, and perhaps values; none where they are not normalized."""
        info, names, order = self.info, self.traits.names, self._order(layer)
        kind, layers = self.traits.qk_norm, self.traits.qk_norm_layers
        if kind is None or (layers is not None and layer not in layers):
            return ()
        heads, ranks = info.attention_layers[layer], self.parts.ranks

        def weight(name: str, count: int) -> NDArray[Any]:
            if kind == "plain":
                return np.ones(heads.head_dim, np.float32)
            name = f"{attention}{name}.weight"
            if kind == "head":
                vector, count = self.weights.vector(name, heads.head_dim), 1
            else:
                vector = self.weights.vectors({name: count * heads.head_dim})
                count //= ranks
            vector = self._norm_weight(vector)
            return vector if order is None else vector[rows_order(order, count, 0)]

        query = weight(names.query_norm, info.num_heads)
        key = query if heads.reads is not None else weight(names.key_norm, heads.kv_heads)
        norm = self.parts.head_norm(
            query,
            key,
            self.traits.epsilon,
            info.num_heads // ranks,
            whole=kind == "all",
            values=self.traits.v_norm and heads.reads is None,
        )
        return (norm,)

    def out(self, layer: int, attention: str) -> Linear:
        """From attention's output to hidden states."""
        width = self.info.num_heads * self.info.attention_layers[layer].head_dim
        return self._inputs(f"{attention}{self.traits.names.out}", width, self.traits.out_bias)

    def gate_up(self, mlp: str, inner: int) -> Linear:
        """From hidden states to gates, then ups, ``inner`` of each over all ranks."""
        names, hidden = self.traits.names.gate_up, self.info.hidden_size
        has_bias = self.traits.mlp_bias
        if len(names) == 1 and self.traits.gated:
            name = f"{mlp}{names[0]}"
            weight = self.weights.fused(self._weight(name), (inner, inner), hidden)
            widths = (inner, inner)
            bias = self.weights.fused_vector(f"{name}.bias", widths) if has_bias else None
        else:
            rows = {f"{mlp}{name}": inner for name in names}
            weight, bias = self._outputs(rows, has_bias=has_bias)
        return self.parts.linear(weight, bias)

    def activation(self, mlp: str) -> Activation:
        """The activation of a feed-forward layer, with weights of its own perhaps."""
        own = self.traits.activation
        if own.kind != "xielu":
            return own
        above, below, slope = (
            float(self.weights.vector(f"{mlp}act_fn.{name}[:]", 1)[0])
            for name in ("alpha_p", "alpha_n", "beta")
        )
        softplus = (math.log1p(math.exp(weight)) for weight in (above, below))
        positive, negative = softplus
        return replace(own, weights=(positive, slope + negative, slope))

    def down(self, mlp: str, inner: int) -> Linear:
        """From the feed-forward layer's width to hidden states."""
        return self._inputs(f"{mlp}{self.traits.names.down}", inner, self.traits.mlp_bias)

    def sinks(self, layer: int) -> NDArray[np.float32] | None:
        """The attention sinks of this rank's heads."""
        names = self.traits.names
        if names.sinks is None:
            return None
        name = f"{names.layer.format(layer)}{names.attention}{names.sinks}"
        return self.weights.vectors({name: self.info.num_heads}).astype(np.float32)

    def router(self, mlp: str, mixture: Mixture) -> Linear:
        """From hidden states to the logits of all experts, on every rank."""
        name, count = f"{mlp}{mixture.router}", mixture.count
        weight = self.weights.table(f"{name}.weight", count, self.info.hidden_size)
        bias = self.weights.vector(f"{name}.bias", count) if mixture.router_bias else None
        return self.parts.linear(weight, bias)

    def experts(self, layer: int, mlp: str, mixture: Mixture) -> Experts:
        """The feed-forward layers of all experts."""
        width = mixture.latents.width if mixture.latents else self.info.hidden_size
        divided = self.parts.expert_parallel
        weights = expert_weights(self.weights, mlp, mixture, width, divided=divided)
        return self.parts.experts(layer, mixture.routing, weights, self.traits.activation)

    def shared_gate(self, mlp: str, name: str) -> Linear:
        """From hidden states to the gate of the shared expert, on every rank."""
        return self.whole(f"{mlp}{name}", 1, self.info.hidden_size)

    def whole(self, name: str, outputs: int, inputs: int) -> Linear:
        """A linear layer that every rank has as a whole."""
        return self.parts.linear(self.weights.table(f"{name}.weight", outputs, inputs))

    def router_norm(self, name: str) -> Norm:
        """Norm of a router's input: its weight is ``name`` / sqrt(hidden)."""
        width = self.info.hidden_size
        weight = self.weights.vector(name, width).astype(np.float32) * np.float32(width**-0.5)
        return self.parts.norm(weight, self.traits.epsilon)

    def _weight(self, layer: str) -> str:
        """The name of a linear layer's weight; see :mod:`pyengine.model.weights.stacked`."""
        return f"{layer}.weight.T" if self.traits.names.transposed else f"{layer}.weight"

    def _norm_weight(self, weight: NDArray[Any]) -> NDArray[Any]:
        offset = self.traits.norm_offset
        return weight.astype(np.float32) + np.float32(offset) if offset else weight

    def _order(self, layer: int) -> Order | None:
        rotary, dim = self.rotary[layer], self.info.attention_layers[layer].head_dim
        rotated = 0 if rotary is None else rotated_elements(rotary, dim)
        interleaved = self.traits.interleaved
        return head_order(dim, rotated, interleaved=interleaved)

    def _outputs(self, rows: Mapping[str, int], *, has_bias: bool) -> tuple[Any, Any]:
        matrices = {self._weight(name): count for name, count in rows.items()}
        weight = self.weights.outputs(matrices, self.info.hidden_size)
        if not has_bias:
            return weight, None
        return weight, self.weights.vectors({f"{name}.bias": rows[name] for name in rows})

    def _inputs(self, name: str, width: int, has_bias: bool) -> Linear:
        hidden = self.info.hidden_size
        weight = self.weights.inputs(self._weight(name), hidden, width)
        bias = self.weights.vector(f"{name}.bias", hidden) if has_bias else None
        return self.parts.linear(weight, bias, reduce=True)
