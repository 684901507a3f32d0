"""How a model's folder wants its texts made vectors: sentence-transformers' ``modules.json``.

::

    modules.json   Transformer ──► Pooling ──► Normalize
                                   1_Pooling/config.json: the last token's state, or the mean of all

A folder without one was not trained for vectors; the last token's state, normalized, is what there
is. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pyengine.tokenizer.json_files import read_json, read_value

Pooling = Literal["last", "mean"]

_POOLINGS: dict[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
# Older folders have a flag for each.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class VectorSpec:
    """The way from texts to vectors.

    Attributes:
        pooling: The pooling of the last hidden states.
        normalize: Whether vectors have length 1.
        declared: Whether the folder says so; else the model was not trained for vectors.
        refusal: Why no vectors can be had: what the folder asks for and is not supported.
        generates: Whether the model has a head for tokens.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    declared: bool = False
    refusal: str | None = None
    generates: bool = True


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a model with a head for tokens, and not of its body alone."""
    given = config.get("architectures") or ""
    name = str(given[0] if isinstance(given, list) else given)
    return name.endswith("LMHeadModel") or not name.endswith("Model")


def read_vectors(folder: Path) -> VectorSpec:
    """Reads how the model in ``folder`` makes vectors.

    Raises:
        ModelLoadError: A file cannot be read.
    """
    config = read_json(folder / "config.json")
    spec = VectorSpec(generates=has_head(config))
    if config.get("is_causal") is False:
        return replace(spec, refusal="its tokens see those behind them ('is_causal' is false)")
    modules = read_value(folder / "modules.json", None)
    if modules is None:
        return spec
    spec = replace(spec, normalize=False, declared=True)
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            spec = _pooled(spec, read_json(folder / str(module.get("path", "")) / "config.json"))
        elif kind == "Normalize":
            spec = replace(spec, normalize=True)
        elif kind != "Transformer":
            return replace(spec, refusal=f"its modules.json asks for a module {kind!r}")
    return spec


def _pooled(spec: VectorSpec, config: Mapping[str, Any]) -> VectorSpec:
    given = config.get("pooling_mode") or [
        mode for flag, mode in _FLAGS.items() if config.get(flag)
    ]
    modes = [given] if isinstance(given, str) else list(given)
    pooling = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        return replace(spec, refusal=f"it pools by {' and '.join(modes) or 'nothing'}")
    if pooling == "mean" and config.get("include_prompt") is False:
        return replace(spec, refusal="its mean leaves out the tokens of an instruction")
    return replace(spec, pooling=pooling)
