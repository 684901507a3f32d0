"""Llama: grouped-query attention with rotary positions, a gated feed-forward layer, RMS norms.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), in the variants that
``LlamaForCausalLM`` of transformers knows.
"""

from collections.abc import Mapping
from typing import Any

from pyengine._core import CpuStep, CpuTensor
from pyengine.errors import ModelLoadError
from pyengine.model.attention.cpu import PagedAttention
from pyengine.model.layers import (
    Kernels,
    Linear,
    Ops,
    RmsNorm,
    Workspace,
    cpu_tensor,
    rotary_table,
)
from pyengine.model.loader import Checkpoint
from pyengine.model.runner import ModelInfo

LOGITS_BYTES = 64 << 20


class LlamaLayer:
    """One transformer layer."""

    def __init__(
        self,
        index: int,
        info: ModelInfo,
        config: Mapping[str, Any],
        weights: Checkpoint,
    ) -> None:
        prefix = f"model.layers.{index}."
        hidden, inner = info.hidden_size, int(config["intermediate_size"])
        heads, kv = info.num_heads * info.head_dim, info.num_kv_heads * info.head_dim
        epsilon = float(config.get("rms_norm_eps") or 1e-6)

        def linear(parts: dict[str, int], width: int, has_bias: bool) -> Linear:
            names, rows = [prefix + name for name in parts], tuple(parts.values())
            weight = weights.fused([f"{name}.weight" for name in names], rows, width)
            bias = weights.fused([f"{name}.bias" for name in names], rows) if has_bias else None
            return Linear(weight, bias)

        def norm(name: str) -> RmsNorm:
            weight = weights.tensor(f"{prefix}{name}.weight", (hidden,))
            return RmsNorm(weight.contiguous(), epsilon)

        attention_bias = bool(config.get("attention_bias"))
        mlp_bias = bool(config.get("mlp_bias"))
        qkv = {"self_attn.q_proj": heads, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        self.input_norm = norm("input_layernorm")
        self.qkv = linear(qkv, hidden, attention_bias)
        self.out = linear({"self_attn.o_proj": hidden}, heads, attention_bias)
        self.post_norm = norm("post_attention_layernorm")
        self.gate_up = linear({"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, mlp_bias)
        self.down = linear({"mlp.down_proj": hidden}, inner, mlp_bias)


class Llama:
    """Weights, KV cache and workspaces of a Llama. One thread at a time.

    Attributes:
        logits_rows: [rows, vocabulary], where :meth:`logits` writes.
        recordable: Whether a program can record it: all of it is done by the kernels.
    """

    def __init__(
        self, info: ModelInfo, config: Mapping[str, Any], weights: Checkpoint, kernels: Kernels
    ) -> None:
        """Load the weights and make the cache.

        Raises:
            ModelLoadError: config.json asks for what is not supported, or weights are missing.
        """
        _check(config)
        dtype, hidden = weights.dtype, info.hidden_size
        inner, heads = int(config["intermediate_size"]), info.num_heads * info.head_dim
        kv = info.num_kv_heads * info.head_dim
        embedding = (info.vocab_size, hidden)
        table = weights.tensor("model.embed_tokens.weight", embedding).contiguous()
        self._embedding = cpu_tensor(table)
        self._layers = [
            LlamaLayer(index, info, config, weights) for index in range(info.num_layers)
        ]
        norm = weights.tensor("model.norm.weight", (hidden,)).contiguous()
        self._norm = RmsNorm(norm, float(config.get("rms_norm_eps") or 1e-6))
        tied = bool(config.get("tie_word_embeddings"))
        head = table if tied else weights.tensor("lm_head.weight", embedding)
        self._head = Linear(head)
        self.recordable = self._head.recordable
        self._attention = PagedAttention(
            info, kernels, dtype, rotary_table(config, info.head_dim, info.max_context)
        )
        tokens = kernels.max_tokens
        self._residual = Workspace(tokens, hidden, dtype)
        self._branch = Workspace(tokens, hidden, dtype)
        self._normed = Workspace(tokens, hidden, dtype)
        self._qkv = Workspace(tokens, heads + 2 * kv, dtype)
        self._attended = Workspace(tokens, heads, dtype)
        self._gate_up = Workspace(tokens, 2 * inner, dtype)
        self._inner = Workspace(tokens, inner, dtype)
        rows = max(1, min(kernels.max_sampled, LOGITS_BYTES // (info.vocab_size * dtype.itemsize)))
        self._last_residual = Workspace(rows, hidden, dtype)
        self._last_branch = Workspace(rows, hidden, dtype)
        self._last_normed = Workspace(rows, hidden, dtype)
        self.logits_rows = Workspace(rows, info.vocab_size, dtype)

    def forward(self, on: Ops, step: CpuStep, token_ids: CpuTensor, tokens: int) -> None:
        """Compute the tokens of a step, int32 [tokens], and store their keys and values."""
        on.gather(self._embedding, token_ids, self._residual.kernel, tokens)
        before = None
        for index, layer in enumerate(self._layers):
            layer.input_norm(on, self._residual, before, self._normed, tokens)
            layer.qkv(on, self._normed, self._qkv, tokens)  # [tokens, (heads + 2 * kv heads) * dim]
            self._attention(on, index, step, self._qkv, self._attended)
            layer.out(on, self._attended, self._branch, tokens)
            layer.post_norm(on, self._residual, self._branch, self._normed, tokens)
            layer.gate_up(on, self._normed, self._gate_up, tokens)  # [tokens, 2 * intermediate]
            on.silu_mul(self._gate_up.kernel, self._inner.kernel, tokens)
            layer.down(on, self._inner, self._branch, tokens)
            before = self._branch

    def logits(self, on: Ops, last: CpuTensor, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``last[first : first + rows]`` of the step, in ``logits_rows``.

        Args:
            on: The kernels, or a program.
            last: int32, indices into the step's tokens.
            rows: At most as many as ``logits_rows`` has.
            first: Where they begin.
        """
        on.gather(self._residual.kernel, last, self._last_residual.kernel, rows, first)
        on.gather(self._branch.kernel, last, self._last_branch.kernel, rows, first)
        self._norm(on, self._last_residual, self._last_branch, self._last_normed, rows)
        self._head(on, self._last_normed, self.logits_rows, rows)


def _check(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"activation {activation!r} is not supported; Llama has 'silu'")
    if config.get("quantization_config"):
        raise ModelLoadError("quantized weights are not supported")
    inner = config.get("intermediate_size")
    if not isinstance(inner, int) or inner < 1:
        raise ModelLoadError(f"config.json: 'intermediate_size' must be positive, not {inner!r}")
