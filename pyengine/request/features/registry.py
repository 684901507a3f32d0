"""The list of the features of requests."""

from typing import Any

from pyengine.logprobs import Spelling
from pyengine.messages import Submit, decode_extension
from pyengine.request.features import (
    allowed_tokens,
    grammar,
    logits_processors,
    logprobs,
    penalties,
    pooling,
    prediction,
    prompt_logprobs,
)
from pyengine.request.features.feature import AnswerPart, Feature

FEATURES: tuple[Feature[Any], ...] = (
    grammar.FEATURE,
    allowed_tokens.FEATURE,
    penalties.FEATURE,
    logprobs.FEATURE,
    pooling.FEATURE,
    prompt_logprobs.FEATURE,
    logits_processors.FEATURE,
    prediction.FEATURE,
)
_BY_TAG = {feature.extension.TAG: feature for feature in FEATURES}


def answer_parts(submit: Submit, spelling: Spelling) -> tuple[AnswerPart, ...]:
    """Returns the parts of the answer to ``submit`` that its features bring.

    Args:
        submit: The request.
        spelling: The bytes of a token by its id.
    """
    parts = []
    for tag, body in submit.extensions.items():
        feature = _BY_TAG.get(tag)  # the scheduler refuses an unknown one by name
        if feature is not None and feature.answer is not None:
            extension = decode_extension(feature.extension, body)
            parts.append(feature.answer(submit, extension, spelling))
    return tuple(parts)
