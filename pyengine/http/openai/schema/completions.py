"""Text completions: OpenAI's request and response."""

from typing import Any

import msgspec

from pyengine.http.openai.schema.common import GenerationRequest, UsageObject


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/completions``.

    Attributes:
        prompt: The prompt: text or token ids, of one or of several.
        echo: Whether each text begins with its prompt: as it was sent, or that of its token ids,
            without special tokens. With ``max_tokens`` 0 it is the prompt alone; with ``logprobs``,
            not in a stream, its tokens have entries too, the first without a log-probability.
        suffix: What stands behind the gap that the answer fills, where the tokenizer has marks for
            that.
        add_special_tokens: Whether the tokenizer adds its special tokens, such as a BOS.
        best_of: As many answers as n.
    """

    # A string, strings, token ids, or lists of token ids; see completions.split_prompts().
    prompt: str | list[str | int | list[int]]

    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    best_of: int | None = None


class CompletionChoice(msgspec.Struct, gc=False):
    """The continuation of one prompt."""

    index: int
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionResponse(msgspec.Struct, gc=False, kw_only=True):
    """The whole answer. ``warnings`` lists the parts of the request that have no effect."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageObject
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
