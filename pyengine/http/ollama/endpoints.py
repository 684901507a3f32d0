"""``POST /api/chat``, ``generate``, ``show``, ``pull``; ``GET /api/tags``, ``ps``, ``version``."""

import hashlib
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer import ChatUpdate
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError
from pyengine.http.answering import Question, answer, prepare, reasoning
from pyengine.http.errors import FieldNames
from pyengine.http.limits import check_tools
from pyengine.http.ollama.answer import OllamaWriter, loaded
from pyengine.http.ollama.conversation import (
    OPTION_NAMES,
    conversation,
    grammar,
    parameters,
    sampling_params,
)
from pyengine.http.ollama.schema import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaPullAnswer,
    OllamaPullRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from pyengine.http.openai.completions.chat_options import template_arguments
from pyengine.http.operations.tracing import Asked
from pyengine.http.streams.event_stream import LINES
from pyengine.request.generation import Generation
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.http.exchange import Exchange

_chat = msgspec.json.Decoder(OllamaChatRequest)
_generate = msgspec.json.Decoder(OllamaGenerateRequest)
_pull = msgspec.json.Decoder(OllamaPullRequest)
_show = msgspec.json.Decoder(OllamaShowRequest)
_encode = msgspec.json.Encoder().encode
_NAMES = FieldNames(
    {
        **OPTION_NAMES,
        "grammar": "format",
        "reasoning": "think",
        "template_arguments": "chat_template_kwargs",
    }
)
_OF_OLLAMA = "0.12.0"
_SINCE = datetime.now(UTC).isoformat()


async def chat(exchange: "Exchange") -> None:
    """Answer a conversation, in Ollama's form."""
    request = await exchange.decode(_chat)
    if request.messages:
        await answer(exchange, await _read_chat(exchange, request))
    else:
        _load(exchange, request, chat=True)


async def generate(exchange: "Exchange") -> None:
    """Continue a prompt, as a message to the model or as it is, in Ollama's form."""
    request = await exchange.decode(_generate)
    if request.prompt or request.raw:
        await answer(exchange, await _read_prompt(exchange, request))
    else:
        _load(exchange, request, chat=False)


def _load(exchange: "Exchange", request: OllamaRequest, *, chat: bool) -> None:
    """Answer a request that only wants the model to be loaded, or not to be."""
    engine = exchange.require_model(known_name(exchange, request.model))
    unload = request.keep_alive in (0, "0", "0s")
    _tell_kept(exchange, request)
    exchange.reply(loaded(engine.model_name, tuple(exchange.warnings), chat=chat, unload=unload))


def _tell_kept(exchange: "Exchange", request: OllamaRequest) -> None:
    """Warn where a request says how long the model should stay."""
    if request.keep_alive is not None:
        exchange.warn("'keep_alive' is left out: the model stays as long as the server.")


async def _read_chat(exchange: "Exchange", request: OllamaChatRequest) -> Question[ChatUpdate]:
    exchange.names = _NAMES
    _tell_kept(exchange, request)
    tools = [Tool.from_openai(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
    check_tools(len(tools), exchange.service.limits)
    messages = conversation(request.messages)
    return await _conversation(exchange, request, messages, tuple(tools), chat=True)


async def _read_prompt(
    exchange: "Exchange", request: OllamaGenerateRequest
) -> Question[ChatUpdate]:
    exchange.names = _NAMES
    _tell_kept(exchange, request)
    engine = exchange.require_model(known_name(exchange, request.model))
    if not request.raw and engine.handler.template is not None:
        system = [Message("system", request.system)] if request.system else []
        messages = [*system, Message("user", request.prompt)]
        return await _conversation(exchange, request, messages, (), chat=False)
    for name in ("system", "think", "chat_template_kwargs"):
        if getattr(request, name):
            raise InvalidRequestError(f"'{name}' does not go with a raw prompt.", param=name)
    params = sampling_params(request.options, engine.default_sampling_params)
    asked = _asked(exchange, request, "text_completion", params)
    token_ids = await engine.encode(request.prompt)
    return Question(
        prompts=[token_ids],
        params=params,
        options=request.scheduled(grammar=grammar(request)),
        asked=asked,
        reading=ChatGeneration,
        writer=partial(_writer, exchange, chat=False),
    )


async def _conversation(
    exchange: "Exchange",
    request: OllamaRequest,
    messages: list[Message],
    tools: tuple[Tool, ...],
    *,
    chat: bool,
) -> Question[ChatUpdate]:
    engine = exchange.require_model(known_name(exchange, request.model))
    thinks = reasoning(
        exchange, request.think if isinstance(request.think, bool) else None, "think"
    )
    options = ChatOptions(
        tools=tools,
        grammar=grammar(request),
        reasoning=thinks,
        template_arguments=template_arguments(
            request.chat_template_kwargs,
            reasoning_effort=("think", request.think if isinstance(request.think, str) else None),
        ),
        continue_final_message=bool(messages) and messages[-1].role == "assistant",
    )
    params = sampling_params(request.options, engine.default_sampling_params)
    spec, token_ids = await prepare(exchange, messages, params, options)
    return Question(
        prompts=[token_ids],
        params=spec.params,
        options=request.scheduled(grammar=spec.grammar),
        asked=_asked(exchange, request, "chat", params),
        reading=spec.answer,
        writer=partial(_writer, exchange, chat=chat),
    )


def _asked(
    exchange: "Exchange", request: OllamaRequest, operation: str, params: SamplingParams
) -> Asked:
    answer_id = exchange.service.new_id("ollama-")
    return Asked(operation, answer_id, params, request.stream is not False)


def _writer(exchange: "Exchange", generations: list[Generation], *, chat: bool) -> OllamaWriter:
    model = exchange.service.engine.model_name
    return OllamaWriter(model, generations[0], tuple(exchange.warnings), chat=chat)


def known_name(exchange: "Exchange", name: str | None) -> str | None:
    """A model's name without the tag that Ollama's clients add."""
    engine = exchange.service.engine
    known = None if name is None else name.removesuffix(":latest")
    return known if known == engine.model_name or known in engine.adapters else name


async def tags(exchange: "Exchange") -> None:
    """The model that is served, in Ollama's form."""
    engine = exchange.service.require_ready()
    exchange.answer({"models": [_described(engine)]})


async def running(exchange: "Exchange") -> None:
    """The models that are loaded: the one that is served, in Ollama's form."""
    engine = exchange.service.require_ready()
    made = {**_described(engine), "expires_at": "9999-01-01T00:00:00Z", "size_vram": 0}
    exchange.answer({"models": [{**made, "context_length": engine.max_context}]})


async def show(exchange: "Exchange") -> None:
    """The model and its capabilities, in Ollama's form."""
    request = await exchange.decode(_show)
    engine = exchange.require_model(known_name(exchange, request.model))
    handler = engine.handler
    abilities = ["embedding"] if engine.vectors.declared else []
    abilities += ["completion"] if engine.vectors.generates else []
    if engine.vectors.generates and handler.format is not None and handler.template is not None:
        abilities += ["tools"] if "tools" in handler.template.variables else []
    abilities += ["thinking"] if engine.vectors.generates and handler.reasons else []
    made: dict[str, Any] = {
        "modelfile": "",
        "parameters": parameters(engine.generation_config.given),
        "template": "" if handler.template is None else handler.template.source,
        "details": _details(),
        "model_info": {
            "general.architecture": "pyengine",
            "general.basename": engine.model_name,
            "pyengine.context_length": engine.max_context,
        },
        "capabilities": abilities,
        "modified_at": _SINCE,
    }
    exchange.answer(made)


async def pull(exchange: "Exchange") -> None:
    """Say that the model is there, if it is the one that is served, in Ollama's form."""
    request = await exchange.read(_pull)
    exchange.require_model(known_name(exchange, request.model))
    body = _encode(OllamaPullAnswer())
    if request.stream is False:
        exchange.reply(body)
    else:
        exchange.reply(body + b"\n", content_type=LINES.content_type)


async def version(exchange: "Exchange") -> None:
    """The version of Ollama whose API this is: clients refuse servers that are older."""
    exchange.answer({"version": _OF_OLLAMA})


def _described(engine: "AsyncEngine") -> dict[str, Any]:
    name = engine.model_name
    return {
        "name": name, "model": name, "modified_at": _SINCE, "size": 0, "digest": _digest(engine),
        "details": _details(),
    }  # fmt: skip


def _digest(engine: "AsyncEngine") -> str:
    """What tells this model from others, as long as it is served under its name from its place."""
    return hashlib.sha256(f"{engine.model_name} {engine.config.model}".encode()).hexdigest()


def _details() -> dict[str, Any]:
    return {
        "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip
