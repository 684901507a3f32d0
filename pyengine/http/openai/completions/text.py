"""``POST /v1/completions``."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.completion import Completion
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http import sse
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_prompts
from pyengine.http.openai.completions.chunks import CompletionChunks, TokenIds
from pyengine.http.openai.completions.prompt_logprobs import (
    check_prompt_logprobs,
    echoed_logprobs,
    entries_of_prompts,
    vllm_logprobs,
)
from pyengine.http.openai.logprobs import (
    by_token_ids,
    check_in_completions,
    completion_logprobs,
)
from pyengine.http.openai.schema.common import (
    check_common,
    include_usage,
    truncated,
    usage_in_chunks,
    usage_object,
)
from pyengine.http.openai.schema.completions import (
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
)
from pyengine.http.openai.schema.sampling import request_options, sampling_params, seeded
from pyengine.http.openai.structured import CLOSE, constraint
from pyengine.http.operations.tracing import Asked
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# OpenAI's default for text completions.
DEFAULT_MAX_TOKENS = 16

_decoder = msgspec.json.Decoder(CompletionRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Continue one prompt or several, each in ``n`` ways."""
    request = await exchange.decode(_decoder)
    engine = exchange.service.require_model(request.model)
    limits, n = exchange.service.limits, request.n or 1
    check_common(request, limits)
    if request.best_of not in (None, n):
        raise UnsupportedParameterError("'best_of' must be as many as 'n'.", param="best_of")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    check_in_completions(request.logprobs)
    check_prompt_logprobs(request)
    scored, prompt_alone = bool(request.echo) and request.logprobs is not None, max_tokens == 0
    if scored and request.stream:
        raise UnsupportedParameterError(
            "'echo' together with 'logprobs' is not supported in a stream.", param="echo"
        )
    if prompt_alone and (not request.echo or request.stream):
        raise InvalidRequestError(
            "'max_tokens' of 0 goes with 'echo' only, and not in a stream.", param="max_tokens"
        )
    # An answer of a token is left out then: it fills the cache with the prompt.
    defaults = engine.default_sampling_params
    params = sampling_params(request, max_tokens or 1, request.logprobs, defaults)
    prompts = split_prompts(request.prompt)
    check_prompts(len(prompts), n, limits)
    wanted = constraint(request)
    exchange.names = FieldNames({"grammar": wanted.field, "close_grammar": CLOSE})
    options = request_options(request, wanted.grammar, wanted.close)
    special = request.add_special_tokens is not False
    token_ids = [
        await engine.encode(prompt, add_special_tokens=special)
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]
    token_ids = [truncated(ids, request, max_tokens, engine.max_context) for ids in token_ids]
    answer_id, created = exchange.service.new_id("cmpl-"), int(time.time())
    generations = exchange.generate(
        ((tokens, each) for tokens in token_ids for each in seeded(params, n)),
        options,
        Asked("text_completion", answer_id, params, bool(request.stream)),
    )
    shown = prompts if request.truncate_prompt_tokens is None else token_ids
    echoed = await _echoed(shown, engine, params.skip_special_tokens) if request.echo else ()
    if request.stream:
        chunks = CompletionChunks(
            answer_id,
            created,
            request.model or engine.model_name,
            include_usage(request),
            n=n,
            echoed=echoed,
            warnings=tuple(exchange.warnings),
            continuous=usage_in_chunks(request),
            tokens=TokenIds.wanted(request, token_ids),
        )
        await sse.stream(exchange, generations, chunks)
        return
    wholes = [await generation for generation in generations]
    if prompt_alone:
        wholes = [without_answer(whole) for whole in wholes]
    names = bool(request.return_tokens_as_token_ids)
    choices = [
        CompletionChoice(
            index,
            echoed[index // n] + whole.text if echoed else whole.text,
            whole.finish_reason,
            completion_logprobs(by_token_ids(whole.logprobs) if names else whole.logprobs),
        )
        for index, whole in enumerate(wholes)
    ]
    if scored:
        entries = await entries_of_prompts(exchange, request, token_ids, request.logprobs or 0)
        for choice, generation in zip(choices, generations, strict=True):
            at = choice.index // n
            first = engine.tokenizer.token_bytes(token_ids[at][0])
            answer = None if prompt_alone else generation
            name = f"token_id:{token_ids[at][0]}" if names else None
            choice.logprobs = echoed_logprobs(first, entries[at], echoed[at], answer, name)
    if request.return_token_ids:
        for choice, whole in zip(choices, wholes, strict=True):
            choice.prompt_token_ids = token_ids[choice.index // n]
            choice.token_ids = whole.token_ids
    if request.prompt_logprobs is not None:
        await engine.tokenizer.load_bytes()
        entries = await entries_of_prompts(exchange, request, token_ids, request.prompt_logprobs)
        for choice in choices:
            at = choice.index // n
            choice.prompt_logprobs = vllm_logprobs(token_ids[at], entries[at])
    response = CompletionResponse(
        id=answer_id,
        created=created,
        model=request.model or engine.model_name,
        choices=choices,
        usage=usage_object([whole.usage for whole in wholes], n),
    )
    if warnings := list(dict.fromkeys((*exchange.warnings, *wholes[0].warnings))):
        response.warnings = warnings
    timing = server_timing([each.outcome.timing for each in generations])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


def without_answer(whole: Completion) -> Completion:
    """A completion whose answer nobody asked for."""
    usage = replace(whole.usage, completion_tokens=0)
    return replace(whole, text="", token_ids=[], logprobs=None, finish_reason="length", usage=usage)


def split_prompts(
    prompt: str | list[str | int | list[int]], param: str = "prompt"
) -> list[str | list[int]]:
    """The prompts in a request's ``param``: a string, strings, token ids, or lists of token ids.

    Raises:
        InvalidRequestError: It mixes them.
    """
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    if any(isinstance(item, int) for item in prompt) or len({type(item) for item in prompt}) > 1:
        raise InvalidRequestError(
            f"'{param}' must be a string, strings, token ids, or lists of token ids, not a mix.",
            param=param,
        )
    return [item for item in prompt if not isinstance(item, int)]


async def _echoed(
    prompts: Sequence[str | list[int]], engine: AsyncEngine, skip_special_tokens: bool
) -> list[str]:
    """The texts of prompts, to stand before their answers; the engine has taken them."""
    return [
        prompt
        if isinstance(prompt, str)
        else await asyncio.to_thread(engine.tokenizer.decode, prompt, skip_special_tokens)
        for prompt in prompts
    ]
