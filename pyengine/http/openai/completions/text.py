"""``POST /v1/completions``."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.completion import Completion, Update
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.answering import Answers, Question, answer
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_prompts
from pyengine.http.openai.completions.chunks import CompletionChunks
from pyengine.http.openai.completions.infill import gap
from pyengine.http.openai.completions.prompt_logprobs import (
    EchoedScores,
    check_prompt_logprobs,
    check_prompt_logprobs_size,
    in_chunks,
    vllm_logprobs,
)
from pyengine.http.openai.completions.stream_fields import StreamFields
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
from pyengine.http.openai.schema.sampling import request_options, sampling_params
from pyengine.http.openai.structured import CLOSE, constraint
from pyengine.http.operations.tracing import Asked
from pyengine.http.streams.event_stream import EVENTS, StreamForm
from pyengine.request.generation import Generation

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# OpenAI's default for text completions.
DEFAULT_MAX_TOKENS = 16

_decoder = msgspec.json.Decoder(CompletionRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Continue one prompt or several, each in ``n`` ways."""
    await answer(exchange, await _read(exchange))


async def _read(exchange: "Exchange") -> Question[Update]:
    request = await exchange.decode(_decoder)
    engine = exchange.require_model(request.model)
    limits, n = exchange.service.limits, request.n or 1
    check_common(request, limits)
    max_tokens: int | None
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == -1:  # no limit, as llama.cpp says it
        max_tokens = None
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
    between = await gap(request, engine.tokenizer)
    special = request.add_special_tokens is not False and between is None
    token_ids = [
        await engine.encode(prompt, add_special_tokens=special)
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]
    if between is not None:
        token_ids = [between.around(ids) for ids in token_ids]
        stops = (*params.stop_token_ids, *between.ends)
        params = msgspec.structs.replace(params, stop_token_ids=stops)
    token_ids = [truncated(ids, request, max_tokens, engine.max_context) for ids in token_ids]
    check_prompt_logprobs_size(most, token_ids, n, "logprobs" if scored else "prompt_logprobs")
    if request.max_tokens is None:  # the default is no more than what is left
        room = engine.max_context - max(map(len, token_ids))
        left = max(1, min(DEFAULT_MAX_TOKENS, room))
        params = msgspec.structs.replace(params, max_tokens=left)
    shown = prompts if request.truncate_prompt_tokens is None else token_ids
    asked = Asked("text_completion", exchange.service.new_id("cmpl-"), params, bool(request.stream))
    return Question(
        prompts=token_ids,
        params=params,
        options=options,
        asked=asked,
        reading=lambda generation: generation,
        writer=partial(_Writer, exchange, request, asked, token_ids, shown),
        n=n,
    )


@dataclass
class _Writer:
    """Writes the completions of one request; :class:`pyengine.http.answering.Writer`.

    Attributes:
        token_ids: The token ids of each prompt.
        shown: Each prompt as its answers repeat it, text or token ids.
        generations: One for each answer: ``n`` side by side for each prompt.
        echoed: The text of each prompt, where the request wants it before its answers.
    """

    exchange: "Exchange"
    request: CompletionRequest
    asked: Asked
    token_ids: Sequence[list[int]]
    shown: Sequence[str | list[int]]
    generations: Sequence[Generation]
    echoed: Sequence[str] = ()
    form: StreamForm = EVENTS
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def n(self) -> int:
        return self.request.n or 1

    @property
    def head(self) -> dict[str, Any]:
        """The fields that the answer and its chunks begin with."""
        model = self.request.model or self.exchange.service.engine.model_name
        return {"id": self.asked.answer_id, "created": self.created, "model": model}

    @property
    def scores(self) -> EchoedScores | None:
        """The log-probabilities of echoed prompts, where they are wanted."""
        request = self.request
        if not request.echo or request.logprobs is None:
            return None
        return EchoedScores(
            self.token_ids,
            self.echoed,
            self.generations,
            self.exchange.service.engine.tokenizer,
            request.logprobs,
            self.n,
            1 if request.stream else self.n,
            bool(request.return_tokens_as_token_ids),
        )

    async def _echo(self) -> None:
        """Makes the texts of the prompts, whose token ids the engine has taken."""
        if self.request.echo:
            engine = self.exchange.service.engine
            skips = self.asked.params.skip_special_tokens
            self.echoed = await _texts(self.shown, engine, skips)

    async def chunks(self) -> CompletionChunks:
        """How the answers are streamed."""
        await self._echo()
        request, scores = self.request, self.scores
        fields = StreamFields(
            request,
            self.head,
            self.exchange.warnings,
            self.token_ids,
            in_chunks(self.generations, request.prompt_logprobs),
            None if scores is None else scores.prompt,
        )
        return CompletionChunks(fields, self.echoed)

    async def ended(self, answers: Answers) -> None:
        """Nothing: text completions are not stored."""

    async def whole(self, answers: Answers) -> bytes:
        """The answers as one response, once all have ended."""
        await self._echo()
        wholes: list[Completion] = [await each for each in answers]
        if self.scores is None and self.request.prompt_logprobs is None:
            return self._whole(wholes)
        return await asyncio.to_thread(self._whole, wholes)

    def _whole(self, wholes: list[Completion]) -> bytes:
        request, n, scores = self.request, self.n, self.scores
        choices = [
            _choice(request, index, whole, self.echoed[index // n] if self.echoed else "")
            for index, whole in enumerate(wholes)
        ]
        for index, choice in enumerate(choices):
            if scores is not None:
                choice.logprobs = scores.whole(index)
            if request.return_token_ids:
                choice.prompt_token_ids = self.token_ids[index // n]
            if request.prompt_logprobs is not None:
                first = self.generations[index // n * n]
                scored = vllm_logprobs(first, request.prompt_logprobs)
                choice.prompt_logprobs = cast("Any", scored)
        response = CompletionResponse(
            **self.head,
            choices=choices,
            usage=usage_object([whole.usage for whole in wholes], n),
        )
        if left_out := list(dict.fromkeys((*self.exchange.warnings, *wholes[0].warnings))):
            response.warnings = left_out
        return _encode(response)


def _check(request: CompletionRequest, max_tokens: int | None) -> None:
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


async def _texts(
    prompts: Sequence[str | list[int]], engine: AsyncEngine, skip_special_tokens: bool
) -> list[str]:
    """Returns the texts of prompts."""
    return [
        prompt
        if isinstance(prompt, str)
        else await asyncio.to_thread(engine.tokenizer.decode, prompt, skip_special_tokens)
        for prompt in prompts
    ]
