"""Llama: grouped-query attention with rotary positions, a gated feed-forward layer, RMS norms.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), in the variants that
``LlamaForCausalLM`` of transformers knows. With several ranks each has a share of the heads, of the
feed-forward layer's width and of the vocabulary; widths below are those of one rank.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.layers import Linear, Norm, Parts, Step, logits_rows, rotary_table
from pyengine.model.runner import ModelInfo
from pyengine.model.weights import Weights


class LlamaLayer:
    """One transformer layer."""

    def __init__(
        self,
        index: int,
        info: ModelInfo,
        config: Mapping[str, Any],
        weights: Weights,
        parts: Parts,
    ) -> None:
        prefix = f"model.layers.{index}."
        hidden, inner = info.hidden_size, int(config["intermediate_size"])
        heads, kv = info.num_heads * info.head_dim, info.num_kv_heads * info.head_dim

        def linear(outputs: dict[str, int], width: int, has_bias: bool) -> Linear:
            weight = weights.outputs(_named(prefix, outputs, "weight"), width)
            bias = weights.outputs(_named(prefix, outputs, "bias")) if has_bias else None
            return parts.linear(weight, bias)

        def reducing(name: str, width: int, has_bias: bool) -> Linear:
            weight = weights.inputs(f"{prefix}{name}.weight", hidden, width)
            bias = weights.whole(f"{prefix}{name}.bias", hidden) if has_bias else None
            return parts.linear(weight, bias, reduce=True)

        def norm(name: str) -> Norm:
            return parts.norm(weights.whole(f"{prefix}{name}.weight", hidden), _epsilon(config))

        attention_bias = bool(config.get("attention_bias"))
        mlp_bias = bool(config.get("mlp_bias"))
        qkv = {"self_attn.q_proj": heads, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        self.input_norm = norm("input_layernorm")
        self.qkv = linear(qkv, hidden, attention_bias)
        self.out = reducing("self_attn.o_proj", heads, attention_bias)
        self.post_norm = norm("post_attention_layernorm")
        self.gate_up = linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, mlp_bias)
        self.down = reducing("mlp.down_proj", inner, mlp_bias)


class Llama:
    """Weights, KV cache and buffers of a Llama. One thread at a time.

    Attributes:
        logits_rows: [rows, vocabulary], where :meth:`logits` writes.
    """

    def __init__(
        self, info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts
    ) -> None:
        """Load the weights and make the cache.

        Raises:
            ModelLoadError: config.json asks for what is not supported, or weights are missing.
            ConfigError: The model cannot be divided among the ranks.
        """
        _check(config, info, parts.ranks)
        hidden, inner = info.hidden_size, int(config["intermediate_size"]) // parts.ranks
        heads = info.num_heads * info.head_dim // parts.ranks
        kv = info.num_kv_heads * info.head_dim // parts.ranks
        table = weights.whole("model.embed_tokens.weight", info.vocab_size, hidden)
        self._parts = parts
        self._embedding = parts.table(table)
        self._layers = [
            LlamaLayer(index, info, config, weights, parts) for index in range(info.num_layers)
        ]
        self._norm = parts.norm(weights.whole("model.norm.weight", hidden), _epsilon(config))
        if config.get("tie_word_embeddings"):
            head = weights.rows_of(table)
        else:
            head = weights.outputs({"lm_head.weight": info.vocab_size}, hidden)
        self._head = parts.head(head, info)
        self._attention = parts.attention(
            info, rotary_table(config, info.head_dim, info.max_context)
        )
        tokens = parts.max_tokens
        self._residual = parts.buffer(tokens, hidden)
        self._branch = parts.buffer(tokens, hidden)
        self._normed = parts.buffer(tokens, hidden)
        self._qkv = parts.buffer(tokens, heads + 2 * kv)
        self._attended = parts.buffer(tokens, heads)
        self._gate_up = parts.buffer(tokens, 2 * inner)
        self._inner = parts.buffer(tokens, inner)
        rows = logits_rows(parts, info)
        self._last_residual = parts.buffer(rows, hidden)
        self._last_branch = parts.buffer(rows, hidden)
        self._last_normed = parts.buffer(rows, hidden)
        self.logits_rows = parts.buffer(rows, info.vocab_size)

    def forward(self, step: Step, tokens: int) -> None:
        """Compute the first ``tokens`` tokens of a step, and store their keys and values."""
        self._parts.gather(self._embedding, step.token_ids, self._residual, tokens)
        before = None
        for index, layer in enumerate(self._layers):
            layer.input_norm(self._residual, before, self._normed, tokens)
            layer.qkv(self._normed, self._qkv, tokens)  # [tokens, (heads + 2 * kv heads) * dim]
            self._attention(index, step, self._qkv, self._attended, tokens)
            layer.out(self._attended, self._branch, tokens)
            layer.post_norm(self._residual, self._branch, self._normed, tokens)
            layer.gate_up(self._normed, self._gate_up, tokens)  # [tokens, 2 * intermediate]
            self._parts.silu_mul(self._gate_up, self._inner, tokens)
            layer.down(self._inner, self._branch, tokens)
            before = self._branch

    def logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``logit_token[first : first + rows]``, in ``logits_rows``."""
        parts = self._parts
        parts.gather(self._residual, step.logit_token, self._last_residual, rows, first)
        parts.gather(self._branch, step.logit_token, self._last_branch, rows, first)
        self._norm(self._last_residual, self._last_branch, self._last_normed, rows)
        self._head(self._last_normed, self.logits_rows, rows)


def _named(prefix: str, rows: Mapping[str, int], kind: str) -> dict[str, int]:
    return {f"{prefix}{name}.{kind}": count for name, count in rows.items()}


def _epsilon(config: Mapping[str, Any]) -> float:
    return float(config.get("rms_norm_eps") or 1e-6)


def _check(config: Mapping[str, Any], info: ModelInfo, ranks: int) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"activation {activation!r} is not supported; Llama has 'silu'")
    if config.get("quantization_config"):
        raise ModelLoadError("quantized weights are not supported")
    inner = config.get("intermediate_size")
    if not isinstance(inner, int) or inner < 1:
        raise ModelLoadError(f"config.json: 'intermediate_size' must be positive, not {inner!r}")
    for name, count in (("kv heads", info.num_kv_heads), ("feed-forward units", inner)):
        if count % ranks:
            raise ConfigError(
                f"{count} {name} of {info.name} cannot be divided by {ranks} ranks; "
                "'tensor_parallel' must be a divisor",
                param="tensor_parallel",
            )
