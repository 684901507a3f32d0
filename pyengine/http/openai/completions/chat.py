"""``POST /v1/chat/completions``."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.chat.answer import ChatAnswer
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.options import ChatOptions
from pyengine.completion import Completion
from pyengine.errors import InvalidRequestError
from pyengine.http.answering import Answers, Question, answer, prepare, reasoning
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_messages
from pyengine.http.openai.completions.chat_options import (
    chat_options,
    grammar_names,
    predicted,
    thinking_budget,
    thinks_first,
)
from pyengine.http.openai.completions.chunks import AnswerChunks, ChatChunks
from pyengine.http.openai.completions.functions import FINISH, with_tools
from pyengine.http.openai.completions.prompt_logprobs import (
    check_prompt_logprobs,
    check_prompt_logprobs_size,
    in_chunks,
    vllm_logprobs,
)
from pyengine.http.openai.completions.stored_chat import kept, save
from pyengine.http.openai.completions.stream_fields import StreamFields
from pyengine.http.openai.custom_tools import input_of
from pyengine.http.openai.logprobs import by_token_ids, chat_logprobs, wanted_in_chat
from pyengine.http.openai.schema.chat import (
    AnswerCustom,
    AnswerCustomCall,
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatRequest,
    ChatResponse,
)
from pyengine.http.openai.schema.common import (
    check_common,
    truncated,
    usage_object,
)
from pyengine.http.openai.schema.sampling import request_options, sampling_params
from pyengine.http.openai.structured import CLOSE, Constraint, constraint
from pyengine.http.openai.tools import customs, read_tools
from pyengine.http.operations.tracing import Asked
from pyengine.http.streams.event_stream import EVENTS, StreamForm
from pyengine.request.generation import Generation
from pyengine.tokenizer import longest_prediction

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer a conversation, in ``n`` ways."""
    await answer(exchange, await _read(exchange))


async def _read(exchange: "Exchange") -> Question[Any]:
    request = with_tools(await exchange.decode(_decoder))
    engine, limits = exchange.require_model(request.model), exchange.service.limits
    check_common(request, limits)
    check_messages(len(request.messages), limits)
    check_prompt_logprobs(request)
    keep = kept(exchange, request)
    logprobs, defaults = wanted_in_chat(request), engine.default_sampling_params
    params = sampling_params(request, _max_tokens(request), logprobs, defaults)
    wanted = constraint(request)
    thinks = reasoning(exchange, *thinks_first(request))
    tools = read_tools(request.tools, limits, exchange.warnings)
    options = chat_options(request, wanted.grammar, limits, thinks, tools)
    exchange.names = _names(request, wanted, options)
    spec, token_ids = await prepare(exchange, request.messages, params, options)
    token_ids = truncated(token_ids, request, params.max_tokens, engine.max_context)
    check_prompt_logprobs_size(request.prompt_logprobs, [token_ids], request.n or 1)
    # Before the engine is asked, which notices a client that leaves meanwhile.
    prediction = await _prediction(engine, predicted(request))
    asked = Asked("chat", exchange.service.new_id("chatcmpl-"), params, bool(request.stream))
    return Question(
        prompts=[token_ids],
        params=spec.params,
        options=request_options(
            request,
            spec.grammar,
            wanted.close,
            prediction,
            request.prompt_logprobs,
            spec.thinking_budget,
        ),
        asked=asked,
        reading=(lambda generation: generation) if spec.plain else spec.answer,
        writer=partial(_Writer, exchange, request, spec, token_ids, asked, keep, customs(tools)),
        n=request.n or 1,
    )


@dataclass
class _Writer:
    """Writes the completion of one request; :class:`pyengine.http.answering.Writer`.

    Attributes:
        token_ids: The token ids of the prompt.
        keep: Whether the completion is to be stored.
        customs: The names of custom tools.
        generations: One for each choice.
    """

    exchange: "Exchange"
    request: ChatRequest
    spec: AnswerSpec
    token_ids: list[int]
    asked: Asked
    keep: bool
    customs: frozenset[str]
    generations: Sequence[Generation]
    form: StreamForm = EVENTS
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def head(self) -> dict[str, Any]:
        """The fields that the answer and its chunks begin with."""
        model = self.request.model or self.exchange.service.engine.model_name
        return {"id": self.asked.answer_id, "created": self.created, "model": model}

    async def chunks(self) -> Any:
        """How the choices are streamed."""
        request = self.request
        scores = in_chunks(self.generations, request.prompt_logprobs)
        head, warnings = self.head, self.exchange.warnings
        fields = StreamFields(request, head, warnings, [self.token_ids], scores)
        if self.spec.plain:
            return ChatChunks(fields)
        shows, old = request.include_reasoning is not False, bool(request.functions)
        return AnswerChunks(fields, self.customs, shows, functions=old)

    async def ended(self, answers: Answers) -> None:
        """Stores the completion, where that is wanted."""
        if self.keep:
            await self._save(await self._response(answers))

    async def whole(self, answers: Answers) -> bytes:
        """The choices as one response, once all have come."""
        response = await self._response(answers)
        if self.request.return_token_ids:
            response.prompt_token_ids = self.token_ids
        if (top := self.request.prompt_logprobs) is not None:
            scored = await asyncio.to_thread(vllm_logprobs, self.generations[0], top)
            response.prompt_logprobs = cast("Any", scored)
        if self.keep:
            await self._save(response)
        return _encode(response)

    async def _save(self, response: ChatResponse) -> None:
        await save(self.exchange, self.request, self.asked.params, response)

    async def _response(self, answers: Answers) -> ChatResponse:
        wholes: list[Completion | ChatAnswer] = [await each for each in answers]
        request = self.request
        names = bool(request.return_tokens_as_token_ids)
        response = ChatResponse(
            **self.head,
            choices=[
                ChatChoice(
                    index,
                    _message(whole, request, self.customs),
                    _finish(whole, request),
                    chat_logprobs(by_token_ids(whole.logprobs) if names else whole.logprobs),
                    whole.token_ids if request.return_token_ids else msgspec.UNSET,
                )
                for index, whole in enumerate(wholes)
            ],
            usage=usage_object([whole.usage for whole in wholes], len(wholes)),
        )
        if warnings := list(dict.fromkeys((*self.exchange.warnings, *wholes[0].warnings))):
            response.warnings = warnings
        return response


def _message(
    whole: Completion | ChatAnswer, request: ChatRequest, customs: frozenset[str]
) -> AnswerMessage:
    """The message of an answer; what it has none of is left out of it."""
    message = AnswerMessage(whole.text)
    if isinstance(whole, Completion):
        return message
    if whole.tool_calls and request.functions:
        message.content = whole.text or None
        call = whole.tool_calls[0]
        message.function_call = AnswerFunction(call.name, call.arguments)
    elif whole.tool_calls:
        message.content = whole.text or None
        message.tool_calls = [
            AnswerCustomCall(call.id, AnswerCustom(call.name, input_of(call.arguments)))
            if call.name in customs
            else AnswerToolCall(call.id, AnswerFunction(call.name, call.arguments))
            for call in whole.tool_calls
        ]
    if whole.reasoning and request.include_reasoning is not False:
        message.reasoning_content = whole.reasoning
    return message


def _finish(whole: Completion | ChatAnswer, request: ChatRequest) -> str:
    """Why an answer ended, in the form of calls that the request has."""
    old = bool(request.functions) and whole.finish_reason == "tool_calls"
    return FINISH if old else whole.finish_reason


def _max_tokens(request: ChatRequest) -> int | None:
    """``max_completion_tokens``, or ``max_tokens`` by its old name."""
    new, old = (
        None if given == -1 else given  # no limit, as Ollama and LangChain.js say it
        for given in (request.max_completion_tokens, request.max_tokens)
    )
    if new is None:
        return old
    if old is not None and old != new:
        raise InvalidRequestError(
            "'max_tokens' and 'max_completion_tokens' mean the same; give one.", param="max_tokens"
        )
    if new < 1:
        raise InvalidRequestError(
            f"'max_completion_tokens' must be at least 1, not {new}",
            param="max_completion_tokens",
        )
    return new


def _names(request: ChatRequest, wanted: Constraint, options: ChatOptions) -> FieldNames:
    grammar, schemas = grammar_names(wanted, options)
    fields = {
        "prompt": "messages",
        "grammar": grammar,
        "close_grammar": CLOSE,
        "template_arguments": "chat_template_kwargs",
        "reasoning": "enable_thinking",
        "thinking_budget": thinking_budget(request)[0],
    }
    if request.max_completion_tokens is not None:
        fields["max_tokens"] = "max_completion_tokens"
    return FieldNames(fields, schemas)


async def _prediction(engine: AsyncEngine, text: str | None) -> list[int] | None:
    """The token ids of a prediction; a long one is tokenized on a thread."""
    if text is None:
        return None
    text = longest_prediction(text, engine.max_context)
    return await engine.tokenizer.encode_async(text, add_special_tokens=False)
