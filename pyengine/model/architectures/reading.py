"""Reads what families have in common from a config.json, and refuses what no part is there for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.mixers.mixer import Mixer
from pyengine.model.architectures.parts import ACTIVATIONS, Activation
from pyengine.model.cache_layers import CacheLayer, Keys
from pyengine.model.positions import rotary_parameters
from pyengine.model.windows import layer_windows


def common(
    config: Mapping[str, Any], *, tied: bool = False, epsilon: float = 1e-6
) -> dict[str, Any]:
    """Traits that most families spell as Llama does: the head, the epsilon, the activation.

    Args:
        config: A model's config.json.
        tied: Whether the head is the table, where config.json does not say.
        epsilon: That of norms, where config.json has no ``rms_norm_eps``.
    """
    return {
        "tied": bool(config.get("tie_word_embeddings", tied)),
        "epsilon": number(config, "rms_norm_eps", epsilon),
        "activation": activation(config.get("hidden_act") or "silu"),
    }


def renamed(config: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """A config.json that says by the names given here what it says by theirs, where it does.

    Args:
        config: A model's config.json.
        names: Its own name of what has the usual one.
    """
    own = {usual: config.get(theirs) for usual, theirs in names.items()}
    return {**config, **{usual: value for usual, value in own.items() if value is not None}}


def stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says: all of it that is not null."""
    return {name: value for name, value in config.items() if value is not None}


def keys_beside(
    config: Mapping[str, Any],
    mixers: Sequence[Mixer | None],
    windows: Sequence[int | None] | None = None,
) -> tuple[CacheLayer, ...]:
    """What the layers of a model keep: where they have a mixer what that keeps, else keys and
    values.

    Args:
        config: A model's config.json.
        mixers: The mixers of each layer; None in the place of a layer's: it attends.
        windows: The windows of each layer that attends; None: they have none.

    Raises:
        ModelLoadError: config.json lacks heads.
    """
    keys = keys_of_layers(config, [None] * len(mixers) if windows is None else windows)
    return tuple(
        own if mixer is None else mixer.keeps for own, mixer in zip(keys, mixers, strict=True)
    )


def layers_of_kinds(config: Mapping[str, Any], *known: str) -> list[str]:
    """The kind of each layer, as ``layer_types`` says.

    Raises:
        ModelLoadError: It is no list of as many of the ``known`` kinds as there are layers.
    """
    kinds, layers = config.get("layer_types"), layer_count(config)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelLoadError(f"config.json: 'layer_types' must name {layers} layers, not {kinds!r}")
    unknown = sorted({str(kind) for kind in kinds} - set(known))
    if unknown:
        raise ModelLoadError(
            f"layers of {unknown[0]!r} are not supported; there are: {', '.join(known)}"
        )
    return kinds


def activation(name: str) -> Activation:
    """The activation that a config.json calls ``name``.

    Raises:
        ModelLoadError: It is not supported.
    """
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelLoadError(f"activation {name!r} is not supported; there are: {known}")
    return Activation(ACTIVATIONS[name])


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """The number called ``name``.

    Raises:
        ModelLoadError: It is none.
    """
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelLoadError(f"config.json: {name!r} must be a number, not {value!r}")
    return float(value)


def count(config: Mapping[str, Any], name: str) -> int:
    """The positive integer called ``name``.

    Raises:
        ModelLoadError: It is none.
    """
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"config.json: {name!r} must be a positive integer, not {value!r}")
    return value


def refuse(config: Mapping[str, Any], *names: str) -> None:
    """Check that config.json asks for nothing by these names.

    Raises:
        ModelLoadError: One of them is there, and is neither false nor null.
    """
    for name in names:
        if config.get(name):
            raise ModelLoadError(
                f"config.json: {name!r} of {config[name]!r} is not supported by "
                f"{(config.get('architectures') or ['this architecture'])[0]}"
            )


def require(config: Mapping[str, Any], name: str, *values: Any) -> None:
    """Check that config.json has one of ``values`` by this name, or nothing.

    Raises:
        ModelLoadError: It has another one.
    """
    value = config.get(name)
    if value is not None and value not in values:
        raise ModelLoadError(
            f"config.json: {name!r} of {value!r} is not supported; there is: "
            f"{', '.join(map(repr, values))}"
        )


def layer_count(config: Mapping[str, Any]) -> int:
    """How many layers a model has.

    Raises:
        ModelLoadError: config.json does not say.
    """
    return count(config, "num_hidden_layers")


def keys_of_layers(
    config: Mapping[str, Any],
    windows: Sequence[int | None] | None = None,
    *,
    chunked: bool = False,
) -> tuple[Keys, ...]:
    """What the layers of a model keep that all attend, with the heads that config.json gives all.

    Args:
        config: A model's config.json.
        windows: That of each layer; None: as config.json says.
        chunked: Windows are chunks.

    Raises:
        ModelLoadError: config.json lacks heads, or has windows that are not supported.
    """
    heads, hidden = count(config, "num_attention_heads"), count(config, "hidden_size")
    kv_heads = config.get("num_key_value_heads")
    dim = config.get("head_dim")
    keys = Keys(
        heads if kv_heads is None else count(config, "num_key_value_heads"),
        hidden // heads if dim is None else count(config, "head_dim"),
    )
    if not keys.head_dim:
        raise ModelLoadError(
            f"config.json: 'hidden_size' of {hidden} is less than 'num_attention_heads', {heads}"
        )
    if windows is None:
        windows = layer_windows(config, layer_count(config))
    return tuple(
        replace(keys, window=window, chunked=chunked and window is not None) for window in windows
    )


def dense_first_layers(config: Mapping[str, Any], first: int = 0) -> frozenset[int]:
    """The layers of a model with experts that have none: ``mlp_layer_types`` says which, or
    ``first_k_dense_replace`` how many come first; ``first``: where neither is there.
    """
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")
    given = config.get("first_k_dense_replace")
    return frozenset(range(first if given is None else given))


def whole_heads(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters of a family that rotates whole heads.

    Raises:
        ModelLoadError: config.json asks for a part of them.
    """
    rotary = rotary_parameters(config)
    part = rotary["partial_rotary_factor"]
    if part != 1:
        raise ModelLoadError(f"'partial_rotary_factor' of {part!r} is not supported; there is: 1")
    return rotary


def with_positions(
    config: Mapping[str, Any], has_positions: Iterable[bool]
) -> tuple[Mapping[str, Any] | None, ...]:
    """The rotary parameters of each layer, None for the layers that have no positions.

    Raises:
        ModelLoadError: There are not as many answers as layers.
    """
    flags = tuple(has_positions)
    if len(flags) != layer_count(config):
        raise ModelLoadError(
            f"config.json says of {len(flags)} layers whether they have positions, and has "
            f"{layer_count(config)}"
        )
    rotary = whole_heads(config)
    return tuple(rotary if flag else None for flag in flags)


def layer_types(config: Mapping[str, Any], pattern: int | None = None) -> list[str]:
    """The kind of each layer: ``full_attention`` or ``sliding_attention``.

    Args:
        config: A model's config.json.
        pattern: Where config.json has neither ``layer_types`` nor ``sliding_window_pattern``, every
            that many layers one is full; None: all are.

    Raises:
        ModelLoadError: There is another kind, or there are not as many as layers.
    """
    count = layer_count(config)
    types = config.get("layer_types")
    if types is None:
        every = config.get("sliding_window_pattern") or pattern or 1
        types = [
            "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
            for layer in range(count)
        ]
    if len(types) != count:
        raise ModelLoadError(f"config.json: 'layer_types' has {len(types)} entries, not {count}")
    return [str(kind) for kind in types]
