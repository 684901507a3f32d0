"""The linear layers and norms of a decoder, made of its weights by its traits.

A rank has a share of each: of the outputs of ``qkv`` and ``gate_up``, of the inputs of ``out`` and
``down``.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.expert_weights import expert_weights
from pyengine.model.architectures.heads import Order, head_order, rows_order
from pyengine.model.architectures.parts import (
    Experts,
    HeadNorm,
    LayerAttention,
    Linear,
    Norm,
    Parts,
)
from pyengine.model.architectures.reading import whole_heads
from pyengine.model.architectures.rotary import rotary_table, rotated_elements, still
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class Projections:
    """Makes the linear layers and norms of a decoder, each from its weights. One thread at a time.

    Attributes:
        info: The model's dimensions and data types.
        config: Its config.json.
        weights: Those of the parts' rank.
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
        self.rotary = traits.rotary or (whole_heads(config),) * info.num_layers

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer, over all ranks.

        Raises:
            ModelLoadError: config.json does not say.
        """
        inner = self.config.get("intermediate_size")
        if not isinstance(inner, int) or inner < 1:
            raise ModelLoadError(
                f"config.json: 'intermediate_size' must be positive, not {inner!r}"
            )
        return inner

    def attention(self) -> list[LayerAttention]:
        """How each layer attends."""
        dim, context = self.info.head_dim, self.info.max_context
        tables: dict[str, NDArray[np.float32]] = {}
        scale = self.traits.attention_scale or dim**-0.5
        layers = []
        for index, (rotary, window) in enumerate(zip(self.rotary, self.info.windows, strict=True)):
            key = json.dumps(rotary, sort_keys=True)
            if key not in tables:
                tables[key] = (
                    still(context, dim)
                    if rotary is None
                    else rotary_table(self.config, dim, context, rotary)
                )
            layers.append(
                LayerAttention(
                    angles=tables[key],
                    scale=scale,
                    window=window,
                    soft_cap=self.traits.attention_cap,
                    sinks=self.sinks(index),
                )
            )
        return layers

    def norm(self, name: str | None) -> Norm:
        """The norm called ``name``, of hidden states; None: what only adds."""
        if name is None:
            return self.parts.no_norm()
        traits, width = self.traits, self.info.hidden_size
        weight = self._norm_weight(self.weights.vector(f"{name}.weight", width))
        if not traits.layer_norm:
            return self.parts.norm(weight, traits.epsilon)
        bias = self.weights.vector(f"{name}.bias", width) if traits.norm_bias else None
        return self.parts.layer_norm(weight, bias, traits.epsilon)

    def qkv(self, layer: int, attention: str) -> Linear:
        """From hidden states to queries, keys and values; ``attention`` begins the names."""
        names, info = self.traits.names.qkv, self.info
        queries, kv = info.num_heads * info.head_dim, info.num_kv_heads * info.head_dim
        widths = (queries, kv, kv)
        order = self._order(layer)
        if len(names) == 1:
            name = f"{attention}{names[0]}"
            weight = self.weights.fused(f"{name}.weight", widths, info.hidden_size)
            bias = (
                self.weights.fused_vector(f"{name}.bias", widths) if self.traits.qkv_bias else None
            )
        else:
            rows = {f"{attention}{name}": w for name, w in zip(names, widths, strict=True)}
            weight, bias = self._outputs(rows, has_bias=self.traits.qkv_bias)
        if order is not None:
            ranks, dim = self.parts.ranks, info.head_dim
            heads = (info.num_heads + info.num_kv_heads) // ranks
            rows_in_order = rows_order(order, heads, info.num_kv_heads // ranks * dim)
            weight = weight.reordered(rows_in_order)
            bias = None if bias is None else bias[rows_in_order]
        return self.parts.linear(weight, bias)

    def qk_norm(self, layer: int, attention: str) -> HeadNorm:
        """Of queries and keys."""
        info, names, order = self.info, self.traits.names, self._order(layer)
        whole = self.traits.qk_norm == "all"

        def weight(name: str, heads: int) -> NDArray[Any]:
            name = f"{attention}{name}.weight"
            if not whole:
                vector, count = self.weights.vector(name, info.head_dim), 1
            else:
                vector = self.weights.vectors({name: heads * info.head_dim})
                count = heads // self.parts.ranks
            vector = self._norm_weight(vector)
            return vector if order is None else vector[rows_order(order, count, 0)]

        query = weight(names.query_norm, info.num_heads)
        key = weight(names.key_norm, info.num_kv_heads)
        return self.parts.head_norm(query, key, self.traits.epsilon, info, whole=whole)

    def out(self, attention: str) -> Linear:
        """From attention's output to hidden states."""
        width = self.info.num_heads * self.info.head_dim
        return self._inputs(f"{attention}{self.traits.names.out}", width, self.traits.out_bias)

    def gate_up(self, mlp: str, inner: int) -> Linear:
        """From hidden states to gates, then ups, ``inner`` of each over all ranks."""
        names, hidden = self.traits.names.gate_up, self.info.hidden_size
        has_bias = self.traits.mlp_bias
        if len(names) == 1 and self.traits.gated:
            name = f"{mlp}{names[0]}"
            weight = self.weights.fused(f"{name}.weight", (inner, inner), hidden)
            widths = (inner, inner)
            bias = self.weights.fused_vector(f"{name}.bias", widths) if has_bias else None
        else:
            rows = {f"{mlp}{name}": inner for name in names}
            weight, bias = self._outputs(rows, has_bias=has_bias)
        return self.parts.linear(weight, bias)

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

    def experts(self, mlp: str, mixture: Mixture) -> Experts:
        """The feed-forward layers of all experts."""
        weights = expert_weights(self.weights, mlp, mixture, self.info.hidden_size)
        bias = mixture.bias
        return self.parts.experts(
            mixture.routing,
            weights,
            self.traits.activation,
            None if bias is None else self.weights.vector(f"{mlp}{bias}", mixture.count),
        )

    def _norm_weight(self, weight: NDArray[Any]) -> NDArray[Any]:
        offset = self.traits.norm_offset
        return weight.astype(np.float32) + np.float32(offset) if offset else weight

    def _order(self, layer: int) -> Order | None:
        rotary, dim = self.rotary[layer], self.info.head_dim
        rotated = 0 if rotary is None else rotated_elements(rotary, dim)
        interleaved = self.traits.interleaved
        return head_order(dim, rotated, interleaved=interleaved)

    def _outputs(self, rows: Mapping[str, int], *, has_bias: bool) -> tuple[Any, Any]:
        def named(kind: str) -> dict[str, int]:
            return {f"{name}.{kind}": count for name, count in rows.items()}

        weight = self.weights.outputs(named("weight"), self.info.hidden_size)
        return weight, self.weights.vectors(named("bias")) if has_bias else None

    def _inputs(self, name: str, width: int, has_bias: bool) -> Linear:
        hidden = self.info.hidden_size
        weight = self.weights.inputs(f"{name}.weight", hidden, width)
        bias = self.weights.vector(f"{name}.bias", hidden) if has_bias else None
        return self.parts.linear(weight, bias, reduce=True)
