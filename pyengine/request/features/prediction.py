"""Predictions: what the answer is expected to repeat, as a source of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from pyengine.messages import Extension
from pyengine.request.arguments import packed
from pyengine.request.features.feature import Asked, Feature, Options
from pyengine.tokenizer import longest_prediction


class PredictionExtension(Extension):
    """Predicts the answer in parts: a source of drafts.

    Attributes:
        tokens: The predicted answer, token ids as u32 little-endian.
    """

    TAG: ClassVar[str] = "prediction"

    tokens: bytes


class PredictionKeywords(TypedDict, total=False):
    """The keyword for predictions; see :class:`PredictionOptions`."""

    prediction: str | Sequence[int] | None


@dataclass(frozen=True, kw_only=True)
class PredictionOptions(Options):
    """The option for predictions.

    Attributes:
        prediction: Text or token ids that the answer is expected to repeat in parts. Changes how
            fast the answer comes, not what it is.
    """

    prediction: str | Sequence[int] | None = None


def _ask(asked: Asked, options: PredictionOptions) -> PredictionExtension | None:
    prediction, longest = options.prediction, asked.info.max_context
    if prediction is None:
        return None
    if isinstance(prediction, str):
        prediction = longest_prediction(prediction, longest)
        prediction = asked.tokenizer.encode(prediction, add_special_tokens=False)
    tokens = packed("prediction", prediction, asked.info.vocab_size)[:longest].tobytes()
    return PredictionExtension(tokens) if tokens else None


FEATURE = Feature(PredictionExtension, _ask)
