"""Layers with a state in plain torch, token by token: the reference of the CPU's kernels.

Rows are told on the host: on a GPU each operation would wait for the step, and no graph could have
it, so that such models are refused there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import NO_SLOT, step_numbers
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.state_parts import DecaySum, DeltaRule
from pyengine.model.cache_layers import State, StatePlace, shares, state_of, state_places
from pyengine.model.runner import ModelInfo
from pyengine.model.torch.attention.pool import TorchPool
from pyengine.model.torch.device.device_step import DeviceStep

_NUM_ROWS = step_numbers()["num_rows"]


@dataclass(frozen=True)
class StateRow:
    """A row of a step, and where its state comes from and goes to.

    Attributes:
        tokens: Its tokens in the step.
        slot: Where its state is.
        source: The slot that it begins from; :data:`NO_SLOT`: zeros.
        accepted: Drafts of the step before, in ``slot``, that come first.
        drafts: The last of its tokens, which only may come.
        snapshot: Where the state is copied to; :data:`NO_SLOT`: nowhere.
        snapshot_tokens: Behind how many of its tokens.
    """

    tokens: slice
    slot: int
    source: int
    accepted: int
    drafts: int
    snapshot: int
    snapshot_tokens: int

    @property
    def kept(self) -> int:
        """Its tokens that are no drafts."""
        count: int = self.tokens.stop - self.tokens.start
        return count - self.drafts


def state_rows(step: DeviceStep) -> Iterator[StateRow]:
    """The rows of a step that have a state."""
    rows = int(step.header[_NUM_ROWS])
    starts = step.query_start[: rows + 1].tolist()
    fields = (
        step.state_slot,
        step.state_source,
        step.state_accepted,
        step.state_drafts,
        step.snapshot_slot,
        step.snapshot_tokens,
    )
    for first, end, slot, *rest in zip(
        starts[:-1], starts[1:], *(field[:rows].tolist() for field in fields), strict=True
    ):
        if slot != NO_SLOT and end > first:
            yield StateRow(slice(first, end), slot, *rest)


class LayerStates:
    """The states of one layer, of all slots.

    Attributes:
        convolution: [slots, channels, kernel - 1].
        recurrent: [slots, heads, key_dim, value_dim].
        inputs: The convolution's, [slots, max_draft, channels], as the next three of drafts.
        keys: [slots, max_draft, key_heads, key_dim].
        values: [slots, max_draft, heads, value_dim].
        gates: [slots, max_draft, gates].
    """

    def __init__(
        self, slots: torch.Tensor, state: State, place: StatePlace, max_draft: int
    ) -> None:
        """Views of ``slots``, float32 [slots, floats]; ``state`` is a rank's share."""
        self._slots = slots
        self.convolution = self._part(place.convolution, state.channels, state.kernel - 1)
        heads = state.heads, state.key_dim, state.value_dim
        self.recurrent = self._part(place.recurrent, *heads)
        self.inputs = self._part(place.drafts, max_draft, state.channels)
        keys = max_draft, state.key_heads, state.key_dim
        values = max_draft, state.heads, state.value_dim
        first = place.recurrent_drafts
        self.keys = self._part(first, *keys)
        self.values = self._part(first + prod(keys), *values)
        self.gates = self._part(first + prod(keys) + prod(values), max_draft, state.gates)

    def _part(self, first: int, *shape: int) -> torch.Tensor:
        return self._slots[:, first : first + prod(shape)].view(len(self._slots), *shape)


class TorchStates:
    """See :class:`pyengine.model.architectures.state_parts.States`."""

    def __init__(self, info: ModelInfo, ranks: int, pool: TorchPool, device: torch.device) -> None:
        """The states in ``pool``, of the share that one of ``ranks`` ranks has of a model."""
        self._device = device
        self._pool = pool
        self._max_draft = info.max_draft
        self._states = shares(info.layers, ranks)
        self._places = state_places(self._states, info.max_draft)

    def _layer(self, layer: int) -> LayerStates:
        """The states of a layer; the memory may be exchanged between steps."""
        state = state_of(self._states[layer])
        assert state is not None
        return LayerStates(self._pool.states, state, self._places[layer], self._max_draft)

    def convolution(
        self,
        layer: int,
        weight: NDArray[np.float32],
        bias: NDArray[Any] | None,
        activation: str | None,
    ) -> "TorchConvolution":
        """In plain torch."""
        return TorchConvolution(
            partial(self._layer, layer),
            self._vector(weight),
            None if bias is None else self._vector(bias),
            activation,
        )

    def delta_rule(self, layer: int, rule: DeltaRule) -> "TorchRecurrence":
        """In plain torch."""
        tokens = DeltaTokens(rule, self._vector(rule.rate), self._vector(rule.bias))
        return TorchRecurrence(partial(self._layer, layer), tokens, advance_by_delta)

    def decay_sum(self, layer: int, rule: DecaySum) -> "TorchRecurrence":
        """In plain torch."""
        bias, skip = (
            None if each is None else self._vector(each) for each in (rule.bias, rule.skip)
        )
        tokens = SumTokens(rule, self._vector(rule.rate), bias, skip)
        return TorchRecurrence(partial(self._layer, layer), tokens, advance_sum)

    def _vector(self, numbers: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, np.float32)).to(self._device)


class TorchConvolution:
    """See :class:`pyengine.model.architectures.state_parts.Convolution`."""

    def __init__(
        self,
        states: Callable[[], LayerStates],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
    ) -> None:
        self._states = states
        self._weight = weight
        self._bias = bias
        self._activation = activation

    def __call__(self, step: DeviceStep, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, channels] -> ``out`` [tokens, channels]."""
        states = self._states()
        for row in state_rows(step):
            out.tensor[row.tokens] = self._row(states, row, x.tensor[row.tokens].float())

    def _row(self, states: LayerStates, row: StateRow, new: torch.Tensor) -> torch.Tensor:
        """The outputs of a row's inputs [tokens, channels]."""
        channels, kernel = self._weight.shape
        if row.source == NO_SLOT:
            before = new.new_zeros(kernel - 1, channels)
        else:
            before = states.convolution[row.source].T
        accepted = states.inputs[row.slot, : row.accepted]
        inputs = torch.cat((before, accepted, new))  # [kernel - 1 + accepted + tokens, channels]
        if row.snapshot != NO_SLOT:
            self._keep(states, row.snapshot, inputs[row.accepted + row.snapshot_tokens :])
        self._keep(states, row.slot, inputs[row.accepted + row.kept :])
        states.inputs[row.slot, : row.drafts] = new[row.kept :]
        inputs = inputs[row.accepted :]
        sums = torch.zeros_like(new) if self._bias is None else self._bias.expand_as(new).clone()
        for tap in range(kernel):
            sums += inputs[tap : tap + len(new)] * self._weight[:, tap]
        return sums if self._activation is None else torch.nn.functional.silu(sums)

    def _keep(self, states: LayerStates, slot: int, inputs: torch.Tensor) -> None:
        states.convolution[slot] = inputs[: self._weight.shape[1] - 1].T


@dataclass(frozen=True)
class Tokens:
    """A row's tokens as a recurrence reads them, float32.

    Attributes:
        queries: [tokens, key heads, key_dim].
        keys: [tokens, key heads, key_dim].
        values: [tokens, heads, value_dim].
        decays: [tokens, heads] or [tokens, heads * key_dim], what is left of the state.
        weights: [tokens, heads], of what is added.
        extra: [tokens, heads, value_dim], added to the outputs; or None.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    decays: torch.Tensor
    weights: torch.Tensor
    extra: torch.Tensor | None = None


@dataclass(frozen=True)
class DeltaTokens:
    """Reads tokens as a gated delta rule has them."""

    rule: DeltaRule
    rate: torch.Tensor
    bias: torch.Tensor

    def __call__(self, rows: torch.Tensor, gates: torch.Tensor | None) -> Tokens:
        """Of rows of queries, keys and values, and of ``b`` and ``a``; both float32."""
        assert gates is not None
        rule, keys = self.rule, self.rule.key_heads * self.rule.key_dim
        query, key, value = torch.split(rows, [keys, keys, rows.shape[1] - 2 * keys], 1)
        b, a = torch.split(gates, [rule.value_heads, gates.shape[1] - rule.value_heads], 1)
        rate = self.rate.repeat_interleave(len(self.bias) // rule.value_heads)
        if rule.bound is None:
            decays = -rate * torch.nn.functional.softplus(a + self.bias)
        else:
            decays = rule.bound * torch.sigmoid(rate * (a + self.bias))
        return Tokens(
            queries=_unit(_heads(query, rule.key_heads)) * rule.key_dim**-0.5,
            keys=_unit(_heads(key, rule.key_heads)),
            values=_heads(value, rule.value_heads),
            decays=torch.exp(decays),
            weights=b.sigmoid() * rule.strength,
        )


def _heads(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[tokens, heads * width] -> [tokens, heads, width]."""
    return rows.reshape(len(rows), heads, -1)


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)


def advance_by_delta(
    state: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The state [heads, key_dim, value_dim] that holds ``value`` at ``key``, by ``weight``."""
    change = (value - (state * key).sum(1)) * weight[:, None]  # [heads, value_dim]
    return state + key * change[:, None]


@dataclass(frozen=True)
class SumTokens:
    """Reads tokens as a decaying sum has them."""

    rule: DecaySum
    rate: torch.Tensor
    bias: torch.Tensor | None
    skip: torch.Tensor | None

    def __call__(self, rows: torch.Tensor, gates: torch.Tensor | None) -> Tokens:
        """Of rows of values, keys and queries, and of gates; both float32."""
        rule = self.rule
        widths = [rule.heads * rule.value_dim, *[rule.groups * rule.key_dim] * 2]
        if gates is not None and gates.shape[1] > rule.heads:
            rows = torch.cat((rows, gates[:, rule.heads :]), 1)
            gates = gates[:, : rule.heads]
        value, key, query = torch.split(rows, widths, 1)
        values = _heads(value, rule.heads)
        if gates is None or self.bias is None:
            steps = rows.new_ones(len(rows), rule.heads)
        else:
            steps = torch.nn.functional.softplus(gates + self.bias)
        by_rate = steps.repeat_interleave(self.rate.numel() // rule.heads, 1)
        return Tokens(
            queries=_heads(query, rule.groups),
            keys=_heads(key, rule.groups),
            values=values,
            decays=torch.exp(-self.rate * by_rate),
            weights=steps,
            extra=None if self.skip is None else values * self.skip[:, None],
        )


def advance_sum(
    state: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The state [heads, key_dim, value_dim] with ``key`` times ``value`` added, by ``weight``."""
    return state + key * (value * weight[:, None])[:, None]


class TorchRecurrence:
    """A recurrence over the tokens of a step, row by row."""

    def __init__(
        self,
        states: Callable[[], LayerStates],
        tokens: Callable[[torch.Tensor, torch.Tensor | None], Tokens],
        advance: Callable[..., torch.Tensor],
    ) -> None:
        """Of a layer's ``states``; ``advance`` adds a token to a state that has decayed."""
        self._states = states
        self._tokens = tokens
        self._advance = advance

    def __call__(
        self, step: DeviceStep, x: Buffer, gates: Sequence[Buffer], out: Buffer, tokens: int
    ) -> None:
        """See :class:`pyengine.model.architectures.state_parts.Recurrence`."""
        states = self._states()
        for row in state_rows(step):
            apart = [each.tensor[row.tokens].float() for each in gates]
            given = torch.cat(apart, 1) if apart else None
            read = self._tokens(x.tensor[row.tokens].float(), given)
            out.tensor[row.tokens] = self._row(states, row, read).flatten(1)

    def _row(self, states: LayerStates, row: StateRow, read: Tokens) -> torch.Tensor:
        """The outputs of a row [tokens, heads, value_dim]."""
        recurrent = states.recurrent
        state = (
            torch.zeros_like(recurrent[0]) if row.source == NO_SLOT else recurrent[row.source]
        ).clone()
        heads = len(state)
        decays = read.decays.shape[1]
        for at in range(row.accepted):
            gates = states.gates[row.slot, at]
            state = self._next(
                state,
                states.keys[row.slot, at],
                states.values[row.slot, at],
                gates[:decays],
                gates[decays : decays + heads],
            )
        if row.snapshot != NO_SLOT and row.snapshot_tokens == 0:
            recurrent[row.snapshot] = state
        if row.kept == 0:
            recurrent[row.slot] = state
        outs = []
        for at, query in enumerate(read.queries):
            state = self._next(
                state, read.keys[at], read.values[at], read.decays[at], read.weights[at]
            )
            outs.append((state * _for_heads(query, heads)).sum(1))
            if row.snapshot != NO_SLOT and row.snapshot_tokens == at + 1:
                recurrent[row.snapshot] = state
            if row.kept == at + 1:
                recurrent[row.slot] = state
        drafts = slice(row.kept, None)
        states.keys[row.slot, : row.drafts] = read.keys[drafts]
        states.values[row.slot, : row.drafts] = read.values[drafts]
        gates = torch.cat((read.decays, read.weights), 1)[drafts]
        states.gates[row.slot, : row.drafts, : gates.shape[1]] = gates
        made = torch.stack(outs)
        return made if read.extra is None else made + read.extra

    def _next(
        self,
        state: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        heads = len(state)
        state = state * decay.view(heads, -1, 1)
        return self._advance(state, _for_heads(key, heads), value, weight)


def _for_heads(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """[groups, width] -> [heads, width, 1], each group's for the heads that share it."""
    return groups.repeat_interleave(heads // len(groups), 0)[:, :, None]
