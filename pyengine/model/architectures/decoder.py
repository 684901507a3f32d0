"""The decoder that most architectures are: grouped-query attention with rotary positions, a gated
feed-forward layer, RMS norms before both::

    x ─┬─ norm ─ qkv ─ attention ─ out ─ + ─┬─ norm ─ gate, up ─ silu(gate) * up ─ down ─ + ─►
       └────────────────────────────────┘   └─────────────────────────────────────────┘

An architecture says by its :class:`Projections` what its layers are made of; the forward pass is
the same for all. With several ranks each has a share of the heads, of the feed-forward layer's
width and of the vocabulary; widths of buffers are those of one rank.
"""

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.architectures.parts import Norm, Parts, Step, logits_rows
from pyengine.model.architectures.projections import Projections, refuse
from pyengine.model.runner import ModelInfo


class DecoderLayer:
    """One transformer layer."""

    def __init__(self, index: int, made: Projections) -> None:
        layer = f"model.layers.{index}."
        self.input_norm = made.norm(f"{layer}input_layernorm")
        self.qkv = made.qkv(f"{layer}self_attn.")
        self.out = made.out(f"{layer}self_attn.")
        self.post_norm = made.norm(f"{layer}post_attention_layernorm")
        self.gate_up = made.gate_up(f"{layer}mlp.")
        self.down = made.down(f"{layer}mlp.")


class Decoder:
    """Weights, KV cache and buffers of a decoder. One thread at a time.

    Attributes:
        logits_rows: [rows, vocabulary], where :meth:`logits` writes.
    """

    def __init__(self, made: Projections) -> None:
        """Load the weights and make the cache.

        Raises:
            ModelLoadError: config.json asks for what is not supported, or weights are missing.
            ConfigError: The model cannot be divided among the ranks.
        """
        info, config, weights, parts = made.info, made.config, made.weights, made.parts
        _check(made)
        self._parts = parts
        table = weights.table("model.embed_tokens.weight", info.vocab_size, info.hidden_size)
        self._embedding = parts.table(table)
        self._layers = [DecoderLayer(index, made) for index in range(info.num_layers)]
        self._norm: Norm = made.norm("model.norm")
        if config.get("tie_word_embeddings"):
            head = weights.rows_of(table)
        else:
            head = weights.outputs({"lm_head.weight": info.vocab_size}, info.hidden_size)
        self._head = parts.head(head, info)
        self._attention = parts.attention(info, made.attention())
        self._make_buffers(parts, info, made.inner // parts.ranks)

    def _make_buffers(self, parts: Parts, info: ModelInfo, inner: int) -> None:
        heads = info.num_heads * info.head_dim // parts.ranks
        kv = info.num_kv_heads * info.head_dim // parts.ranks
        tokens, rows, hidden = parts.max_tokens, logits_rows(parts, info), info.hidden_size
        self._residual = parts.buffer(tokens, hidden)
        self._branch = parts.buffer(tokens, hidden)
        self._normed = parts.buffer(tokens, hidden)
        self._qkv = parts.buffer(tokens, heads + 2 * kv)
        self._attended = parts.buffer(tokens, heads)
        self._gate_up = parts.buffer(tokens, 2 * inner)
        self._inner = parts.buffer(tokens, inner)
        self._last_residual = parts.buffer(rows, hidden)
        self._last_branch = parts.buffer(rows, hidden)
        self._last_normed = parts.buffer(rows, hidden)
        self.logits_rows = parts.buffer(rows, info.vocab_size)

    def forward(self, step: Step, tokens: int) -> None:
        """Compute the first ``tokens`` tokens of a step, and store their keys and values."""
        self._embedding(step.token_ids, self._residual, tokens)
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


def _check(made: Projections) -> None:
    config, info, ranks = made.config, made.info, made.parts.ranks
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"activation {activation!r} is not supported; there is: silu")
    # Qwen2.5 of a million tokens, and models that also see.
    refuse(config, "dual_chunk_attention_config", "use_mrope")
    for name, count in (("kv heads", info.num_kv_heads), ("feed-forward units", made.inner)):
        if count % ranks:
            raise ConfigError(
                f"{count} {name} of {info.name} cannot be divided by {ranks} ranks; "
                "'tensor_parallel' must be a divisor",
                param="tensor_parallel",
            )
