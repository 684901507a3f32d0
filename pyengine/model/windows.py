"""Sliding windows as config.json spells them: how far back each layer of a model sees.

Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError

_FULL_LAYERS: dict[str, tuple[int, bool]] = {
    "cohere2": (4, False),
    "cwm": (4, True),
    "exaone4": (4, False),
    "exaone_moe": (4, False),
    "gemma2": (2, False),
    "gemma3_text": (6, False),
    "gemma4_text": (6, False),
    "gemma4_unified_text": (6, False),
    "gpt_oss": (2, False),
    "granite_swa": (4, True),
    "granitemoe_swa": (4, True),
    "dots1": (1, False),
    "mellum": (1, False),
    "olmo3": (4, False),
    "vaultgemma": (2, False),
}
"""By ``model_type``: one layer of how many sees all tokens, where config.json says nothing of
layers, and whether it is the first of them, not the last. In families that are not here all layers
have the window, if there is one."""


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
    if window is None or not config.get("use_sliding_window", True):
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
    if pattern is None and config.get("model_type") in _FULL_LAYERS:
        pattern, first = _FULL_LAYERS[config["model_type"]]
        if first:
            return layer % pattern != 0
    if pattern is not None:
        if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
            raise ModelLoadError(
                f"config.json: 'sliding_window_pattern' must be a positive integer, not {pattern!r}"
            )
        return (layer + 1) % pattern != 0
    begin = config.get("max_window_layers") or 0
    return not isinstance(begin, int) or layer >= begin
