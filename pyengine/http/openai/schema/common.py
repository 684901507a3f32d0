"""What chat and text completions share: sampling, streaming, and what is refused by name."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pyengine.completion import Usage
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.structured import StructuredFields
from pyengine.request.submission import RequestOptions
from pyengine.sampling import SamplingParams

HTTP_NAMES = {"include_stop": "include_stop_str_in_output"}
"""Sampling parameters that have another name in a request."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options`` of a request."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(StructuredFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of both kinds of completion. None is "not given", as in OpenAI's.

    Sampling parameters mean what :class:`pyengine.SamplingParams` says of the field of the same
    name; ``include_stop_str_in_output`` is its ``include_stop``. Beyond OpenAI's and these:
    priority (lower runs first) and cache_salt (cached prefixes are shared only under the same one).

    ``user`` is the tenant that the request is charged to when tenants share fairly, and whose
    recent answers are drafted from. Any client can name any user, so it isolates nothing: give
    users that must not share cached prefixes or recent answers a cache_salt each. With ``n`` and a
    ``seed``, choice i of a prompt has the tokens that ``seed + i`` gives (modulo 2**64).
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    n: int | None = None

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None


def refuse_unsupported(request: msgspec.Struct, fields: dict[str, tuple[Any, ...]]) -> None:
    """Refuse the first of ``fields`` that asks for something.

    Raises:
        UnsupportedParameterError: Naming it.
    """
    for name, neutral in fields.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            raise UnsupportedParameterError(
                f"'{name}' is not supported"
                + (f" beyond its neutral value {neutral[0]!r}." if neutral else "."),
                param=name,
            )


def check_common(request: GenerationRequest, limits: Limits) -> None:
    """The rules between fields that both kinds of completion share, and their limits.

    Raises:
        InvalidRequestError: Naming the field.
    """
    if request.n is not None and not 1 <= request.n <= limits.choices:
        raise InvalidRequestError(
            f"'n' must be from 1 to {limits.choices}, not {request.n}.", param="n"
        )
    options = request.stream_options
    if options is not None:
        if not request.stream:
            raise InvalidRequestError(
                "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
            )
        if options.include_obfuscation:
            raise UnsupportedParameterError(
                "'stream_options.include_obfuscation' is not supported.",
                param="stream_options.include_obfuscation",
            )


def include_usage(request: GenerationRequest) -> bool:
    """Whether the stream ends with a chunk of usage."""
    options = request.stream_options
    return options is not None and bool(options.include_usage)


def sampling_params(
    request: GenerationRequest, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The sampling parameters of a request, within their ranges.

    Raises:
        InvalidRequestError: Naming the parameter that is not.
    """
    given: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(request, HTTP_NAMES.get(name, name), None)
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    given |= {"max_tokens": max_tokens, "logprobs": logprobs}
    params = SamplingParams(**given)
    params.validate()
    return params


def request_options(
    request: GenerationRequest,
    grammar: Grammar | None,
    close_grammar: bool,
    prediction: list[int] | None = None,
) -> RequestOptions:
    """The options of a request besides sampling.

    Raises:
        InvalidRequestError: Naming the engine's parameter that is out of its range.
    """
    return RequestOptions(
        priority=request.priority or 0,
        tenant=request.user,
        cache_salt=request.cache_salt,
        grammar=grammar,
        close_grammar=close_grammar,
        prediction=prediction,
    )


def seeded(params: SamplingParams, n: int) -> list[SamplingParams]:
    """The sampling parameters of ``n`` choices: with a seed, each has one of its own."""
    if params.seed is None:
        return [params] * n
    return [
        msgspec.structs.replace(params, seed=(params.seed + i + 2**63) % 2**64 - 2**63)
        for i in range(n)
    ]


class PromptTokensDetails(msgspec.Struct, gc=False):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, gc=False, omit_defaults=True):
    """Counts of the tokens of the answers, by kind.

    Attributes:
        accepted_prediction_tokens: Tokens that were drafted, by the client's prediction or the
            engine's own proposers, and accepted.
        rejected_prediction_tokens: Draft tokens that were rejected; they are not among the
            completion tokens.
        reasoning_tokens: Tokens of the reasoning, where they can be counted: the model's format has
            one token for each of its markers.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET


class UsageObject(msgspec.Struct, gc=False):
    """``usage`` of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_object(usages: Sequence[Usage], n: int = 1) -> UsageObject:
    """The sum of ``usages``, one a choice; of ``n`` choices of a prompt that is counted once."""
    prompt = sum(usage.prompt_tokens for usage in usages[::n])
    completion = sum(usage.completion_tokens for usage in usages)
    details = CompletionTokensDetails(
        sum(usage.accepted_drafts for usage in usages),
        sum(usage.rejected_drafts for usage in usages),
    )
    reasoning = [u.reasoning_tokens for u in usages if u.reasoning_tokens is not None]
    if reasoning:
        details.reasoning_tokens = sum(reasoning)
    return UsageObject(
        prompt,
        completion,
        prompt + completion,
        PromptTokensDetails(sum(usage.cached_tokens for usage in usages[::n])),
        details,
    )
