"""The table of rotary angles (Su et al., "RoFormer", 2021), with the scalings for long contexts.

Numbers are those of transformers' ``modeling_rope_utils``. Pair i of a head's elements turns by
``position * theta ** (-2i / head_dim)``; a scaling divides the frequencies, all or some of them::

    pair        0 ──────────────────────────────► head_dim / 2
    frequency   high                                       low
    linear      / factor         / factor             / factor
    llama3      kept ──── by turns, a ramp ────────── / factor
    yarn        kept ──── by pairs, a ramp ────────── / factor     and cosines, sines * attention
    longrope    / factors, one for each pair                       and cosines, sines * attention
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.positions import rotary_parameters

Frequencies = NDArray[np.float32]
Scaled = tuple[Frequencies, float]


def rotated_elements(rotary: Mapping[str, Any], head_dim: int) -> int:
    """Number of a head's elements that are rotated, from the first on.

    Raises:
        ModelLoadError: They are no pairs, or more than there are.
    """
    # Gemma 4's proportional kind has a frequency for every pair, and those beyond are 0.
    if rotary["rope_type"] == "proportional":
        return head_dim
    part = rotary["partial_rotary_factor"]
    try:
        rotated = int(head_dim * float(part))
    except (TypeError, ValueError):
        rotated = 0
    if not 0 < rotated <= head_dim or rotated % 2:
        raise ModelLoadError(
            f"'partial_rotary_factor' of {part!r} is not supported for heads of {head_dim} elements"
        )
    return rotated


def rotary_table(
    config: Mapping[str, Any],
    head_dim: int,
    context: int,
    parameters: Mapping[str, Any] | None = None,
) -> NDArray[np.float32]:
    """Cosines, then sines, of the rotary angles: float32 [context, head_dim].

    Elements that are not rotated have the angle 0; see :mod:`pyengine.model.architectures.heads`.

    Args:
        config: A model's config.json.
        head_dim: Elements of a head.
        context: Positions.
        parameters: A layer's parameters, from :func:`rotary_parameters`; None: config.json's.

    Raises:
        ModelLoadError: Another scaling, one for each kind of layer, or a parameter that is missing
            or no number.
    """
    rotary = dict(rotary_parameters(config) if parameters is None else parameters)
    if any(isinstance(value, Mapping) for value in rotary.values()):
        raise ModelLoadError("rotary parameters that differ between layers are not supported")
    kind = rotary["rope_type"]
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise ModelLoadError(f"rotary scaling {kind!r} is not supported; there are: {known}")
    most = config.get("max_position_embeddings")
    # Where config.json does not say with how many positions a model was trained, it was with all.
    if not rotary.get("original_max_position_embeddings"):
        rotary["original_max_position_embeddings"] = most
    rotary |= {"context": context, "max_position_embeddings": most}
    rotated = rotated_elements(rotary, head_dim)
    try:
        theta = float(rotary["rope_theta"])
        exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
        frequencies, attention = _SCALINGS[kind](
            np.float32(1) / np.float32(theta) ** exponents, rotary, theta
        )
    except KeyError as error:
        raise ModelLoadError(f"rotary scaling {kind!r} in config.json lacks {error}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"rotary scaling {kind!r} in config.json: {error}") from error
    angles = np.outer(np.arange(context, dtype=np.float32), frequencies.astype(np.float32))
    table = still(context, head_dim)
    pairs, half = rotated // 2, head_dim // 2
    table[:, :pairs] = np.cos(angles) * np.float32(attention)
    table[:, half : half + pairs] = np.sin(angles) * np.float32(attention)
    return table


def still(context: int, head_dim: int) -> NDArray[np.float32]:
    """The table of a layer without positions: every angle is 0."""
    table = np.zeros((context, head_dim), np.float32)
    table[:, : head_dim // 2] = 1
    return table


def _default(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    return frequencies, 1.0


def _linear(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """Positions are divided (Chen et al., "Extending Context Window [...]", 2023)."""
    return frequencies / float(rotary["factor"]), 1.0


def _dynamic(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """NTK scaling that begins beyond the context of training, to which a sequence is limited."""
    return frequencies, 1.0


def _proportional(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """Only the first pairs turn, with the frequencies that they have among all (Gemma 4)."""
    turning = int(float(rotary["partial_rotary_factor"]) * len(frequencies))
    kept = np.where(np.arange(len(frequencies)) < turning, frequencies, np.float32(0))
    scaled: Frequencies = (kept / np.float32(rotary.get("factor") or 1.0)).astype(np.float32)
    return scaled, 1.0


def _longrope(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """A factor for each pair (Ding et al., "LongRoPE", 2024): the long ones for the angles of a
    context beyond that of training. Which angles a sequence has is said by its length, see
    :attr:`pyengine.model.runner.ModelInfo.short_context`.
    """
    trained = float(rotary["original_max_position_embeddings"])
    factor = float(rotary.get("factor") or rotary["max_position_embeddings"] / trained)
    name = "long_factor" if rotary["context"] > trained else "short_factor"
    factors: Frequencies = np.asarray(rotary[name], np.float32)
    attention = rotary.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return frequencies / factors, float(attention)


def _factors(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """Each frequency is divided by a factor of its own: a GGUF file has what became of llama3's."""
    factors: Frequencies = np.asarray(rotary["factors"], np.float32)
    return frequencies / factors, 1.0


def _llama3(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """Low frequencies are divided, high ones kept, by the turns in the context of training."""
    factor = float(rotary["factor"])
    low, high = float(rotary["low_freq_factor"]), float(rotary["high_freq_factor"])
    turns = float(rotary["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    # 0 where a wave is longer than the lower bound, 1 where it is shorter than the upper.
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * ((1.0 - kept) / factor + kept), 1.0


def _yarn(frequencies: Frequencies, rotary: Mapping[str, Any], theta: float) -> Scaled:
    """YaRN's frequencies (Peng et al., "YaRN: Efficient Context Window Extension", 2023)."""
    factor = float(rotary["factor"])
    trained = float(rotary["original_max_position_embeddings"])
    pairs = len(frequencies)

    def pair(turns: float) -> float:
        """The pair that turns so often in the context of training; mostly between two pairs."""
        return pairs * math.log(trained / (turns * 2 * math.pi)) / math.log(theta)

    first = pair(float(rotary.get("beta_fast") or 32))
    last = pair(float(rotary.get("beta_slow") or 1))
    if rotary.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    ramp = (np.arange(pairs, dtype=np.float32) - first) / (last - first or 0.001)
    kept = 1.0 - np.clip(ramp, 0.0, 1.0)
    return frequencies * ((1.0 - kept) / factor + kept), _yarn_attention(rotary, factor)


def _yarn_attention(rotary: Mapping[str, Any], factor: float) -> float:
    """The factor of cosines and sines: attention's temperature, in both its factors."""
    given = rotary.get("attention_factor")
    if given is not None:
        return float(given)

    def temperature(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    part, whole = rotary.get("mscale"), rotary.get("mscale_all_dim")
    if part and whole:
        return temperature(float(part)) / temperature(float(whole))
    return temperature(1.0)


_SCALINGS: dict[str, Callable[[Frequencies, Mapping[str, Any], float], Scaled]] = {
    "default": _default,
    "dynamic": _dynamic,
    "factors": _factors,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "mrope": _default,  # of text, all parts of a position are one
    "proportional": _proportional,
    "yarn": _yarn,
}
