"""Sliding windows as config.json spells them: how far back each layer of a model sees.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyengine.errors import ModelLoadError


@dataclass(frozen=True)
class _LeftOut:
    """What config.json of a family means where it does not say.

    Attributes:
        window: Where it has no ``sliding_window``; null there is none.
        every: Of so many layers, one sees all tokens; None: all have the window.
        first: It is the first of them, not the last.
    """

    window: int
    every: int | None = None
    first: bool = False


_LEFT_OUT: dict[str, _LeftOut] = {
    "cohere2": _LeftOut(4096, 4),
    "cwm": _LeftOut(8192, 4, first=True),
    "dots1": _LeftOut(4096, 1),
    "exaone4": _LeftOut(4096, 4),
    "exaone_moe": _LeftOut(4096, 4),
    "gemma2": _LeftOut(4096, 2),
    "gemma3_text": _LeftOut(4096, 6),
    "gemma4_text": _LeftOut(512, 6),
    "gemma4_unified_text": _LeftOut(1024, 6),
    "gpt_oss": _LeftOut(128, 2),
    "granite_swa": _LeftOut(128, 4, first=True),
    "granitemoe_swa": _LeftOut(128, 4, first=True),
    "mellum": _LeftOut(1024, 1),
    "ministral": _LeftOut(4096),
    "mistral": _LeftOut(4096),
    "olmo3": _LeftOut(4096, 4),
    "vaultgemma": _LeftOut(4096, 2),
}
"""By ``model_type``, as transformers' configurations have it."""

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
    window = window_of(config)
    used = config.get("use_sliding_window", config.get("model_type") not in _UNUSED_UNLESS_SAID)
    if window is None or not used:
        return (None,) * layers
    slides = [_slides(config, layer) for layer in range(layers)]
    if any(slides) and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
        raise ModelLoadError(
            f"config.json: 'sliding_window' must be a positive integer, not {window!r}"
        )
    return tuple(window if slide else None for slide in slides)


def window_of(config: Mapping[str, Any]) -> Any:
    """``sliding_window`` of a config.json, or what it means that there is none; None: no window."""
    left_out = _LEFT_OUT.get(str(config.get("model_type")))
    return config.get("sliding_window", None if left_out is None else left_out.window)


def _slides(config: Mapping[str, Any], layer: int) -> bool:
    kinds = config.get("layer_types")
    if kinds is not None:
        return bool(kinds[layer] == "sliding_attention")
    left_out = _LEFT_OUT.get(str(config.get("model_type")))
    pattern = config.get("sliding_window_pattern")
    if pattern is None and left_out is not None:
        pattern = left_out.every
        if left_out.first and pattern is not None:
            return layer % pattern != 0
    if pattern is not None:
        if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
            raise ModelLoadError(
                f"config.json: 'sliding_window_pattern' must be a positive integer, not {pattern!r}"
            )
        return (layer + 1) % pattern != 0
    first = config.get("max_window_layers") or 0
    return not isinstance(first, int) or layer >= first
