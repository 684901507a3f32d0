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


def self_attention(
    layer: int,
    qkv: Linear,
    rotations: tuple[Rotation, ...],
    norms: tuple[HeadNorm, ...],
    attention: Attention,
    gates: tuple[OutputGates, ...],
    project: Linear,
    rows: Buffer,
    attended: Buffer,
) -> Block:
    """Queries, keys and values, in ``rows`` [tokens, (heads + 2 * kv heads) * head_dim], what a
    layer's ``attention`` gives of them, ``attended`` [tokens, heads * head_dim], and its output.

    Where there are ``rotations``, queries and keys are rotated before they are normalized.
    """

    def block(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        qkv(x, rows, tokens)
        for rotate in rotations:
            rotate(step, rows, tokens)
        for norm in norms:
            norm(rows, tokens)
        attention(layer, step, rows, attended, tokens)
        for gate in gates:
            gate(x, attended, tokens)
        project(attended, out, tokens)

    return block


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


def latent_experts(
    into: Linear, experts: Experts, out_of: Linear, given: Buffer, made: Buffer
) -> Experts:
    """Experts that read and write narrower rows than hidden states: ``given`` and ``made``."""

    def narrow(logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        into(x, given, rows)
        experts(logits, given, made, rows)
        out_of(made, out, rows)

    return narrow


def beside_experts(
    residual: Buffer,
    before_router: Norm,
    before: Norm,
    mixture: ExpertLayer,
    routed: Buffer,
    given: Buffer,
) -> Block:
    """A mixture that reads hidden states as they were before the layer's norm, by norms of its own:
    what the router reads, and what the experts read.
    """

    def block(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        before_router(residual, None, routed, tokens)
        before(residual, None, given, tokens)
        mixture.router(routed, mixture.logits, tokens)
        mixture.experts(mixture.logits, given, out, tokens)

    return block


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
