"""``POST /api/chat``, ``generate`` and ``show``; ``GET /api/tags``, ``ps`` and ``version``."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine._core import __version__
from pyengine.chat.answer import ChatUpdate
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError
from pyengine.http.answering import Question, answer, prepare
from pyengine.http.errors import FieldNames
from pyengine.http.ollama.answer import OllamaWriter
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
    OllamaRequest,
    OllamaShowRequest,
)
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.http.exchange import Exchange

_chat = msgspec.json.Decoder(OllamaChatRequest)
_generate = msgspec.json.Decoder(OllamaGenerateRequest)
_show = msgspec.json.Decoder(OllamaShowRequest)
_encode = msgspec.json.Encoder().encode
_NAMES = FieldNames({**OPTION_NAMES, "grammar": "format", "reasoning": "think"})
_SINCE = datetime.now(UTC).isoformat()


async def chat(exchange: "Exchange") -> None:
    """Answer a conversation."""
    await answer(exchange, await _read_chat(exchange))


async def generate(exchange: "Exchange") -> None:
    """Continue a prompt: as a message to the model, or as it is."""
    await answer(exchange, await _read_prompt(exchange))


async def _read_chat(exchange: "Exchange") -> Question[ChatUpdate]:
    exchange.names = _NAMES
    request = await exchange.decode(_chat)
    tools = [Tool.from_openai(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
    if len(tools) > exchange.service.limits.tools:
        raise InvalidRequestError(f"'tools' may hold {exchange.service.limits.tools} tools.")
    messages = conversation(request.messages)
    return await _conversation(exchange, request, messages, tuple(tools), chat=True)


async def _read_prompt(exchange: "Exchange") -> Question[ChatUpdate]:
    exchange.names = _NAMES
    request = await exchange.decode(_generate)
    engine = exchange.service.require_model(known_name(exchange, request.model))
    if not request.raw and engine.handler.template is not None:
        system = [Message("system", request.system)] if request.system else []
        messages = [*system, Message("user", request.prompt)]
        return await _conversation(exchange, request, messages, (), chat=False)
    for name in ("system", "think"):
        if getattr(request, name):
            raise InvalidRequestError(f"'{name}' does not go with a raw prompt.", param=name)
    params = sampling_params(request.options, engine.default_sampling_params)
    asked = _asked(exchange, request, "text_completion", params)
    token_ids = await engine.encode(request.prompt)
    return Question(
        prompts=[token_ids],
        params=params,
        options=RequestOptions(grammar=grammar(request)),
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
    engine = exchange.service.require_model(known_name(exchange, request.model))
    arguments = {"reasoning_effort": request.think} if isinstance(request.think, str) else {}
    reasoning = request.think if isinstance(request.think, bool) else None
    if reasoning is not None and not engine.handler.reasons:
        if reasoning:
            exchange.warn("'think' is left out: the model's format has no reasoning.")
        reasoning = None
    options = ChatOptions(
        tools=tools,
        grammar=grammar(request),
        reasoning=reasoning,
        template_arguments=arguments,
        continue_final_message=bool(messages) and messages[-1].role == "assistant",
    )
    params = sampling_params(request.options, engine.default_sampling_params)
    spec, token_ids = await prepare(exchange, messages, params, options)
    return Question(
        prompts=[token_ids],
        params=spec.params,
        options=RequestOptions(grammar=spec.grammar),
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
    known = exchange.service.engine.model_name
    return known if name == f"{known}:latest" else name


async def tags(exchange: "Exchange") -> None:
    """The model that is served."""
    engine = exchange.service.require_ready()
    exchange.reply(_encode({"models": [_described(engine)]}))


async def running(exchange: "Exchange") -> None:
    """The models that are loaded: the one that is served."""
    engine = exchange.service.require_ready()
    made = {**_described(engine), "expires_at": "9999-01-01T00:00:00Z", "size_vram": 0}
    exchange.reply(_encode({"models": [{**made, "context_length": engine.max_context}]}))


async def show(exchange: "Exchange") -> None:
    """Describes the model and its capabilities."""
    request = await exchange.decode(_show)
    engine = exchange.service.require_model(known_name(exchange, request.model))
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
    exchange.reply(_encode(made))


async def version(exchange: "Exchange") -> None:
    """The version of pyengine."""
    exchange.reply(_encode({"version": __version__}))


def _described(engine: "AsyncEngine") -> dict[str, Any]:
    name = engine.model_name
    return {
        "name": name, "model": name, "modified_at": _SINCE, "size": 0, "digest": "",
        "details": _details(),
    }  # fmt: skip


def _details() -> dict[str, Any]:
    return {
        "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip
