"""From Ollama's messages and options to those of the chat handler and the sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar, json_object, json_schema
from pyengine.http.ollama.schema import OllamaMessage, OllamaOptions, OllamaRequest
from pyengine.http.openai.schema.sampling import within
from pyengine.request.generation_config import over
from pyengine.sampling import SamplingParams

_NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
OPTION_NAMES = {
    **{name: f"options.{name}" for name in SamplingParams.__struct_fields__},
    **{mine: f"options.{given}" for given, mine in _NAMES.items()},
}
"""The request's fields by the sampling parameters."""


def conversation(given: Sequence[OllamaMessage]) -> list[Message]:
    """The messages. Calls that have no id get one by their place, and so do the tools' answers.

    Raises:
        InvalidRequestError: A tool answers no call; named.
    """
    made: list[Message] = []
    calls: list[MessageToolCall] = []
    for index, message in enumerate(given):
        if message.role == "tool":
            made.append(_answer(message, calls, f"messages[{index}]"))
            continue
        calls = [
            MessageToolCall(
                call.id or f"call_{index}_{number}",
                FunctionCall(
                    call.function.name, msgspec.json.encode(call.function.arguments).decode()
                ),
            )
            for number, call in enumerate(message.tool_calls or ())
        ]
        content = message.content if message.content or not calls else None
        made.append(Message(message.role, content))
        made[-1].tool_calls = list(calls) or None
        made[-1].reasoning_content = message.thinking
    return made


def _answer(message: OllamaMessage, calls: list[MessageToolCall], at: str) -> Message:
    """A tool's message; takes the call that it answers from ``calls``."""
    for call in calls:
        wanted = message.tool_call_id, message.tool_name
        if wanted[0] in (None, call.id) and wanted[1] in (None, call.called.name):
            calls.remove(call)
            return Message("tool", message.content, tool_call_id=call.id)
    raise InvalidRequestError(f"'{at}' answers no call of the message before it.", param=at)


def sampling_params(options: OllamaOptions | None, defaults: SamplingParams) -> SamplingParams:
    """The parameters of ``options`` over ``defaults``; a ``num_predict`` of -1 is no limit.

    Raises:
        InvalidRequestError: One is out of its range.
    """
    given: dict[str, Any] = {} if options is None else msgspec.structs.asdict(options)
    values = {_NAMES.get(name, name): value for name, value in given.items() if value is not None}
    if values.get("max_tokens") in (-1, -2):
        del values["max_tokens"]
    if isinstance(stop := values.get("stop"), list):
        values["stop"] = tuple(stop)
    last = values.pop("repeat_last_n", None)
    return within(over(defaults, values), last, "options.repeat_last_n")


def parameters(given: Mapping[str, float]) -> str:
    """Sampling parameters in the form of a Modelfile: a name and a value a line."""
    names = {mine: name for name, mine in _NAMES.items()}
    return "\n".join(f"{names.get(name, name)} {value:g}" for name, value in given.items())


def grammar(request: OllamaRequest) -> Grammar | None:
    """What ``format`` says: any JSON object, or a schema.

    Raises:
        InvalidRequestError: It says something else.
    """
    if request.format in (None, ""):
        return None
    if request.format == "json":
        return json_object()
    if isinstance(request.format, str):
        raise InvalidRequestError("'format' must be json or a JSON Schema.", param="format")
    return json_schema(request.format)
