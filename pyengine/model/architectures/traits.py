"""Traits: the data that sets a family of decoders apart from Llama."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.mixers.mixer import Mixer
from pyengine.model.architectures.parts import SILU, Activation
from pyengine.model.architectures.temperatures import Temperatures
from pyengine.model.cache_layers import CacheLayer


@dataclass(frozen=True)
class Names:
    """The names of weights; those of a layer follow ``layer``, with its number.

    Attributes:
        embedding: The table of tokens.
        embedding_norm: The norm of what comes from it; None: there is none.
        layer: What a layer's names begin with.
        norm: The last norm.
        head: The head of the logits, where it is not the table.
        attention: What attention's names begin with.
        qkv: Queries, keys and values; one name where a file has one weight of all three.
        out: Attention's output.
        query_norm: The norm of queries.
        key_norm: The norm of keys.
        sinks: The attention sinks of a layer's heads; None: there are none.
        layer_scale: What multiplies hidden states behind a layer; None: nothing does.
        transposed: Files have the weights of layers as inputs by outputs.
        mlp: What the feed-forward layer's names begin with.
        gate_up: Gates and ups; one name where a file has one weight of both, or without gates.
        down: The feed-forward layer's output.
        before_attention: The norm of what goes into attention; None: there is none.
        after_attention: The norm of what comes out of it; None: there is none.
        before_mlp: The norm of what goes into the feed-forward layer; None: there is none, and
            where blocks are parallel, it reads what attention reads.
        after_mlp: The norm of what comes out of it; None: there is none.
    """

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}."
    norm: str = "model.norm"
    head: str = "lm_head"
    attention: str = "self_attn."
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    sinks: str | None = None
    layer_scale: str | None = None
    transposed: bool = False
    mlp: str = "mlp."
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    embedding_norm: str | None = None


NORMS_AFTER = Names(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)
"""Of families that have norms behind attention and feed-forward layers only."""


@dataclass(frozen=True)
class ExpertNames:
    """The names of the weights of a layer's experts, with a place for an expert's number.

    One tensor may have the weights of all experts: see :mod:`pyengine.model.weights.stacked`.

    Attributes:
        gate_up: Gates and ups; one name where a file has one weight of both, or without gates.
        down: The outputs.
        gate_up_bias: The bias of gates and ups; None: there is none.
        down_bias: The bias of the outputs; None: there is none.
        interleaved: Where gates and ups are one weight, a gate and its up are neighbours.
        gated: Whether experts have gates.
    """

    gate_up: tuple[str, ...] = ("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight")
    down: str = "experts.{}.down_proj.weight"
    gate_up_bias: str | None = None
    down_bias: str | None = None
    interleaved: bool = False
    gated: bool = True


STACKED = ExpertNames(gate_up=("experts.gate_up_proj[{}]",), down="experts.down_proj[{}]")
"""Of files that have the weights of all experts of a layer in one tensor, outputs by inputs."""


@dataclass(frozen=True)
class Beside:
    """A mixture that stands beside the layer's dense feed-forward layer (Gemma 4).

    Attributes:
        before: The norm of what goes into the experts.
        after: The norm of what comes out of them.
        router_scale: The weight of the norm of what goes into the router, which 1 / sqrt(hidden)
            multiplies.
        dense_after: The norm of what comes out of the dense layer.
    """

    before: str
    after: str
    router_scale: str
    dense_after: str


@dataclass(frozen=True)
class ExpertLatents:
    """Narrower rows that experts read and write in place of hidden states (Nemotron 3 Super).

    Attributes:
        width: Numbers of a row.
        into: The layer that makes them of hidden states.
        out_of: The layer that makes hidden states of what the experts wrote.
    """

    width: int
    into: str
    out_of: str


@dataclass(frozen=True)
class Mixture:
    """The experts of a family's feed-forward layers.

    Attributes:
        count: Experts.
        inner: Width of each.
        routing: How tokens are sent to them.
        dense: Layers that have one feed-forward layer in their place.
        mlp: What the names of a layer's experts begin with.
        router: The router's name.
        router_bias: Whether the router has a bias.
        names: The names of the experts' weights.
        stacked: Their names where a file has all of a layer's in one tensor, if it may.
        bias: The name of what is added to scores where experts are chosen; None: nothing is.
        scales: The name of what multiplies each expert's weight; None: nothing does.
        shared: The name of the expert that all tokens go through; None: there is none.
        shared_inner: Its width.
        shared_gate: The name of the layer whose sigmoid multiplies it; None: there is none.
        beside: How it goes with a dense layer beside it; None: there is none.
        latents: What the experts read and write; None: hidden states.
    """

    count: int
    inner: int
    routing: Routing
    dense: frozenset[int] = frozenset()
    mlp: str = "mlp."
    router: str = "gate"
    router_bias: bool = False
    names: ExpertNames = field(default_factory=ExpertNames)
    stacked: ExpertNames | None = None
    bias: str | None = None
    scales: str | None = None
    shared: str | None = None
    shared_inner: int = 0
    shared_gate: str | None = None
    beside: Beside | None = None
    latents: ExpertLatents | None = None


@dataclass(frozen=True)
class AttentionGates:
    """Sigmoids that multiply what attention gives, before its output is projected.

    Attributes:
        name: The layer that gives them; None: the projection of queries gives one for each of their
            elements, those of a head behind its queries.
        by_head: The layer gives one for each head, not for each element.
    """

    name: str | None = None
    by_head: bool = True


@dataclass(frozen=True)
class AttentionBeside:
    """Layers attend beside their mixers: both read the same, and what they give is added.

    Attributes:
        attended: Multiplies what attention gives.
        mixed: Multiplies what the mixer gives.
    """

    attended: float = 1.0
    mixed: float = 1.0


@dataclass(frozen=True)
class NormedResidual:
    """Hidden states go on as the norm before a block leaves them, and what the block adds to these.

    Attributes:
        mixed: Multiplies what attention, or another mixer, read.
        mixer: Multiplies what it adds.
        fed: Multiplies what the feed-forward layer read.
        feed: Multiplies what it adds.
    """

    mixed: float = 1.0
    mixer: float = 1.0
    fed: float = 1.0
    feed: float = 1.0


@dataclass(frozen=True)
class LayerInputs:
    """A second input of each layer, from the token itself (Gemma Team, "Gemma 3n", 2025).

    Attributes:
        width: Numbers for each layer.
        vocab: Rows of their table.
        table: The name of the table, of all layers side by side.
        projection: From embeddings to the same.
        norm: The norm of each layer's part of that.
        gate: In a layer, from hidden states.
        out: In a layer, to hidden states.
        after: The norm of that.
    """

    width: int
    vocab: int
    table: str = "model.embed_tokens_per_layer"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm"
    gate: str = "per_layer_input_gate"
    out: str = "per_layer_projection"
    after: str = "post_per_layer_input_norm"


@dataclass(frozen=True)
class PositionTable:
    """A row for each position, which is added to embeddings, in the place of rotation.

    (Gehring et al., "Convolutional Sequence to Sequence Learning", 2017, as GPT-2 has it.)

    Attributes:
        name: The table's.
        first: The row of a sequence's first token.
    """

    name: str
    first: int = 0


@dataclass(frozen=True)
class Traits:
    """Differences of a family from Llama, whose traits are the defaults.

    Attributes:
        names: The names of its weights.
        tied: Whether the head is the table of tokens.
        head_bias: Whether the head has a bias.
        qkv_bias: Whether queries, keys and values have a bias.
        qkv_by_head: One weight has, for each key and value head, the queries' heads that read it,
            then that head of keys and of values.
        out_bias: Whether attention's output has a bias.
        mlp_bias: Whether the feed-forward layer's projections have a bias.
        layer_norm: Norms subtract the mean.
        norm_bias: Norms have a bias, too; of those that subtract the mean.
        norm_weight: Norms have a weight; without one they only normalize.
        norm_offset: Is added to every norm's weight: 1 where a file has what differs from 1.
        epsilon: The epsilon of norms.
        qk_norm: Queries and keys are normalized before they are rotated: each head, all heads of
            a token as one, or each head without a weight.
        qk_norm_layers: The layers in which they are; None: all.
        qk_norm_behind: They are normalized behind their rotation.
        v_norm: Each head of values is normalized, too, without a weight.
        layers: What each layer keeps of a sequence; empty: keys and values of config.json's heads
            and windows, see :func:`pyengine.model.architectures.reading.keys_of_layers`.
        mixers: What layers have in the place of attention; None in the place of a layer's: it
            attends. Empty: all attend.
        lone: What the only block of a layer is: the one that mixes tokens, or the feed-forward one;
            None in the place of a layer's: it has both. Empty: all have.
        attention_beside: How layers with a mixer attend, too; None: they do not.
        mixer_names: The names of their layers, where those of layers that attend differ.
        normed_residual: Of each layer, where what a norm leaves goes on; empty: what was before it
            does.
        attention_gates: What multiplies attention's output; None: nothing does.
        keys_are_values: Layers without a projection of values: those are what keys are before
            they are normalized.
        parallel: Attention and the feed-forward layer both read what the layer is given, and both
            are added.
        activation: The activation of the feed-forward layer.
        gated: Whether the feed-forward layer has gates.
        gate_scale: Multiplies them; of dense layers that have them.
        feed_scale: Multiplies what dense feed-forward layers add.
        inner: The width of each layer's dense feed-forward layer; empty: config.json's.
        mixture: The experts of the feed-forward layers; None: there are none.
        inputs: What each layer gets of a token beside its hidden states; None: nothing.
        interleaved: Rotation turns neighbouring elements of a head, not those half a head apart.
        position_table: What is added to embeddings by position; None: nothing is.
        rotary: The rotary parameters of each layer, as :func:`rotary_parameters` has them; None in
            the place of a layer's: it has no positions. Empty: config.json's, for all layers.
        attention_scale: Multiplies queries times keys; None: 1 / sqrt(head_dim).
        temperatures: Of queries by position, in each layer: what multiplies their scores. None
            for a layer: nothing. Empty: none has them.
        attention_cap: No score leaves -cap..cap: cap * tanh(score / cap).
        embedding_scale: Multiplies the embeddings.
        branch_scale: Multiplies what attention and feed-forward layers add.
        logits_scale: Multiplies the logits.
        logits_cap: No logit leaves -cap..cap: cap * tanh(logit / cap).
        most_tokens: Most tokens of a sequence for which the layers are those of the model; None: as
            many as config.json says.
    """

    names: Names = field(default_factory=Names)
    tied: bool = False
    head_bias: bool = False
    qkv_bias: bool = False
    qkv_by_head: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    layer_norm: bool = False
    norm_bias: bool = False
    norm_weight: bool = True
    norm_offset: float = 0.0
    epsilon: float = 1e-6
    qk_norm: Literal["head", "all", "plain"] | None = None
    qk_norm_layers: frozenset[int] | None = None
    qk_norm_behind: bool = False
    v_norm: bool = False
    layers: tuple[CacheLayer, ...] = ()
    mixers: tuple[Mixer | None, ...] = ()
    lone: tuple[Literal["mixes", "feeds"] | None, ...] = ()
    attention_beside: AttentionBeside | None = None
    mixer_names: Names | None = None
    normed_residual: tuple[NormedResidual, ...] = ()
    attention_gates: AttentionGates | None = None
    keys_are_values: frozenset[int] = frozenset()
    parallel: bool = False
    activation: Activation = SILU
    gated: bool = True
    gate_scale: float = 1.0
    feed_scale: float = 1.0
    inner: tuple[int, ...] = ()
    mixture: Mixture | None = None
    inputs: LayerInputs | None = None
    interleaved: bool = False
    position_table: PositionTable | None = None
    rotary: tuple[Mapping[str, Any] | None, ...] = ()
    attention_scale: float | None = None
    temperatures: tuple[Temperatures | None, ...] = ()
    attention_cap: float | None = None
    embedding_scale: float = 1.0
    branch_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float | None = None
    most_tokens: int | None = None

    def mixer(self, layer: int) -> Mixer | None:
        """What a layer has in the place of attention; None: it attends."""
        return self.mixers[layer] if self.mixers else None

    def has(self, block: Literal["mixes", "feeds"], layer: int) -> bool:
        """Whether a layer has the block that mixes tokens, or the feed-forward one."""
        return not self.lone or self.lone[layer] in (None, block)

    def names_of(self, layer: int) -> Names:
        """The names of a layer's weights."""
        own = self.mixer_names
        return self.names if own is None or self.mixer(layer) is None else own
