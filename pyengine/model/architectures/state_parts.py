"""The parts of layers with a state: what reads and advances a sequence's state, token by token.

A state is in the slot that a step names for the row (``state_slot``), and has two parts: the last
inputs of a causal convolution, and the sums of a recurrence. Each operation reads and writes its
own layer's part, in the order of a row's tokens::

    state_source ─► drafts accepted of the step before ─► the row's tokens ─► state_slot
                                    │ state_accepted            │ behind snapshot_tokens
                                    │                           └─► snapshot_slot
                                    └─ of the row's last state_drafts tokens the outputs are
                                       computed, and what they would add stays beside the state

States are float32, and so is all arithmetic on them. A row's numbers do not depend on how its
tokens are divided into steps, nor on other rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.buffer import Buffer


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaRule:
    """The gated delta rule (Yang et al., "Gated Delta Networks", 2024) of one rank's heads.

    For each head of values, with its key and its query, both of length 1, and ``a`` and ``b`` of
    the token::

        decay = exp(-rate * softplus(a + bias))        weight = strength * sigmoid(b)
        decay = exp(bound * sigmoid(rate * (a + bias)))    with a bound
        S = decay * S
        S = S + weight * key (value - key S)^T         S is [key_dim, value_dim]
        out = query S / sqrt(key_dim)

    Attributes:
        key_heads: Heads of queries and of keys; neighbouring heads of values share one.
        value_heads: Heads of values.
        key_dim: Elements of a query and of a key.
        value_dim: Elements of a value.
        rate: float32 [value_heads].
        bias: float32 [value_heads]; [value_heads * key_dim] where each element of a key has a decay
            of its own (Kimi Team, "Kimi Linear", 2025).
        strength: 2 where a state may change its sign, else 1.
        bound: The least logarithm of a decay, below 0; None: there is none.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    rate: NDArray[np.float32]
    bias: NDArray[np.float32]
    strength: float = 1.0
    bound: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DecaySum:
    """A decaying sum of keys and values, of one rank's heads: the state space of Mamba (Gu and
    Dao, 2023) or Mamba-2 (Dao and Gu, 2024), or lightning attention (Qin et al., 2024).

    For each head, with the token's step ``dt = softplus(gate + bias)``, or 1 without gates::

        S = exp(-rate * dt) * S + dt * key value^T     S is [key_dim, value_dim]
        out = query S + skip * value

    Attributes:
        heads: Heads of values.
        groups: Heads of keys and of queries; neighbouring heads of values share one.
        key_dim: Elements of a key; of Mamba-2 the size of its state.
        value_dim: Elements of a value.
        rate: float32 [heads]; [heads * key_dim] where each element of a key has a rate of its own.
        bias: float32 [heads]; None: tokens have no steps.
        skip: float32 [heads]; None: values are not added.
    """

    heads: int
    groups: int
    key_dim: int
    value_dim: int
    rate: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    skip: NDArray[np.float32] | None = None


class Convolution(Protocol):
    """A causal convolution of each channel by itself, over the last inputs of a sequence."""

    def __call__(self, step: Any, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, channels] -> ``out`` [tokens, channels], another buffer."""


class Recurrence(Protocol):
    """A :class:`DeltaRule` or a :class:`DecaySum` over a step's tokens."""

    def __call__(
        self, step: Any, x: Buffer, gates: Sequence[Buffer], out: Buffer, tokens: int
    ) -> None:
        """-> ``out`` [tokens, heads of values * value_dim], of what a rule reads:

        ========  =========================================  ==================================
        rule      ``x``                                      ``gates``
        ========  =========================================  ==================================
        delta     queries, keys, values [tokens,             ``b``, then ``a`` [tokens,
                  2 * key_heads * key_dim                    value_heads + as many as ``bias``],
                  + value_heads * value_dim]                 in one buffer or in two
        decaying  values, keys, queries [tokens,             [tokens, heads], or none; behind it
                  heads * value_dim + 2 * groups * key_dim]  perhaps keys and queries in two
                                                             buffers, not in ``x``
        ========  =========================================  ==================================
        """


GateFunction = Literal["silu", "sigmoid"]
"""What is computed of gates before they multiply."""


class GatedNorm(Protocol):
    """Root mean square normalization of neighbours, with a gate before or behind it."""

    def __call__(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Change ``x`` [rows, width] in place, by ``gates`` of the same shape."""


class States(Protocol):
    """The states of all layers, and the operations on them. Made like the layers of ``Parts``."""

    def convolution(
        self,
        layer: int,
        weight: NDArray[np.float32],
        bias: NDArray[Any] | None,
        activation: str | None,
    ) -> Convolution:
        """A layer's convolution.

        Args:
            layer: The layer that has the state.
            weight: [channels of this rank, kernel], the newest input's last.
            bias: [channels of this rank].
            activation: ``silu``, or None.
        """

    def delta_rule(self, layer: int, rule: DeltaRule) -> Recurrence:
        """A layer's gated delta rule."""

    def decay_sum(self, layer: int, rule: DecaySum) -> Recurrence:
        """A layer's decaying sum."""
