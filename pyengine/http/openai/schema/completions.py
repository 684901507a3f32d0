"""Text completions: OpenAI's request and response."""

from typing import Any

import msgspec

from pyengine.http.openai.schema.common import GenerationRequest, UsageObject


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/completions``.

    With ``echo`` each text begins with its prompt: as it was sent, or that of its token ids, in
    which special tokens are left out as in the answer. With ``logprobs`` too, each token of prompt
    and answer has an entry, the first without a log-probability; not in a stream. ``max_tokens`` 0
    gives the prompt alone. ``prompt_logprobs`` gives the prompt's as vLLM does.

    With a ``suffix`` the model fills the gap before it, where its tokenizer has marks for that.
    ``best_of`` is as many as ``n``. Unless ``add_special_tokens`` is false, prompts get the
    special tokens of the tokenizer, such as a BOS.
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
