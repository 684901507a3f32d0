"""The list of the features of requests."""

from typing import Any

from pyengine.logprobs import Spelling
from pyengine.messages import Submit, decode_extension
from pyengine.request.features import (
    adapter,
    allowed_tokens,
    costs,
    grammar,
    logits_processors,
    logprobs,
    penalties,
    pooling,
    prediction,
    prompt_logprobs,
    thinking_budget,
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
    thinking_budget.FEATURE,
    adapter.FEATURE,
    costs.FEATURE,
)
_BY_TAG = {feature.extension.TAG: feature for feature in FEATURES}
_EXTRAS = {feature.extra.TAG: feature for feature in FEATURES if feature.extra is not None}


def answer_parts(submit: Submit, spelling: Spelling) -> dict[str, AnswerPart]:
    """Returns the parts of the answer to ``submit`` that its features bring, by their tags."""
    parts = {}
    for tag, body in submit.extensions.items():
        feature = _BY_TAG.get(tag)  # the scheduler refuses an unknown one by name
        if feature is not None and feature.answer is not None:
            extension = decode_extension(feature.extension, body)
            parts[tag] = feature.answer(submit, extension, spelling)
    return parts


def receive(parts: dict[str, AnswerPart], tag: str, body: bytes) -> None:
    """Give the part that an extra is for, of ``parts``, what came under ``tag`` as ``body``.

    Raises:
        msgspec.DecodeError: The body is malformed.
    """
    feature = _EXTRAS.get(tag)
    part = None if feature is None else parts.get(feature.extension.TAG)
    if feature is not None and feature.extra is not None and part is not None:
        part.receive(decode_extension(feature.extra, body))
