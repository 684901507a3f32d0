"""The decoder that most architectures are: grouped-query attention with rotary positions, and a
feed-forward layer, each with norms before or after or both::

    x ─┬─ norm ─ attention ─ norm ─ + ─┬─ norm ─ feed-forward ─ norm ─ + ─►
       └────────────────────────────┘  └──────────────────────────────┘

    x ─┬─ norm ─┬─ attention ────── + ─ + ─►      parallel; the second may have
       │        └─ feed-forward ────┘   │         a norm of its own
       └────────────────────────────────┘

An architecture says by its :class:`Traits` what its layers are made of; the forward pass is the
same for all. With several ranks each has a share of the heads, of the feed-forward layer's width
and of the vocabulary; widths of buffers are those of one rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.architectures.layer_inputs import InputTable
from pyengine.model.architectures.layers import Layers, Stream, capping, scaling
from pyengine.model.architectures.parts import Parts, Step, logits_rows
from pyengine.model.architectures.position_embedding import PositionEmbedding
from pyengine.model.architectures.projections import Projections
from pyengine.model.architectures.reading import refuse, whole_heads
from pyengine.model.architectures.rotary import rotary_table
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class Decoder:
    """Weights, KV cache and buffers of a decoder. One thread at a time.

    Attributes:
        logits_rows: [rows, vocabulary], where :meth:`logits` writes.
        states_rows: [rows, hidden], where :meth:`states` writes.
    """

    def __init__(self, made: Projections) -> None:
        """Load the weights and make the cache.

        Raises:
            ModelLoadError: Weights are missing.
            ConfigError: The model cannot be divided among the ranks.
        """
        info, weights, parts, names = made.info, made.weights, made.parts, made.traits.names
        _check(made)
        self._parts = parts
        tokens, rows, hidden = parts.max_tokens, logits_rows(parts, info), info.hidden_size
        table = weights.outputs({f"{names.embedding}.weight": info.vocab_size}, hidden)
        self._embedding = parts.shared_table(table, info.vocab_size)
        self._stream = Stream(*(parts.buffer(tokens, hidden) for _ in range(4)))
        # Embeddings that are normalized are where the norm does not write.
        normed = names.embedding_norm
        self._embedded_norm = None if normed is None else made.norm(normed)
        self._first = self._stream.residual if normed is None else self._stream.other
        positions = made.traits.position_table
        self._positions = [] if positions is None else [PositionEmbedding(made, positions)]
        inputs = made.traits.inputs
        self._inputs = None if inputs is None else InputTable(made, inputs)
        layers = Layers(made, self._stream, self._inputs)
        self._layers = [layers.layer(index) for index in range(len(info.layers))]
        self._norm = made.norm(names.norm)
        head = table
        if not made.traits.tied:
            head = weights.outputs({f"{names.head}.weight": info.vocab_size}, hidden)
        bias = {f"{names.head}.bias": info.vocab_size}
        self._head = parts.head(
            head, info, weights.vectors(bias) if made.traits.head_bias else None
        )
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
        self._embedding(step.token_ids, self._first, tokens)
        for adjust in self._embedded:
            adjust(self._first, tokens)
        for add in self._positions:
            add(step, self._first, tokens)
        if self._embedded_norm is not None:
            self._embedded_norm(self._first, None, stream.residual, tokens)
        if self._inputs is not None:
            self._inputs(step, stream.residual, tokens)
        branch = None
        for layer in self._layers:
            layer(step, stream, branch, tokens)
            branch = stream.branch

    def logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``logit_token[first : first + rows]``, in ``logits_rows``."""
        self._logits(step.logit_token, rows, first)

    def prompt_logits(self, step: Step, rows: int, first: int = 0) -> None:
        """Logits after the tokens ``prompt_token[first : first + rows]``, in ``logits_rows``."""
        self._logits(step.prompt_token, rows, first)

    def _logits(self, index: Any, rows: int, first: int) -> None:
        self._last_states(index, rows, first)
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


@dataclass(frozen=True)
class Family:
    """An architecture that is a decoder: see :data:`pyengine.model.architectures.Build`.

    Attributes:
        traits: Reads from a config.json what sets its models apart.
        respelled: Says what its config.json says by the names that most families have.
    """

    traits: Callable[[Mapping[str, Any]], Traits]
    respelled: Callable[[Mapping[str, Any]], dict[str, Any]] = dict

    def check(self, info: ModelInfo, config: Mapping[str, Any]) -> None:
        """Refuse a config.json that asks for what is not supported, which takes no weights.

        Raises:
            ModelLoadError: Naming it.
        """
        traits = self.traits(config)
        # Qwen2.5 of a million tokens, models that also see, and those whose tokens see all others.
        refuse(config, "dual_chunk_attention_config", "use_mrope")
        # "vision": the tokens of one image see each other, and there are none.
        if config.get("use_bidirectional_attention") != "vision":
            refuse(config, "use_bidirectional_attention")
        if traits.mixture is not None:
            _check_routing(traits.mixture)
        rotary = traits.rotary or (whole_heads(config),) * len(info.layers)
        for layer, keys in info.attention_layers.items():
            if keys.head_dim % 2:
                raise ModelLoadError(
                    f"config.json: heads of {keys.head_dim} elements are not supported"
                )
            if (parameters := rotary[layer]) is not None:
                rotary_table(config, keys.head_dim, 1, parameters)

    def __call__(
        self, info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts
    ) -> Decoder:
        """The model with its weights and cache.

        Raises:
            ModelLoadError: As :class:`Decoder`, or files have weights that it has no use for.
        """
        self.check(info, config)
        made = Decoder(Projections(info, config, weights, parts, self.traits(config)))
        weights.check_all_read(config)
        return made


def decoder(
    traits: Callable[[Mapping[str, Any]], Traits],
    respelled: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> Family:
    """An architecture whose traits are those that ``traits`` reads from a config.json.

    Args:
        traits: Given a config.json in the names that most families have.
        respelled: Says a config.json in these names, where the family has its own.
    """
    return Family(traits, respelled)


def _check(made: Projections) -> None:
    info, ranks = made.info, made.parts.ranks
    mixture, layers = made.traits.mixture, range(len(info.layers))
    divided = made.parts.expert_parallel
    if divided:
        _check_experts(info, 0 if mixture is None else mixture.count, ranks)
    dense = [
        at
        for at in layers
        if made.traits.has("feeds", at)
        and (mixture is None or mixture.beside or at in mixture.dense)
    ]
    for name, count in (
        *{("kv heads", layer.kv_heads) for layer in info.attention_layers.values()},
        *{pair for mixer in made.traits.mixers if mixer for pair in mixer.shared.items()},
        *{("feed-forward units", made.inner(layer)) for layer in dense},
        ("units of an expert", 0 if mixture is None or divided else mixture.inner),
        ("units of the shared expert", 0 if mixture is None else mixture.shared_inner),
    ):
        if count % ranks:
            raise ConfigError(
                f"{count} {name} of {info.name} cannot be divided by {ranks} ranks; "
                "'tensor_parallel' must be a divisor",
                param="tensor_parallel",
            )


def _check_routing(mixture: Mixture) -> None:
    routing = mixture.routing
    among = mixture.count // routing.groups * routing.chosen_groups
    if mixture.count % routing.groups or not routing.chosen <= among <= mixture.count:
        raise ModelLoadError(
            f"config.json sends a token to {routing.chosen} of {mixture.count} experts, of "
            f"{routing.chosen_groups} of {routing.groups} groups"
        )


def _check_experts(info: ModelInfo, count: int, ranks: int) -> None:
    if count and count % ranks == 0:
        return
    raise ConfigError(
        f"{count} experts of {info.name} cannot be divided by {ranks} ranks; leave "
        "'expert_parallel' out, and each rank has a share of every expert"
        if count
        else f"{info.name} has no experts that ranks could divide; leave 'expert_parallel' out",
        param="expert_parallel",
    )
