"""``POST /v1/chat/completions``."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine._core import Stage
from pyengine.chat.template import ChatTemplate
from pyengine.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from pyengine.http import sse
from pyengine.http.backend import Engine
from pyengine.http.schema.chat import (
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_MESSAGE,
    AnswerMessage,
    ChatChoice,
    ChatRequest,
    ChatResponse,
    ContentPart,
    Message,
)
from pyengine.http.schema.common import (
    check_common,
    include_usage,
    refuse_unsupported,
    sampling_params,
    usage_object,
)
from pyengine.http.tracing import Asked
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer a conversation."""
    request = await exchange.decode(_decoder)
    engine = exchange.service.require_model(request.model)
    check_common(request)
    refuse_unsupported(request, UNSUPPORTED_IN_CHAT)
    params = sampling_params(request, _max_tokens(request))
    token_ids = await _prompt(request, engine)
    try:
        generation = engine.generate(
            token_ids,
            params,
            priority=request.priority or 0,
            tenant=request.user,
            cache_salt=request.cache_salt,
        )
    except InvalidRequestError as error:
        raise _renamed(error, request) from None
    answer_id, created = exchange.service.new_id("chatcmpl-"), int(time.time())
    exchange.watch([generation], Asked("chat", answer_id, params, bool(request.stream)))
    if request.stream:
        chunks = sse.ChatChunks(answer_id, created, engine.model_name, include_usage(request))
        await sse.stream(exchange, [generation], chunks)
        return
    whole = await generation
    choice = ChatChoice(0, AnswerMessage(whole.text), whole.finish_reason or "stop")
    exchange.reply(
        _encode(
            ChatResponse(
                id=answer_id,
                created=created,
                model=engine.model_name,
                choices=[choice],
                usage=usage_object([whole.usage]),
            )
        ),
        200,
        ("server-timing", server_timing([generation.outcome.timing])),
    )


def _max_tokens(request: ChatRequest) -> int | None:
    """``max_completion_tokens``, or ``max_tokens`` by its old name."""
    new, old = request.max_completion_tokens, request.max_tokens
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


def _renamed(error: InvalidRequestError, request: ChatRequest) -> InvalidRequestError:
    """What the engine says about the prompt is about the messages here, and so on."""
    if error.param == "prompt":
        error.param = "messages"
    elif error.param == "max_tokens" and request.max_completion_tokens is not None:
        error.param = "max_completion_tokens"
    return error


async def _prompt(request: ChatRequest, engine: Engine) -> list[int]:
    """The token ids of a conversation."""
    if engine.template is None:
        raise InvalidRequestError(
            f"'{engine.model_name}' has no chat template; use /v1/completions.", param="messages"
        )
    engine.timeline.begin()
    text = engine.template.render(template_messages(request.messages, engine.template))
    engine.timeline.lap(Stage.TEMPLATE)
    start = engine.timeline.begin()
    try:
        engine.tokenizer.check_length(text, engine.max_context)
    except ContextLengthError as error:
        raise _renamed(error, request) from None
    token_ids = await engine.tokenizer.encode_async(text, add_special_tokens=False)
    engine.timeline.span(Stage.TOKENIZE, start)
    return token_ids


def template_messages(messages: list[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Messages as templates want them.

    Text parts become one text, line by line; a tool call's arguments become the object that their
    JSON spells; ``developer`` becomes ``system`` for a template that does not know it (OpenAI: the
    same role under a newer name). Keys that the template does not read are refused, but for
    ``tool_call_id``, which is held against the calls before it.

    Raises:
        InvalidRequestError: Naming the part of a message that is at fault.
    """
    if not messages:
        raise InvalidRequestError("'messages' must hold a message.", param="messages")
    return [_template_message(index, messages, template) for index in range(len(messages))]


def _template_message(
    index: int, messages: list[Message], template: ChatTemplate
) -> dict[str, Any]:
    message, at = messages[index], f"messages[{index}]"
    for key in UNSUPPORTED_IN_MESSAGE:
        if getattr(message, key):
            raise _unsupported(f"{at}.{key}")
    role: str = message.role
    if role == "developer" and not template.names_developer:
        role = "system"
    made: dict[str, Any] = {"role": role, "content": _text(message, at)}
    if message.name is not None:
        if "name" not in template.message_keys:
            raise _unsupported(f"{at}.name", " by the model's chat template")
        made["name"] = message.name
    if message.tool_calls:
        made["tool_calls"] = _tool_calls(message, at, template)
    if message.tool_call_id is not None or role == "tool":
        _check_tool_answer(index, messages)
        made["tool_call_id"] = message.tool_call_id
    return made


def _text(message: Message, at: str) -> str | None:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return None
        raise InvalidRequestError(f"'{at}.content' must not be null.", param=f"{at}.content")
    return "\n".join(_part(part, f"{at}.content[{number}]") for number, part in enumerate(content))


def _part(part: ContentPart, at: str) -> str:
    if part.type != "text":
        raise UnsupportedParameterError(
            f"Content of type '{part.type[:100]}' is not supported ('{at}').", param=f"{at}.type"
        )
    for key in ("image_url", "input_audio", "file", "refusal", "prompt_cache_breakpoint"):
        if getattr(part, key) is not None:
            raise _unsupported(f"{at}.{key}")
    if part.text is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.text'.",
            param=f"{at}.text",
            code="missing_required_parameter",
        )
    return part.text


def _tool_calls(message: Message, at: str, template: ChatTemplate) -> list[dict[str, Any]]:
    if message.role != "assistant":
        raise InvalidRequestError(
            f"'{at}.tool_calls' is only for the assistant's messages.", param=f"{at}.tool_calls"
        )
    if "tool_calls" not in template.message_keys:
        raise _unsupported(f"{at}.tool_calls", " by the model's chat template")
    made = []
    for number, call in enumerate(message.tool_calls or ()):
        where = f"{at}.tool_calls[{number}].function.arguments"
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequestError(
                f"'{where}' is not valid JSON: {error}", param=where
            ) from None
        function = {"name": call.function.name, "arguments": arguments}
        made.append({"id": call.id, "type": "function", "function": function})
    return made


def _check_tool_answer(index: int, messages: list[Message]) -> None:
    """A tool's message must answer a call of the assistant's message before it."""
    message, at = messages[index], f"messages[{index}].tool_call_id"
    if message.role != "tool":
        raise InvalidRequestError(f"'{at}' is only for messages of tools.", param=at)
    before = next((m for m in reversed(messages[:index]) if m.role != "tool"), None)
    calls = {call.id for call in (before.tool_calls or ())} if before is not None else set()
    if message.tool_call_id not in calls:
        raise InvalidRequestError(
            f"'{at}' must name a tool call of the assistant's message before it.", param=at
        )


def _unsupported(at: str, by: str = "") -> UnsupportedParameterError:
    return UnsupportedParameterError(f"'{at}' is not supported{by}.", param=at)
