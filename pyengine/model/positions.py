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
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"config.json: rotary parameters must be an object, not {given!r}")
    outside = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    return {
        **given,
        "rope_type": given.get("rope_type") or given.get("type") or "default",
        "rope_theta": given.get("rope_theta") or outside["rope_theta"] or 10_000.0,
        "partial_rotary_factor": given.get("partial_rotary_factor")
        or outside["partial_rotary_factor"]
        or 1.0,
    }


def max_positions(config: Mapping[str, Any], positions: int) -> int:
    """The most tokens of a sequence of which the model's attention is what the engine computes.

    YaRN stretches the positions that a model was trained with by its factor, which config.json's
    ``max_position_embeddings`` may or may not count in. A model with a sliding window sees no
    token further back than that; the engine attends to all, which is the same up to its length.

    Args:
        config: A model's config.json.
        positions: Its ``max_position_embeddings``.

    Raises:
        ModelLoadError: The window is no positive integer, or :func:`rotary_parameters` fails.
    """
    rotary = rotary_parameters(config)
    if rotary["rope_type"] == "yarn":
        factor, trained = rotary.get("factor"), rotary.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and isinstance(trained, int | float):
            positions = max(positions, int(factor * trained))
    window = sliding_window(config)
    return positions if window is None else min(positions, window)


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """How far back some of the layers see, in tokens, their own counted in; None: to the start.

    Raises:
        ModelLoadError: It is no positive integer.
    """
    window = config.get("sliding_window")
    if window is None or not config.get("use_sliding_window", True):
        return None
    # Qwen's configurations say which layer is the first with a window.
    first, layers = config.get("max_window_layers") or 0, config.get("num_hidden_layers")
    if isinstance(layers, int) and first >= layers:
        return None
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise ModelLoadError(
            f"config.json: 'sliding_window' must be a positive integer, not {window!r}"
        )
    return window
