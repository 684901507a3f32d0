"""The kinds of layers by what they keep of a sequence: keys and values, a latent, a state, keys and
a state, nothing.

::

    Keys      keys and values of all tokens, or of the last in a window            a page a block
    Latent    one vector of each token, which keys and values are computed from    a page a block
    State     one state of the whole sequence, whatever its length                 a slot a sequence
    Both      keys and values beside a state
    Nothing   a layer of feed-forward alone

A family says it of each layer (:attr:`pyengine.model.architectures.traits.Traits.layers`), and so
does :attr:`pyengine.model.runner.ModelInfo.layers`; :mod:`pyengine.model.cache_groups` makes pages
of it, and ``rust/kv_allocator`` has their blocks and slots. Imports no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

_LINE = 16
"""Floats in a cache line: every part of a state begins at one."""


@dataclass(frozen=True)
class Keys:
    """Keys and values of each token.

    Attributes:
        kv_heads: Heads of keys, and of values.
        head_dim: Elements of each, and of queries' heads.
        window: Tokens that a query sees, its own counted in; None is all before it.
        reads: The layer whose keys and values this one attends to; None: it has its own.
        chunked: A query sees keys of its own chunk of ``window`` positions alone.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None
    reads: int | None = None
    chunked: bool = False

    @property
    def size(self) -> int:
        """Numbers that a token's keys take in the cache, and its values."""
        return 0 if self.reads is not None else self.kv_heads * self.head_dim

    @property
    def numbers(self) -> int:
        """Numbers that a token takes in the cache."""
        return 2 * self.size

    @property
    def chunk(self) -> int | None:
        """Positions of a chunk that a query does not see beyond; None: there are no chunks."""
        return self.window if self.chunked else None


@dataclass(frozen=True)
class Latent:
    """A latent of each token (DeepSeek-AI, "DeepSeek-V2", 2024).

    Attributes:
        width: Numbers that a token takes in the cache.
    """

    width: int

    @property
    def numbers(self) -> int:
        """Numbers that a token takes in the cache."""
        return self.width


@dataclass(frozen=True, kw_only=True)
class State:
    """A state of the whole sequence, float32 whatever the cache's data type.

    It has four parts, one behind another, each from a cache line on. A device lays its numbers out
    within them::

        convolution       channels * (kernel - 1)                 the last inputs
        recurrent         heads * key_dim * value_dim
        drafts            max_draft * channels                    what drafted tokens would add: the
        recurrent_drafts  max_draft * (heads * (key_dim + value_dim) + gates)   inputs; keys, values
                                                                  and gates

    Attributes:
        channels: The number of channels of the causal convolution; 0: there is none.
        kernel: Inputs that one output of the convolution is made of.
        heads: The number of heads of the recurrent state; 0: there is none.
        key_dim: Elements of a head's key (of Mamba-2: the size of its state).
        value_dim: Elements of a head's value.
        key_heads: Heads of keys, each of which as many heads of values share.
        gates: Numbers by which a token decays the state and weighs what it adds, of all heads.
    """

    channels: int = 0
    kernel: int = 1
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    key_heads: int = 0
    gates: int = 0

    @property
    def numbers(self) -> int:
        """Numbers that a token takes in the cache: none."""
        return 0

    def share(self, ranks: int) -> "State":
        """The state of one rank of several, each of which has a share of the heads."""
        return replace(
            self,
            channels=self.channels // ranks,
            heads=self.heads // ranks,
            key_heads=self.key_heads // ranks or 1,  # a lone one is every rank's
            gates=self.gates // ranks,
        )

    def place(self, first: int, max_draft: int) -> "StatePlace":
        """Where its parts are, if it begins at float ``first`` of a slot.

        Args:
            first: A multiple of 16.
            max_draft: Most drafts of a row.
        """
        sizes = (
            self.channels * (self.kernel - 1),
            self.heads * self.key_dim * self.value_dim,
            max_draft * self.channels,
            max_draft * (self.heads * (self.key_dim + self.value_dim) + self.gates),
        )
        return StatePlace(*accumulate((-(-size // _LINE) * _LINE for size in sizes), initial=first))

    def floats(self, max_draft: int) -> int:
        """Floats of the whole state."""
        return self.place(0, max_draft).end


@dataclass(frozen=True)
class Nothing:
    """A layer that keeps nothing."""

    @property
    def numbers(self) -> int:
        """Numbers that a token takes in the cache: none."""
        return 0


@dataclass(frozen=True)
class Both:
    """Keys and values of each token, and a state of the whole sequence beside them.

    Attributes:
        keys: What the layer attends to.
        state: What its mixer keeps.
    """

    keys: Keys
    state: State

    @property
    def numbers(self) -> int:
        """Numbers that a token takes in the cache."""
        return self.keys.numbers


CacheLayer = Keys | Latent | State | Both | Nothing


def keys_of(layer: CacheLayer) -> Keys | None:
    """The keys and values that a layer keeps; None: it keeps none."""
    if isinstance(layer, Both):
        return layer.keys
    return layer if isinstance(layer, Keys) else None


def state_of(layer: CacheLayer) -> State | None:
    """The state that a layer keeps; None: it keeps none."""
    if isinstance(layer, Both):
        return layer.state
    return layer if isinstance(layer, State) else None


@dataclass(frozen=True)
class StatePlace:
    """Where a layer's state is in a slot, in floats from its beginning.

    Attributes:
        convolution: The first of the convolution's last inputs.
        recurrent: The first of the recurrent state.
        drafts: The first of drafted tokens' inputs of the convolution.
        recurrent_drafts: The first of what drafted tokens would add to the recurrent state.
        end: Behind the last.
    """

    convolution: int
    recurrent: int
    drafts: int
    recurrent_drafts: int
    end: int


def state_places(layers: Sequence[CacheLayer], max_draft: int) -> dict[int, StatePlace]:
    """Where the state of each layer that has one is in a slot.

    Args:
        layers: The layers of the model, or of a rank's share of it.
        max_draft: Most drafts of a row.
    """
    places, first = {}, 0
    for index, layer in enumerate(layers):
        if (state := state_of(layer)) is not None:
            places[index] = state.place(first, max_draft)
            first = places[index].end
    return places


def shares(layers: Sequence[CacheLayer], ranks: int) -> tuple[CacheLayer, ...]:
    """The layers with the states of one rank of several."""
    return tuple(_share(layer, ranks) for layer in layers)


def _share(layer: CacheLayer, ranks: int) -> CacheLayer:
    if isinstance(layer, Both):
        return replace(layer, state=layer.state.share(ranks))
    return layer.share(ranks) if isinstance(layer, State) else layer


def state_floats(layers: Sequence[CacheLayer], max_draft: int) -> int:
    """Floats of a sequence's state in all layers."""
    states = (state_of(layer) for layer in layers)
    return sum(state.floats(max_draft) for state in states if state is not None)


def divided(layers: Sequence[CacheLayer], ranks: int) -> int:
    """Among how many of ``ranks`` ranks what layers keep of tokens is divided: heads are, and
    latents are not, which all heads share.
    """
    return 1 if any(isinstance(layer, Latent) for layer in layers) else ranks


def unit_of(layers: Sequence[CacheLayer]) -> int:
    """The numbers of a token in a slot of a page: all layers take whole slots."""
    return math.gcd(*(layer.numbers for layer in layers))


def slots_by_layer(layers: Sequence[CacheLayer]) -> tuple[int, ...]:
    """How many slots of a page each layer takes; none where it keeps nothing of tokens."""
    unit = unit_of(layers) or 1
    return tuple(layer.numbers // unit for layer in layers)
