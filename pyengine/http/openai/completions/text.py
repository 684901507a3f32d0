"""``POST /v1/completions``."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.completion import Completion
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http import sse
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_prompts
from pyengine.http.openai.completions.chunks import CompletionChunks
from pyengine.http.openai.completions.prompt_logprobs import (
    EchoedScores,
    check_prompt_logprobs,
    in_chunks,
    vllm_logprobs,
)
from pyengine.http.openai.completions.stream_fields import StreamFields, TokenIds
from pyengine.http.openai.logprobs import (
    by_token_ids,
    check_in_completions,
    completion_logprobs,
)
from pyengine.http.openai.schema.common import (
    check_common,
    truncated,
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
from pyengine.request.generation import Generation
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
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    _check(request, max_tokens)
    scored = bool(request.echo) and request.logprobs is not None
    defaults = engine.default_sampling_params
    params = sampling_params(request, max_tokens, request.logprobs, defaults, prompt_alone=True)
    prompts = split_prompts(request.prompt)
    check_prompts(len(prompts), n, limits)
    wanted = constraint(request)
    exchange.names = FieldNames({"grammar": wanted.field, "close_grammar": CLOSE})
    wishes = [request.logprobs if scored else None, request.prompt_logprobs]
    most = max((top for top in wishes if top is not None), default=None)
    options = request_options(request, wanted.grammar, wanted.close, prompt_logprobs=most)
    special = request.add_special_tokens is not False
    token_ids = [
        await engine.encode(prompt, add_special_tokens=special)
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]
    token_ids = [truncated(ids, request, max_tokens, engine.max_context) for ids in token_ids]
    answer_id = exchange.service.new_id("cmpl-")
    generations = exchange.generate(
        ((tokens, each) for tokens in token_ids for each in seeded(params, n)),
        options,
        Asked("text_completion", answer_id, params, bool(request.stream)),
        n=1 if request.stream else n,
    )
    shown = prompts if request.truncate_prompt_tokens is None else token_ids
    echoed = await _echoed(shown, engine, params.skip_special_tokens) if request.echo else ()
    scores = None
    if scored:
        tokenizer, names = engine.tokenizer, bool(request.return_tokens_as_token_ids)
        top, alike = request.logprobs or 0, 1 if request.stream else n
        scores = EchoedScores(token_ids, echoed, generations, tokenizer, top, n, alike, names)
    model = request.model or engine.model_name
    answers = _Answers(
        request, answer_id, model, int(time.time()), token_ids, echoed, generations, scores
    )
    if request.stream:
        await sse.stream(exchange, generations, answers.chunks(exchange.warnings))
        return
    response = await answers.response(exchange.warnings)
    timing = server_timing([each.outcome.timing for each in generations])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


@dataclass(frozen=True)
class _Answers:
    """The answers to a request's prompts, ``n`` of each side by side.

    Attributes:
        token_ids: Those of each prompt.
        echoed: The text of each prompt, where the request wants it before its answers.
        generations: One for each answer.
        scores: The log-probabilities of echoed prompts, where they are wanted.
    """

    request: CompletionRequest
    answer_id: str
    model: str
    created: int
    token_ids: Sequence[list[int]]
    echoed: Sequence[str]
    generations: Sequence[Generation]
    scores: EchoedScores | None

    @property
    def n(self) -> int:
        return self.request.n or 1

    def chunks(self, warnings: Iterable[str]) -> CompletionChunks:
        """The writer of a stream's events."""
        request, scores = self.request, self.scores
        tokens = TokenIds.wanted(
            request,
            self.token_ids,
            in_chunks(self.generations, request.prompt_logprobs),
            None if scores is None else scores.prompt,
        )
        fields = StreamFields.wanted(
            request, self.answer_id, self.created, self.model, warnings, tokens
        )
        return CompletionChunks(fields, self.echoed)

    async def response(self, warnings: Iterable[str]) -> CompletionResponse:
        """The whole answers, once all have ended."""
        request, n = self.request, self.n
        wholes = [await generation for generation in self.generations]
        choices = [
            _choice(request, index, whole, self.echoed[index // n] if self.echoed else "")
            for index, whole in enumerate(wholes)
        ]
        for index, choice in enumerate(choices):
            if self.scores is not None:
                choice.logprobs = self.scores.whole(index)
            if request.return_token_ids:
                choice.prompt_token_ids = self.token_ids[index // n]
            if request.prompt_logprobs is not None:
                first = self.generations[index // n * n]
                choice.prompt_logprobs = vllm_logprobs(first, request.prompt_logprobs)
        response = CompletionResponse(
            id=self.answer_id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage_object([whole.usage for whole in wholes], n),
        )
        if left_out := list(dict.fromkeys((*warnings, *wholes[0].warnings))):
            response.warnings = left_out
        return response


def _check(request: CompletionRequest, max_tokens: int) -> None:
    """The rules between the fields of a text completion.

    Raises:
        InvalidRequestError: Naming the field.
    """
    if request.best_of not in (None, request.n or 1):
        raise UnsupportedParameterError("'best_of' must be as many as 'n'.", param="best_of")
    check_in_completions(request.logprobs)
    check_prompt_logprobs(request)
    if max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise InvalidRequestError(
            "'max_tokens' of 0 goes with 'echo' or 'prompt_logprobs' only.", param="max_tokens"
        )


def _choice(
    request: CompletionRequest, index: int, whole: Completion, echoed: str
) -> CompletionChoice:
    """A choice, as far as its own answer goes."""
    named = by_token_ids(whole.logprobs) if request.return_tokens_as_token_ids else whole.logprobs
    logprobs = completion_logprobs(named)
    choice = CompletionChoice(index, echoed + whole.text, whole.finish_reason, logprobs)
    if request.return_token_ids:
        choice.token_ids = whole.token_ids
    return choice


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
