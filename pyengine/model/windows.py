"""Sliding windows as config.json spells them: how far back each layer of a model sees.

Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError

_PATTERNS: dict[str, int] = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gpt_oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo3": 4,
}
"""By ``model_type``, for folders whose config.json leaves it out: of so many layers, the last sees
all tokens and the others have the window."""

_UNUSED_UNLESS_SAID = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
"""Families whose configurations have a window that counts only with ``use_sliding_window``."""


def layer_windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """For each layer, the tokens that a query sees, its own counted in; None: all before it.

    config.json says which layers have the window by ``layer_types``, by ``sliding_window_pattern``
    or by ``max_window_layers``, the first layer that has it; or all of them have it.

    Args:
        config: A model's config.json.
        layers: Its layers.

    Raises:
        ModelLoadError: The window is no positive integer, or there are other kinds of layers.
    """
    kinds = config.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise ModelLoadError(f"config.json: 'layer_types' must be a list, not {kinds!r}")
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelLoadError(
                f"layers of {kind!r} are not supported; there are: full_attention, "
                "sliding_attention"
            )
    if kinds is not None and len(kinds) != layers:
        raise ModelLoadError(f"config.json: 'layer_types' must name {layers} layers, not {kinds!r}")
    window = config.get("sliding_window")
    used = config.get("use_sliding_window", config.get("model_type") not in _UNUSED_UNLESS_SAID)
    if window is None or not used:
        return (None,) * layers
    slides = [_slides(config, layer) for layer in range(layers)]
    if any(slides) and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise ModelLoadError(
            f"config.json: 'sliding_window' must be a positive integer, not {window!r}"
        )
    return tuple(window if slide else None for slide in slides)


def _slides(config: Mapping[str, Any], layer: int) -> bool:
    kinds = config.get("layer_types")
    if kinds is not None:
        return bool(kinds[layer] == "sliding_attention")
    pattern = config.get("sliding_window_pattern")
    if pattern is None:
        pattern = _PATTERNS.get(str(config.get("model_type")))
    if pattern is not None:
        if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
            raise ModelLoadError(
                f"config.json: 'sliding_window_pattern' must be a positive integer, not {pattern!r}"
            )
        return (layer + 1) % pattern != 0
    first = config.get("max_window_layers") or 0
    return not isinstance(first, int) or layer >= first
