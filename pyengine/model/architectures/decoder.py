"""The decoder that most architectures are: grouped-query attention with rotary positions, and a
feed-forward layer, each with norms before or after or both::

    x ─┬─ norm ─ attention ─ norm ─ + ─┬─ norm ─ feed-forward ─ norm ─ + ─►
       └────────────────────────────┘  └──────────────────────────────┘

    x ─┬─ norm ─┬─ attention ────── + ─ + ─►      parallel
       │        └─ feed-forward ────┘   │
       └────────────────────────────────┘

An architecture says by its :class:`Traits` what its layers are made of; the forward pass is the
same for all. With several ranks each has a share of the heads, of the feed-forward layer's width
and of the vocabulary; widths of buffers are those of one rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyengine.errors import ConfigError
from pyengine.model.architectures.blocks import (
    Adjusted,
    Adjustment,
    Block,
    ExpertLayer,
    FeedForward,
    NormedAfter,
    SelfAttention,
    Sum,
)
from pyengine.model.architectures.parts import Buffer, Norm, Parts, Step, logits_rows
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.reading import refuse
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


@dataclass(frozen=True)
class Stream:
    """The hidden states between layers, [tokens, hidden] each.

    Attributes:
        residual: The sum of what was added so far.
        branch: What the next norm adds first.
        normed: What a block reads.
        other: What a second block wrote, or one whose output is normalized yet.
    """

    residual: Buffer
    branch: Buffer
    normed: Buffer
    other: Buffer


class Layer:
    """Attention, then a feed-forward layer."""

    def __init__(self, norms: tuple[Norm, Norm], attention: Block, mlp: Block) -> None:
        self._before_attention, self._before_mlp = norms
        self._attention = attention
        self._mlp = mlp

    def __call__(self, step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        """Add ``branch`` and what attention gives; leave in ``stream.branch`` what comes then."""
        self._before_attention(stream.residual, branch, stream.normed, tokens)
        self._attention(step, stream.normed, stream.branch, tokens)
        self._before_mlp(stream.residual, stream.branch, stream.normed, tokens)
        self._mlp(step, stream.normed, stream.branch, tokens)


class ParallelLayer:
    """Attention and a feed-forward layer, both of the same norm's output."""

    def __init__(self, norm: Norm, add: Norm, attention: Block, mlp: Block) -> None:
        self._norm = norm
        self._add = add
        self._attention = attention
        self._mlp = mlp

    def __call__(self, step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        """As :meth:`Layer.__call__`."""
        self._norm(stream.residual, branch, stream.normed, tokens)
        self._attention(step, stream.normed, stream.other, tokens)
        self._mlp(step, stream.normed, stream.branch, tokens)
        self._add(stream.residual, stream.other, stream.normed, tokens)


class Decoder:
    """Weights, KV cache and buffers of a decoder. One thread at a time.

    Attributes:
        logits_rows: [rows, vocabulary], where :meth:`logits` writes.
        states_rows: [rows, hidden], where :meth:`states` writes.
    """

    def __init__(self, made: Projections) -> None:
        """Load the weights and make the cache.

        Raises:
            ModelLoadError: config.json asks for what is not supported, or weights are missing.
            ConfigError: The model cannot be divided among the ranks.
        """
        info, weights, parts, names = made.info, made.weights, made.parts, made.traits.names
        _check(made)
        self._parts = parts
        table = weights.table(f"{names.embedding}.weight", info.vocab_size, info.hidden_size)
        self._embedding = parts.table(table)
        tokens, rows, hidden = parts.max_tokens, logits_rows(parts, info), info.hidden_size
        self._stream = Stream(*(parts.buffer(tokens, hidden) for _ in range(4)))
        blocks = Blocks(made, self._stream)
        self._layers = [blocks.layer(index) for index in range(info.num_layers)]
        self._norm = made.norm(names.norm)
        if made.traits.tied:
            head = weights.rows_of(table)
        else:
            head = weights.outputs({f"{names.head}.weight": info.vocab_size}, hidden)
        self._head = parts.head(head, info)
        self._embedded = scaling(parts, made.traits.embedding_scale)
        self._normed_last = scaling(parts, made.traits.logits_scale)
        self._headed = capping(parts, made.traits.logits_cap)
        self._last_residual = parts.buffer(rows, hidden)
        self._last_branch = parts.buffer(rows, hidden)
        self.states_rows = parts.buffer(rows, hidden)
        self.logits_rows = parts.buffer(rows, info.vocab_size)

    def forward(self, step: Step, tokens: int) -> None:
        """Compute the first ``tokens`` tokens of a step, and store their keys and values."""
        stream = self._stream
        self._embedding(step.token_ids, stream.residual, tokens)
        for adjust in self._embedded:
            adjust(stream.residual, tokens)
        branch = None
        for layer in self._layers:
            layer(step, stream, branch, tokens)
            branch = stream.branch

    def logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``logit_token[first : first + rows]``, in ``logits_rows``."""
        self._last_states(step.logit_token, rows, first)
        for adjust in self._normed_last:
            adjust(self.states_rows, rows)
        self._head(self.states_rows, self.logits_rows, rows)
        for adjust in self._headed:
            adjust(self.logits_rows, rows)

    def states(self, step: Step, rows: int, first: int = 0) -> None:
        """Last hidden states of ``pool_token[first : first + rows]``, in ``states_rows``."""
        self._last_states(step.pool_token, rows, first)

    def _last_states(self, index: Any, rows: int, first: int) -> None:
        parts, stream = self._parts, self._stream
        parts.gather(stream.residual, index, self._last_residual, rows, first)
        parts.gather(stream.branch, index, self._last_branch, rows, first)
        self._norm(self._last_residual, self._last_branch, self.states_rows, rows)


class Blocks:
    """Makes the layers of a decoder, which share their buffers."""

    def __init__(self, made: Projections, stream: Stream) -> None:
        info, parts = made.info, made.parts
        self._made = made
        self._stream = stream
        heads = info.num_heads * info.head_dim // parts.ranks
        kv = info.num_kv_heads * info.head_dim // parts.ranks
        mixture = made.traits.mixture
        if mixture is not None:
            self._logits = parts.buffer(parts.max_tokens, mixture.count)
            self._shared = parts.buffer(parts.max_tokens, info.hidden_size)
            self._copy = parts.buffer(parts.max_tokens, info.hidden_size)
        self._qkv = parts.buffer(parts.max_tokens, heads + 2 * kv)
        self._attended = parts.buffer(parts.max_tokens, heads)
        self._widths: dict[int, tuple[Buffer, Buffer]] = {}
        self._attention = parts.attention(info, made.attention())

    def layer(self, index: int) -> Layer | ParallelLayer:
        """The layer of that number."""
        made, names = self._made, self._made.traits.names
        start = names.layer.format(index)

        def named(norm: str | None) -> str | None:
            return None if norm is None else f"{start}{norm}"

        first = made.norm(named(names.before_attention))
        attention = self._wrapped(self._self_attention(index, start), named(names.after_attention))
        if made.traits.parallel:
            mlp = self._wrapped(self._mlp(index, start), named(names.after_mlp))
            return ParallelLayer(first, made.parts.no_norm(), attention, mlp)
        second = made.norm(named(names.before_mlp))
        mlp = self._wrapped(self._mlp(index, start), named(names.after_mlp))
        return Layer((first, second), attention, mlp)

    def _self_attention(self, index: int, start: str) -> Block:
        made, prefix = self._made, f"{start}{self._made.traits.names.attention}"
        qkv = made.qkv(index, prefix)
        norms = (made.qk_norm(index, prefix),) if made.traits.qk_norm else ()
        out = made.out(prefix)
        return SelfAttention(index, qkv, norms, self._attention, out, self._qkv, self._attended)

    def _mlp(self, index: int, start: str) -> Block:
        mixture = self._made.traits.mixture
        if mixture is None or index in mixture.dense:
            return self._dense(f"{start}{self._made.traits.names.mlp}", self._made.inner)
        return self._experts(f"{start}{mixture.mlp}", mixture)

    def _experts(self, prefix: str, mixture: Mixture) -> Block:
        made = self._made
        router, experts = made.router(prefix, mixture), made.experts(prefix, mixture)
        layer = ExpertLayer(router, experts, self._logits)
        if mixture.shared is None:
            return layer
        shared = self._dense(f"{prefix}{mixture.shared}.", mixture.shared_inner)
        return Sum(layer, shared, made.parts.no_norm(), self._shared, self._copy)

    def _dense(self, prefix: str, inner: int) -> Block:
        made, traits = self._made, self._made.traits
        gate_up, down = made.gate_up(prefix, inner), made.down(prefix, inner)
        gates, ups = self._of_width(inner)
        operation = made.parts.gated if traits.gated else made.parts.activate
        return FeedForward(gate_up, partial(operation, traits.activation), down, gates, ups)

    def _of_width(self, inner: int) -> tuple[Buffer, Buffer]:
        """The buffers of a feed-forward layer of this width, over all ranks."""
        if inner not in self._widths:
            parts, width = self._made.parts, inner // self._made.parts.ranks
            doubled = width * (2 if self._made.traits.gated else 1)
            tokens = parts.max_tokens
            self._widths[inner] = parts.buffer(tokens, doubled), parts.buffer(tokens, width)
        return self._widths[inner]

    def _wrapped(self, block: Block, norm: str | None) -> Block:
        """``block`` with what comes after it."""
        if norm is not None:
            block = NormedAfter(block, self._made.norm(norm), self._stream.other)
        for adjustment in scaling(self._made.parts, self._made.traits.branch_scale):
            block = Adjusted(block, adjustment)
        return block


@dataclass(frozen=True)
class Family:
    """An architecture that is a decoder: see :data:`pyengine.model.architectures.Build`.

    Attributes:
        traits: Reads from a config.json what sets its models apart.
    """

    traits: Callable[[Mapping[str, Any]], Traits]

    def __call__(
        self, info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts
    ) -> Decoder:
        """The model with its weights and cache."""
        return Decoder(Projections(info, config, weights, parts, self.traits(config)))


def decoder(traits: Callable[[Mapping[str, Any]], Traits]) -> Family:
    """An architecture whose traits are those that ``traits`` reads from a config.json."""
    return Family(traits)


def scaling(parts: Parts, factor: float) -> list[Adjustment]:
    """What multiplies by ``factor``: nothing for 1."""
    return [] if factor == 1.0 else [partial(_scale, parts, factor)]


def capping(parts: Parts, cap: float | None) -> list[Adjustment]:
    """What caps softly: nothing without a cap."""
    return [] if cap is None else [partial(_soft_cap, parts, cap)]


def _scale(parts: Parts, factor: float, x: Buffer, rows: int) -> None:
    parts.scale(x, factor, rows)


def _soft_cap(parts: Parts, cap: float, x: Buffer, rows: int) -> None:
    parts.soft_cap(x, cap, rows)


def _check(made: Projections) -> None:
    config, info, ranks = made.config, made.info, made.parts.ranks
    # Qwen2.5 of a million tokens, models that also see, and those whose tokens see all others.
    refuse(config, "dual_chunk_attention_config", "use_mrope", "use_bidirectional_attention")
    mixture = made.traits.mixture
    for name, count in (
        ("kv heads", info.num_kv_heads),
        ("feed-forward units", made.inner),
        ("units of an expert", 0 if mixture is None else mixture.inner),
        ("units of the shared expert", 0 if mixture is None else mixture.shared_inner),
    ):
        if count % ranks:
            raise ConfigError(
                f"{count} {name} of {info.name} cannot be divided by {ranks} ranks; "
                "'tensor_parallel' must be a divisor",
                param="tensor_parallel",
            )
