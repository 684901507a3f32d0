"""The sampling parameters and options of every request that generates."""

from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.scheduled import ScheduledRequest
from pyengine.request.features.thinking_budget import ThinkingBudget
from pyengine.request.generation_config import over
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams

HTTP_NAMES = {"include_stop": "include_stop_str_in_output"}
"""Sampling parameters that have another name in a request."""


class SamplingFields(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request that generates. None is "not given", as in OpenAI's.

    Sampling parameters mean what :class:`pyengine.SamplingParams` says of the field of the same
    name; ``include_stop_str_in_output`` is its ``include_stop``, and a ``top_k`` or
    ``top_n_sigma`` of -1 keeps all.

    ``user``, or its ``id`` where it is an object, is the tenant that the request is charged to when
    tenants share fairly, and whose recent answers are drafted from. Any client can name any user,
    so it isolates nothing: give users that must not share cached prefixes or recent answers a
    cache_salt each.

    Attributes:
        stream: Whether the answer comes in parts, as it is generated.
        repeat_last_n: How many of the last tokens penalties look at: -1 is all, 0 none; another
            number is only taken where there is no penalty.
        logits_processors: The operator's logits processors to use, with their arguments.
    """

    stream: bool | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    user: str | dict[str, Any] | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logits_processors: dict[str, dict[str, Any]] | list[str] | None = None


def sampling_params(
    request: SamplingFields,
    max_tokens: int | None,
    logprobs: int | None,
    defaults: SamplingParams,
    *,
    prompt_alone: bool = False,
) -> SamplingParams:
    """The sampling parameters of a request over ``defaults``, within their ranges.

    Without ``prompt_alone``, ``max_tokens`` must be 1 at least.

    Raises:
        InvalidRequestError: Naming the parameter that is not.
    """
    max_tokens = None if max_tokens == -1 else max_tokens
    if max_tokens == 0 and not prompt_alone:
        raise InvalidRequestError(
            "'max_tokens' must be at least 1; /v1/completions takes 0 with 'echo'.",
            param="max_tokens",
        )
    given: dict[str, Any] = {}
    for name in SamplingParams.__struct_fields__:
        value = getattr(request, HTTP_NAMES.get(name, name), None)
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    given |= {"max_tokens": max_tokens, "logprobs": logprobs}
    for name in ("top_k", "top_n_sigma"):
        if given.get(name) == -1:
            given[name] = 0
    if given.get("top_p") == 0:  # nothing but the best
        given |= {"top_p": 1.0, "temperature": 0.0}
    return within(over(defaults, given), request.repeat_last_n, "repeat_last_n")


def within(params: SamplingParams, last: int | None, at: str) -> SamplingParams:
    """The parameters with penalties for as many of the last tokens as the field ``at`` says.

    Raises:
        UnsupportedParameterError: That is some of them, and there is a penalty.
    """
    unpenalized = msgspec.structs.replace(
        params, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0
    )
    if last in (None, -1) or params == unpenalized:
        return params
    if last == 0:
        return unpenalized
    raise UnsupportedParameterError(
        f"'{at}' must be -1, for all tokens, or 0, where there is a penalty, not {last}.", param=at
    )


def request_options(
    request: SamplingFields,
    grammar: Grammar | None,
    close_grammar: bool = False,
    prediction: list[int] | None = None,
    prompt_logprobs: int | None = None,
    thinking_budget: ThinkingBudget | None = None,
) -> RequestOptions:
    """The options of a request besides sampling.

    Raises:
        InvalidRequestError: Naming the engine's parameter that is out of its range.
    """
    return request.scheduled(
        tenant=tenant_of(request.user),
        grammar=grammar,
        close_grammar=close_grammar,
        prediction=prediction,
        prompt_logprobs=prompt_logprobs,
        thinking_budget=thinking_budget,
        logits_processors=request.logits_processors,
    )


def tenant_of(user: str | dict[str, Any] | None) -> str | None:
    """The name of a user, who may be an object with an id, as Open WebUI sends it."""
    if not isinstance(user, dict):
        return user
    found = user.get("id")
    return None if found is None else str(found)


def seeded(params: SamplingParams, n: int) -> list[SamplingParams]:
    """The sampling parameters of ``n`` choices: with a seed, each has one of its own."""
    if params.seed is None:
        return [params] * n
    return [
        msgspec.structs.replace(params, seed=(params.seed + i + 2**63) % 2**64 - 2**63)
        for i in range(n)
    ]
