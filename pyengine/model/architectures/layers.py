"""The layers of a decoder: composed of blocks by its traits, once, when the model is loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from pyengine.model.architectures.blocks import (
    Adjustment,
    Block,
    ExpertLayer,
    OutputGates,
    added,
    adjusted,
    beside_experts,
    feed_forward,
    gated,
    latent_experts,
    normed_after,
    of_residual,
    self_attention,
)
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.layer_inputs import InputTable
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Norm, Parts, Step
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.traits import Beside, Mixture

Adjustments = Sequence[Adjustment]
"""One after the other."""


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


class Layer(Protocol):
    """A layer of a decoder."""

    def __call__(self, step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        """Add ``branch`` and what the layer computes; leave its last part in ``stream.branch``."""


def sequential(norms: tuple[Norm, Norm], attention: Block, mlp: Block) -> Layer:
    """Attention, then a feed-forward layer."""
    before_attention, before_mlp = norms

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        before_attention(stream.residual, branch, stream.normed, tokens)
        attention(step, stream.normed, stream.branch, tokens)
        before_mlp(stream.residual, stream.branch, stream.normed, tokens)
        mlp(step, stream.normed, stream.branch, tokens)

    return layer


def normed_residual(
    norms: tuple[Norm, Norm], blocks: tuple[Block, Block], scales: Sequence[Adjustments]
) -> Layer:
    """Two blocks, each of which adds to what it reads, not to what was before its norm; ``scales``
    are those of what each block reads and adds, in their order.
    """
    before_mixer, before_mlp = norms
    mixer, mlp = blocks
    mixed, mixes, fed, feeds = scales

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        before_mixer(stream.residual, branch, stream.normed, tokens)
        mixer(step, stream.normed, stream.branch, tokens)
        adjust(mixed, stream.normed, tokens)
        adjust(mixes, stream.branch, tokens)
        before_mlp(stream.normed, stream.branch, stream.residual, tokens)
        mlp(step, stream.residual, stream.branch, tokens)
        adjust(fed, stream.residual, tokens)
        adjust(feeds, stream.branch, tokens)

    return layer


def lone(norm: Norm, block: Block) -> Layer:
    """One block alone: attention, another mixer, or a feed-forward layer."""

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        norm(stream.residual, branch, stream.normed, tokens)
        block(step, stream.normed, stream.branch, tokens)

    return layer


def parallel(norm: Norm, add: Norm, attention: Block, mlp: Block) -> Layer:
    """Attention and a feed-forward layer, both of what the layer is given.

    The norm is attention's, and the feed-forward layer's where that has none of its own.
    """

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        norm(stream.residual, branch, stream.normed, tokens)
        attention(step, stream.normed, stream.other, tokens)
        mlp(step, stream.normed, stream.branch, tokens)
        add(stream.residual, stream.other, stream.normed, tokens)

    return layer


def with_inputs(inner: Layer, add: Norm, inputs: Block) -> Layer:
    """A layer, and what it gets of a token beside hidden states."""

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        inner(step, stream, branch, tokens)
        add(stream.residual, stream.branch, stream.normed, tokens)
        inputs(step, stream.normed, stream.branch, tokens)

    return layer


def scaled(inner: Layer, adjustment: Adjustment) -> Layer:
    """A layer behind which hidden states are multiplied."""

    def layer(step: Step, stream: Stream, branch: Buffer | None, tokens: int) -> None:
        inner(step, stream, branch, tokens)
        adjustment(stream.residual, tokens)
        adjustment(stream.branch, tokens)

    return layer


class Layers:
    """Makes the layers of a decoder, which share their buffers."""

    def __init__(self, made: Projections, stream: Stream, inputs: InputTable | None) -> None:
        self._made = made
        self._stream = stream
        self._inputs = inputs
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self._attention = made.parts.attention(made.info, made.attention())

    @cached_property
    def _workshop(self) -> Workshop:
        """What mixers make their blocks with, where there are any."""
        made = self._made
        return Workshop(made.parts, made.weights, made.info, self._buffer, made.angles)

    def _buffer(self, use: str, width: int) -> Buffer:
        """The buffer [tokens, width] of a use, the same for all layers."""
        key = use, width
        if key not in self._buffers:
            self._buffers[key] = self._made.parts.buffer(self._made.parts.max_tokens, width)
        return self._buffers[key]

    def _hidden(self, use: str) -> Buffer:
        return self._buffer(use, self._made.info.hidden_size)

    def layer(self, index: int) -> Layer:
        """The layer of that number."""
        made, names = self._made, self._made.traits.names_of(index)
        start = names.layer.format(index)
        layer = self._layer(index, start)
        if self._inputs is not None:
            given = self._inputs.block(made, index, start, self._hidden("unnormalized inputs"))
            layer = with_inputs(layer, made.parts.no_norm(), given)
        if names.layer_scale is not None:
            (factor,) = made.weights.vector(f"{start}{names.layer_scale}", 1)
            for adjustment in scaling(made.parts, float(factor)):
                layer = scaled(layer, adjustment)
        return layer

    def _layer(self, index: int, start: str) -> Layer:
        made, names = self._made, self._made.traits.names_of(index)

        def named(norm: str | None) -> str | None:
            return None if norm is None else f"{start}{norm}"

        if not made.traits.has("mixes", index):
            norm = made.norm(named(names.before_mlp))
            return lone(norm, self._wrapped(self._mlp(index, start), None))
        first = made.norm(named(names.before_attention))
        attention = self._wrapped(self._mixer(index, start), named(names.after_attention))
        if not made.traits.has("feeds", index):
            return lone(first, attention)
        second = named(names.before_mlp)
        mlp = self._mlp(index, start)
        if made.traits.normed_residual:
            own = made.traits.normed_residual[index]
            factors = own.mixed, own.mixer, own.fed, own.feed
            return normed_residual(
                (first, made.norm(second)),
                (attention, mlp),
                [scaling(made.parts, factor) for factor in factors],
            )
        if not made.traits.parallel:
            mlp = self._wrapped(mlp, named(names.after_mlp))
            return sequential((first, made.norm(second)), attention, mlp)
        if second is not None:
            given = self._hidden("what the feed-forward layer reads")
            mlp = of_residual(self._stream.residual, made.norm(second), mlp, given)
        mlp = self._wrapped(mlp, named(names.after_mlp))
        return parallel(first, made.parts.no_norm(), attention, mlp)

    def _mixer(self, index: int, start: str) -> Block:
        """What mixes a layer's tokens."""
        mixer = self._made.traits.mixer(index)
        if mixer is None:
            return self._self_attention(index, start)
        mixed = mixer.block(self._workshop, index, start)
        beside = self._made.traits.attention_beside
        if beside is None:
            return mixed
        attended = self._scaled(self._self_attention(index, start), beside.attended)
        return self._sum(attended, self._scaled(mixed, beside.mixed))

    def _self_attention(self, index: int, start: str) -> Block:
        made, prefix = self._made, f"{start}{self._made.traits.names.attention}"
        heads, ranks = made.info.attention_layers[index], made.parts.ranks
        queries = made.info.num_heads * heads.head_dim // ranks
        qkv, gates = made.qkv(index, prefix)
        kind = made.traits.attention_gates
        by_head = kind is not None and kind.name is not None and kind.by_head
        width = made.info.num_heads // ranks if by_head else queries
        return self_attention(
            index,
            qkv,
            made.rotations(index),
            made.qk_norm(index, prefix),
            self._attention,
            tuple(OutputGates(each, made.parts, self._buffer("gates", width)) for each in gates),
            made.out(index, prefix),
            self._buffer("queries, keys and values", queries + 2 * heads.size // ranks),
            self._buffer("attended", queries),
        )

    def _mlp(self, index: int, start: str) -> Block:
        made, mixture = self._made, self._made.traits.mixture
        if mixture is not None and mixture.beside is None and index not in mixture.dense:
            return self._experts(index, f"{start}{mixture.mlp}", mixture)
        dense = self._dense(f"{start}{made.traits.names.mlp}", made.inner(index))
        if mixture is None or mixture.beside is None:
            return dense
        return self._beside(index, start, dense, mixture, mixture.beside)

    def _experts(self, index: int, prefix: str, mixture: Mixture) -> Block:
        made, layer = self._made, self._mixture(index, prefix, mixture)
        if mixture.shared is None:
            return layer
        shared: Block = self._dense(f"{prefix}{mixture.shared}.", mixture.shared_inner)
        if mixture.shared_gate is not None:
            gate = made.shared_gate(prefix, mixture.shared_gate)
            shared = gated(shared, gate, made.parts, self._buffer("gate", 1))
        return self._sum(layer, shared)

    def _mixture(self, index: int, prefix: str, mixture: Mixture) -> ExpertLayer:
        made = self._made
        router, experts = made.router(prefix, mixture), made.experts(index, prefix, mixture)
        if (latents := mixture.latents) is not None:
            width, hidden = latents.width, made.info.hidden_size
            experts = latent_experts(
                made.whole(f"{prefix}{latents.into}", width, hidden),
                experts,
                made.whole(f"{prefix}{latents.out_of}", hidden, width),
                self._buffer("what the experts read", width),
                self._buffer("what the experts wrote", width),
            )
        return ExpertLayer(router, experts, self._buffer("router's logits", mixture.count))

    def _sum(self, first: Block, second: Block) -> Block:
        other, copy = self._hidden("second summand"), self._hidden("copy of the sum")
        return added(first, second, self._made.parts.no_norm(), other, copy)

    def _beside(
        self, index: int, start: str, dense: Block, mixture: Mixture, names: Beside
    ) -> Block:
        """The dense layer and the experts, each normalized by itself."""
        made, residual = self._made, self._stream.residual
        experts = beside_experts(
            residual,
            made.router_norm(f"{start}{names.router_scale}"),
            made.norm(f"{start}{names.before}"),
            self._mixture(index, f"{start}{mixture.mlp}", mixture),
            self._hidden("what the router reads"),
            self._hidden("what the experts read"),
        )
        raw = self._hidden("unnormalized summand")
        return self._sum(
            normed_after(dense, made.norm(f"{start}{names.dense_after}"), raw),
            normed_after(experts, made.norm(f"{start}{names.after}"), raw),
        )

    def _dense(self, prefix: str, inner: int) -> Block:
        made, traits = self._made, self._made.traits
        width = inner // made.parts.ranks
        operation = made.parts.gated if traits.gated else made.parts.activate
        activate = partial(operation, made.activation(prefix))
        # Gates and ups are one buffer: what multiplies both is divided by behind them.
        for adjustment in scaling(made.parts, traits.gate_scale):
            activate = partial(_adjusted, adjustment, activate)
        block = feed_forward(
            made.gate_up(prefix, inner),
            activate,
            made.down(prefix, inner),
            self._buffer("before the activation", width * (2 if traits.gated else 1)),
            self._buffer("behind the activation", width),
        )
        return self._scaled(block, traits.feed_scale / traits.gate_scale)

    def _wrapped(self, block: Block, norm: str | None) -> Block:
        """``block`` with what comes after it."""
        if norm is not None:
            block = normed_after(block, self._made.norm(norm), self._stream.other)
        return self._scaled(block, self._made.traits.branch_scale)

    def _scaled(self, block: Block, factor: float) -> Block:
        """``block``, whose output is multiplied."""
        for adjustment in scaling(self._made.parts, factor):
            block = adjusted(block, adjustment)
        return block


def adjust(adjustments: Adjustments, x: Buffer, rows: int) -> None:
    """Change the first rows of ``x``."""
    for adjustment in adjustments:
        adjustment(x, rows)


def scaling(parts: Parts, factor: float) -> list[Adjustment]:
    """The block that multiplies by ``factor``; none for 1."""
    return [] if factor == 1.0 else [partial(_scale, parts, factor)]


def capping(parts: Parts, cap: float | None) -> list[Adjustment]:
    """The block that caps softly; none without a cap."""
    return [] if cap is None else [partial(_soft_cap, parts, cap)]


def _adjusted(
    adjustment: Adjustment,
    then: Callable[[Buffer, Buffer, int], None],
    x: Buffer,
    out: Buffer,
    rows: int,
) -> None:
    adjustment(x, rows)
    then(x, out, rows)


def _scale(parts: Parts, factor: float, x: Buffer, rows: int) -> None:
    parts.scale(x, factor, rows)


def _soft_cap(parts: Parts, cap: float, x: Buffer, rows: int) -> None:
    parts.soft_cap(x, cap, rows)
