"""Positions as config.json spells them: their rotation's parameters, and how many a sequence has.

Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError


def rotary_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of rotary positions, spelled as transformers 5 does.

    ``rope_type``, ``rope_theta`` and ``partial_rotary_factor`` are always there, the others as
    config.json has them. Before version 5, some of them stood apart and some in ``rope_scaling``.

    Raises:
        ModelLoadError: They are no object.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"config.json: rotary parameters must be an object, not {given!r}")
    outside = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    beside = config.get("rope_parameters")
    if isinstance(beside, Mapping):
        # A scaling that is added to a config.json says nothing of the base, which stays.
        outside |= {key: beside[key] for key in outside if beside.get(key) is not None}
    return {
        **given,
        "rope_type": given.get("rope_type") or given.get("type") or "default",
        "rope_theta": given.get("rope_theta") or outside["rope_theta"] or 10_000.0,
        "partial_rotary_factor": given.get("partial_rotary_factor")
        or outside["partial_rotary_factor"]
        or 1.0,
    }


def rotary_by_kind(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The rotary parameters of the layers of a kind, such as ``sliding_attention``.

    Before version 5 of transformers, ``rope_local_base_freq`` was that of layers with a window, and
    all else that of the others.

    Raises:
        ModelLoadError: They are no object.
    """
    local = config.get("rope_local_base_freq") if kind == "sliding_attention" else None
    theta = config.get("rope_theta") if local is None else local
    scaling, given = config.get("rope_scaling") or {}, config.get("rope_parameters")
    if isinstance(given, Mapping) and isinstance(given.get(kind), Mapping):
        # A scaling that is added beside them is of the layers that see all tokens.
        added = scaling if kind == "full_attention" else {}
        return rotary_parameters({"rope_theta": theta, "rope_parameters": {**given[kind], **added}})
    if isinstance(scaling.get(kind), Mapping):
        return rotary_parameters({"rope_theta": theta, "rope_parameters": scaling[kind]})
    if local is not None:
        return rotary_parameters({"rope_theta": local})
    return rotary_parameters(config)


def short_context(config: Mapping[str, Any], context: int) -> int | None:
    """The tokens up to which sequences have LongRoPE's short factors; None: there is one kind.

    Args:
        config: A model's config.json.
        context: Most tokens of a sequence, as it is served.

    Raises:
        ModelLoadError: :func:`rotary_parameters` fails.
    """
    rotary = rotary_parameters(config)
    trained = rotary.get("original_max_position_embeddings")
    trained = trained or config.get("original_max_position_embeddings")
    if "long_factor" not in rotary or not isinstance(trained, int):
        return None
    return trained if 0 < trained < context else None


def max_positions(config: Mapping[str, Any], positions: int) -> int:
    """The most tokens of a sequence that a model was made for.

    YaRN stretches the positions that a model was trained with by its factor, which config.json's
    ``max_position_embeddings`` may or may not count in.

    Args:
        config: A model's config.json.
        positions: Its ``max_position_embeddings``.

    Raises:
        ModelLoadError: :func:`rotary_parameters` fails.
    """
    rotary = rotary_parameters(config)
    if rotary["rope_type"] == "yarn":
        factor, trained = rotary.get("factor"), rotary.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and isinstance(trained, int | float):
            positions = max(positions, int(factor * trained))
    return positions
