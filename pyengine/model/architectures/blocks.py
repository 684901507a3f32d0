"""The blocks between a decoder's norms: attention, feed-forward layers, and what wraps them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import (
    Attention,
    Experts,
    HeadNorm,
    Linear,
    Norm,
    Parts,
    Rotation,
    Step,
)

Adjustment = Callable[[Buffer, int], None]
"""Changes the first rows of a buffer in place."""


class Block(Protocol):
    """A part of a layer that maps hidden states to hidden states."""

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, hidden] -> ``out`` [tokens, hidden]."""


@dataclass(frozen=True)
class OutputGates:
    """Sigmoids that multiply what attention gives.

    Attributes:
        to_gates: From hidden states.
        parts: Multiplies.
        gates: [tokens, n], shared by all layers.
    """

    to_gates: Linear
    parts: Parts
    gates: Buffer

    def __call__(self, x: Buffer, attended: Buffer, tokens: int) -> None:
        """Multiply ``attended`` in place, by what ``x`` [tokens, hidden] says."""
        self.to_gates(x, self.gates, tokens)
        self.parts.gate(attended, self.gates, tokens)


@dataclass(frozen=True)
class SelfAttention:
    """Queries, keys and values, attention, and its output.

    Attributes:
        layer: Which.
        qkv: From hidden states.
        rotations: The rotation of queries and keys that are normalized behind it, or none.
        norms: The norms of queries and keys: one, or none.
        attention: The attention of all layers.
        gates: The gates of what attention gives: one, or none.
        out: To hidden states.
        rows: [tokens, (heads + 2 * kv heads) * head_dim], shared by all layers.
        attended: [tokens, heads * head_dim], too.
    """

    layer: int
    qkv: Linear
    rotations: tuple[Rotation, ...]
    norms: tuple[HeadNorm, ...]
    attention: Attention
    gates: tuple[OutputGates, ...]
    out: Linear
    rows: Buffer
    attended: Buffer

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """See :class:`Block`."""
        self.qkv(x, self.rows, tokens)
        for rotate in self.rotations:
            rotate(step, self.rows, tokens)
        for norm in self.norms:
            norm(self.rows, tokens)
        self.attention(self.layer, step, self.rows, self.attended, tokens)
        for gate in self.gates:
            gate(x, self.attended, tokens)
        self.out(self.attended, out, tokens)


def feed_forward(
    up: Linear,
    activate: Callable[[Buffer, Buffer, int], None],
    down: Linear,
    before: Buffer,
    inner: Buffer,
) -> Block:
    """A feed-forward layer: down(activation(gate) * up), or without gates down(activation(up));
    ``before`` the activation are [tokens, 2 * width] or [tokens, width], ``inner`` [tokens, width].
    """

    def block(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        up(x, before, tokens)
        activate(before, inner, tokens)
        down(inner, out, tokens)

    return block


@dataclass(frozen=True)
class ExpertLayer:
    """A mixture of experts, and what its router says of each token."""

    router: Linear
    experts: Experts
    logits: Buffer

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """See :class:`Block`."""
        self.router(x, self.logits, tokens)  # [tokens, experts]
        self.experts(self.logits, x, out, tokens)


@dataclass(frozen=True)
class LatentExperts:
    """Experts that read and write narrower rows than hidden states; they are called as
    :class:`pyengine.model.architectures.parts.Experts` are.

    Attributes:
        into: From hidden states to what the experts read.
        experts: The experts.
        out_of: From what they wrote to hidden states.
        given: What they read.
        made: What they wrote.
    """

    into: Linear
    experts: Experts
    out_of: Linear
    given: Buffer
    made: Buffer

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden]."""
        self.into(x, self.given, rows)
        self.experts(logits, self.given, self.made, rows)
        self.out_of(self.made, out, rows)


@dataclass(frozen=True)
class BesideExperts:
    """A mixture that reads hidden states as they were before the layer's norm, by norms of its own.

    Attributes:
        residual: Hidden states, [tokens, hidden].
        before_router: The norm of what goes into the router.
        before: The norm of what goes into the experts.
        experts: The mixture.
        routed: What the router reads.
        given: What the experts read.
    """

    residual: Buffer
    before_router: Norm
    before: Norm
    experts: ExpertLayer
    routed: Buffer
    given: Buffer

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """See :class:`Block`; ``x`` is not read."""
        self.before_router(self.residual, None, self.routed, tokens)
        self.before(self.residual, None, self.given, tokens)
        self.experts.router(self.routed, self.experts.logits, tokens)
        self.experts.experts(self.experts.logits, self.given, out, tokens)


def of_residual(residual: Buffer, norm: Norm, block: Block, given: Buffer) -> Block:
    """A block that reads what its layer was given, by a norm of its own: hidden states with all
    that was added before the layer.
    """

    def of(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        norm(residual, None, given, tokens)
        block(step, given, out, tokens)

    return of


def gated(block: Block, to_gate: Linear, parts: Parts, gates: Buffer) -> Block:
    """A block whose output each token multiplies by the sigmoid of a number of its own."""

    def of(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        block(step, x, out, tokens)
        to_gate(x, gates, tokens)  # [tokens, 1]
        parts.gate(out, gates, tokens)

    return of


def added(first: Block, second: Block, add: Norm, other: Buffer, copy: Buffer) -> Block:
    """Two blocks of the same input, added."""

    def of(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        first(step, x, out, tokens)
        second(step, x, other, tokens)
        add(out, other, copy, tokens)

    return of


def normed_after(block: Block, norm: Norm, raw: Buffer) -> Block:
    """A block whose output is normalized."""

    def of(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        block(step, x, raw, tokens)
        norm(raw, None, out, tokens)

    return of


def adjusted(block: Block, adjustment: Adjustment) -> Block:
    """A block whose output is changed in place."""

    def of(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        block(step, x, out, tokens)
        adjustment(out, tokens)

    return of
