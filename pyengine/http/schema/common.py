"""What chat and text completions share: sampling, streaming, and what is refused by name."""

from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.backend import Usage
from pyengine.sampling import SamplingParams, check_priority


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options`` of a request."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of both kinds of completion. None is "not given", as in OpenAI's.

    Beyond OpenAI's: top_k, min_p, min_tokens, ignore_eos, stop_token_ids,
    include_stop_str_in_output, skip_special_tokens (as :class:`pyengine.SamplingParams` has them),
    priority (lower runs first) and cache_salt (cached prefixes are shared only under the same one).

    ``user`` is the tenant that the request is charged to when tenants share fairly.
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
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    # Refused unless neutral: see UNSUPPORTED.
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Any = None


# Field -> values that ask for nothing; null always does. Anything else is refused by name.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "logit_bias": ({},),
}


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


def check_common(request: GenerationRequest) -> None:
    """The rules between fields that both kinds of completion share.

    Raises:
        InvalidRequestError: Naming the field.
    """
    refuse_unsupported(request, UNSUPPORTED)
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
    if request.priority is not None:
        check_priority(request.priority)


def include_usage(request: GenerationRequest) -> bool:
    """Whether the stream ends with a chunk of usage."""
    options = request.stream_options
    return options is not None and bool(options.include_usage)


def sampling_params(request: GenerationRequest, max_tokens: int | None) -> SamplingParams:
    """The sampling parameters of a request, within their ranges.

    Raises:
        InvalidRequestError: Naming the parameter that is not.
    """
    stop = request.stop
    params = SamplingParams(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    params.validate()
    return params


class PromptTokensDetails(msgspec.Struct, gc=False):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class UsageObject(msgspec.Struct, gc=False):
    """``usage`` of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_object(usages: list[Usage]) -> UsageObject:
    """The sum of ``usages``, one a prompt."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    return UsageObject(prompt, completion, prompt + completion, PromptTokensDetails(cached))
