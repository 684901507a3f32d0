"""Text completions: OpenAI's request and response."""

from typing import Any

import msgspec

from pyengine.http.openai.schema.common import GenerationRequest, UsageObject


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/completions``.

    With ``echo`` each text begins with its prompt: as it was sent, or that of its token ids, in
    which special tokens are left out as in the answer. Prompts have no log-probabilities, so it
    does not go with ``logprobs``. ``best_of`` is as many as ``n``. Without ``add_special_tokens``
    prompts get the special tokens of the tokenizer, such as a BOS.
    """

    # A string, strings, token ids, or lists of token ids; see completions.split_prompts().
    prompt: str | list[str | int | list[int]]

    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    best_of: int | None = None


class CompletionChoice(msgspec.Struct, gc=False):
    """The continuation of one prompt."""

    index: int
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None = None


class CompletionResponse(msgspec.Struct, gc=False, kw_only=True):
    """The whole answer. ``warnings`` lists what of the request is not enforced."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageObject
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
