"""How a model's folder wants its texts made vectors: sentence-transformers' ``modules.json``.

::

    modules.json   Transformer ──► Pooling ──► Normalize
                                   1_Pooling/config.json: the last token's state, or the mean of all

A folder without one was not trained for vectors; the last token's state, normalized, is what there
is. Of a classifier (``*ForSequenceClassification``, rerankers and reward models among them) its
head makes scores of labels; it is small, and stays with the frontend. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pyengine.errors import ModelLoadError
from pyengine.model.config_defaults import CLASSIFIER
from pyengine.model.text_part import text_part
from pyengine.tokenizer.json_files import read_json, read_value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyengine.model.weights.matrix import Dense

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


@dataclass(frozen=True, eq=False)
class ScoreHead:
    """The head. Any thread.

    Attributes:
        weight: float32 [labels, hidden_size].
        labels: The names of the labels.
        apart: Whether each label is true or false by itself; else one of them is true.
    """

    weight: "NDArray[np.float32]"
    labels: tuple[str, ...]
    apart: bool

    def logits(self, states: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """The scores, float32 [labels], of pooled states, float32 [hidden_size]."""
        made: NDArray[np.float32] = self.weight @ states
        return made

    def probabilities(self, logits: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Probabilities of the labels; those of labels that are not apart sum to 1."""
        import numpy as np

        if self.apart:
            return (1 / (1 + np.exp(-np.clip(logits, -80, 80)))).astype(np.float32)
        grown = np.exp(logits - logits.max())
        made: NDArray[np.float32] = grown / grown.sum()
        return made


@dataclass(frozen=True)
class VectorSpec:
    """The way from texts to vectors.

    Attributes:
        pooling: The pooling of the last hidden states.
        normalize: Whether vectors have length 1.
        declared: Whether the folder says so; else the model was not trained for vectors.
        refusal: Why no vectors can be had: what the folder asks for and is not supported.
        generates: Whether the model has a head for tokens.
        head: The head of a classifier; None of any other model.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    declared: bool = False
    refusal: str | None = None
    generates: bool = True
    head: ScoreHead | None = None


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a model with a head for tokens, and not of its body alone."""
    name = _architecture(config)
    return name.endswith("LMHeadModel") or not name.endswith(("Model", CLASSIFIER))


def _architecture(config: Mapping[str, Any]) -> str:
    given = config.get("architectures") or ""
    return str(given[0] if isinstance(given, list) else given)


def read_vectors(folder: Path) -> VectorSpec:
    """Reads how the model in ``folder`` makes vectors.

    Raises:
        ModelLoadError: A file cannot be read.
    """
    config = read_json(folder / "config.json")
    spec = VectorSpec(generates=has_head(config))
    if config.get("is_causal") is False:
        return replace(spec, refusal="its tokens see those behind them ('is_causal' is false)")
    if (name := _architecture(config)).endswith(CLASSIFIER):
        return replace(spec, normalize=False, head=_score_head(folder, config, name))
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


def _score_head(folder: Path, config: Mapping[str, Any], architecture: str) -> ScoreHead:
    """The head in a classifier's folder.

    Raises:
        ModelLoadError: It has none, or one that does not fit config.json.
    """
    # Frontends of other models come without the families, and without numpy.
    import numpy as np

    from pyengine.model.architectures import respelled
    from pyengine.model.weights.checkpoint import Checkpoint

    hidden_size = int(respelled(architecture, text_part(config))["hidden_size"])
    checkpoint = Checkpoint(folder, body="")
    named = {int(at): str(name) for at, name in (config.get("id2label") or {}).items()}
    count = len(named) or int(config.get("num_labels") or 2)
    if not checkpoint.has("score.weight"):
        raise ModelLoadError(f"{folder} has no score.weight, the head of a classifier")
    every = slice(None)
    shape = (count, hidden_size)
    weight = cast("Dense", checkpoint.matrix("score.weight", shape, every, every)).values
    labels = tuple(named.get(at, f"LABEL_{at}") for at in range(count))
    apart = count == 1 or config.get("problem_type") == "multi_label_classification"
    return ScoreHead(np.asarray(weight, np.float32), labels, apart)
