"""The messages of a conversation: what they may hold, and what a chat template gets of them."""

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

import msgspec

from pyengine.chat.template import ChatTemplate
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.validation.decoding import refusal


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message's content; only text is supported, the others are refused by name."""

    type: str
    text: str | None = None


class TextPart(Protocol):
    """A part of any endpoint's content that may be text."""

    @property
    def type(self) -> str:
        """The kind of part."""

    @property
    def text(self) -> str | None:
        """Its text, where it has one."""


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """The function that an assistant called, and its arguments as JSON."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class CustomCall(msgspec.Struct, forbid_unknown_fields=True):
    """The custom tool that an assistant called, and the text it gave."""

    name: str
    input: str


class MessageToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call in an earlier answer of the assistant, of a function or of a custom tool."""

    id: str
    function: FunctionCall | None = None
    type: Literal["function", "custom"] = "function"
    index: int | None = None
    custom: CustomCall | None = None

    def __post_init__(self) -> None:
        """Insist on one of the two.

        Raises:
            ValueError: It has neither, or both.
        """
        if (self.function is None) == (self.custom is None):
            raise ValueError("a call has a 'function', or a 'custom' tool")

    @property
    def called(self) -> FunctionCall:
        """The function; a custom tool is one of its text."""
        if self.function is not None:
            return self.function
        assert self.custom is not None
        text = msgspec.json.encode({"input": self.custom.input}).decode()
        return FunctionCall(self.custom.name, text)


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a conversation, as in OpenAI's chat completions.

    refusal, annotations and audio may come as null or empty, as the assistant's messages do when a
    client sends them back; anything else is refused by name. The role ``function`` and
    function_call are the older form of calls and their results, which only chats over HTTP take.

    reasoning_content is what the assistant thought before an earlier answer. Templates that do not
    read it leave earlier thoughts out on purpose: it is left out with a warning then, as name is.

    The name of a tool's message says again which tool the call it answers was of: it must be that,
    and a template that does not read it loses nothing.

    Attributes:
        role: Who speaks.
        tool_calls: The assistant's calls.
        tool_call_id: The id of the call that this is the result of.
        refusal: Null or empty, as answers have it.
        annotations: Null or empty, as answers have it.
        audio: Null or empty, as answers have it.
        function_call: Older form of an answer's call.
        reasoning_content: What the assistant thought before it answered.
        parsed: What OpenAI's client has read out of an answer and leaves beside its content.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    parsed: Any = None


# Keys of a message that are refused unless null or empty.
_UNSUPPORTED = ("refusal", "annotations", "audio", "function_call")


def read_messages(
    given: Sequence[Any], known: Collection[str]
) -> list[tuple[Message, dict[str, Any]]]:
    """Messages that come as dicts, each with what else it has for the template.

    Args:
        given: Role, content and so on each, as in OpenAI's chat completions.
        known: The keys of a message that the template reads; another one would be lost.

    Raises:
        InvalidRequestError: One is not what it should be; named.
    """
    if isinstance(given, str | bytes | dict):
        raise InvalidRequestError(
            "'messages' must be a list of dicts with 'role' and 'content', not one "
            f"{type(given).__name__}",
            param="messages",
        )
    made = []
    for index, message in enumerate(given):
        at = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidRequestError(f"{at} must be a dict, not {message!r}", param=at)
        own = {key: value for key, value in message.items() if key in _FIELDS}
        others = {key: value for key, value in message.items() if key not in _FIELDS}
        for key in others.keys() - known:
            raise _unsupported(f"{at}.{key}", " by the model's chat template")
        try:
            made.append((msgspec.convert(own, Message), others))
        except msgspec.ValidationError as error:
            raise refusal(error, Message, at) from None
    return made


_FIELDS = frozenset(Message.__struct_fields__)


def template_messages(
    messages: Sequence[Message], template: ChatTemplate, *, tools: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages as templates want them, and what is left out of them.

    Text parts stay parts where the template reads them, as in transformers, and become one text
    elsewhere, line by line; a tool call's arguments become the object that their JSON spells;
    ``developer`` becomes ``system`` for a template that does not know it (OpenAI: the same role
    under a newer name). Calls are refused where the template does not read them; names and
    reasoning are left out then, with a warning. ``tool_call_id`` is held against the calls before
    it.

    Args:
        messages: The conversation.
        template: The model's chat template.
        tools: Whether the request has tools, for which the model may have another template.

    Raises:
        InvalidRequestError: Naming the part of a message that is at fault.
    """
    if not messages:
        raise InvalidRequestError("'messages' must hold a message.", param="messages")
    unread: dict[str, None] = {}
    forms = template.tool_content_forms if tools else template.content_forms
    made = []
    for index, message in enumerate(messages):
        turn = _template_message(index, messages, template)
        if (content := turn["content"]) is not None:
            turn["content"] = forms.content(turn["role"], content)
        for key in ("reasoning_content", "name"):
            if not (value := getattr(message, key)):
                continue
            if key in template.message_keys:
                turn[key] = value
            elif key != "name" or message.role != "tool":
                unread[key] = None
        made.append(turn)
    return made, [
        f"'messages[].{key}' is left out: the model's chat template does not read it."
        for key in unread
    ]


def _template_message(
    index: int, messages: Sequence[Message], template: ChatTemplate
) -> dict[str, Any]:
    message, at = messages[index], f"messages[{index}]"
    for key in _UNSUPPORTED:
        if getattr(message, key):
            raise _unsupported(f"{at}.{key}")
    role: str = message.role
    if role == "function":
        raise _unsupported(f"{at}.role")
    if role == "developer" and not template.names_developer:
        role = "system"
    made: dict[str, Any] = {"role": role, "content": _content(message, at)}
    called = None
    if message.tool_call_id is not None or role == "tool":
        called = _called(index, messages)
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None and called is not None and message.name != called.called.name:
        raise InvalidRequestError(
            f"'{at}.name' must be '{called.called.name}', which the call that it answers names.",
            param=f"{at}.name",
        )
    if message.tool_calls:
        made["tool_calls"] = _tool_calls(message, at, template)
    return made


def _content(message: Message, at: str) -> str | list[str] | None:
    """The text of a message, or the texts of its parts."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return None
        if message.role == "assistant" and message.reasoning_content:
            return ""  # an answer that was cut short while it thought
        raise InvalidRequestError(f"'{at}.content' must not be null.", param=f"{at}.content")
    return _texts(content, f"{at}.content", ("text", "input_text"))


def text_of_parts(parts: Sequence[TextPart], at: str, types: Collection[str] = ("text",)) -> str:
    """The text of parts of the types that are text, line by line.

    Raises:
        InvalidRequestError: One is not text; named.
    """
    return "\n".join(_texts(parts, at, types))


def _texts(parts: Sequence[TextPart], at: str, types: Collection[str]) -> list[str]:
    return [_part(part, f"{at}[{number}]", types) for number, part in enumerate(parts)]


def _part(part: TextPart, at: str, types: Collection[str]) -> str:
    if part.type not in types:
        raise UnsupportedParameterError(
            f"Content of type '{part.type[:100]}' is not supported ('{at}').", param=f"{at}.type"
        )
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
        if call.index is not None and call.index != number:
            where = f"{at}.tool_calls[{number}].index"
            raise InvalidRequestError(f"'{where}' must be {number}.", param=where)
        called = call.called
        function = {"name": called.name, "arguments": _arguments(called.arguments)}
        made.append({"id": call.id, "type": "function", "function": function})
    return made


def _arguments(given: str) -> Any:
    """The arguments of a call: what their JSON spells, or the text of a call that was cut short."""
    try:
        return msgspec.json.decode(given if given.strip() else "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return given


def _called(index: int, messages: Sequence[Message]) -> MessageToolCall:
    """The call, of the assistant's message before it, that a tool's message answers."""
    message, at = messages[index], f"messages[{index}].tool_call_id"
    if message.role != "tool":
        raise InvalidRequestError(f"'{at}' is only for messages of tools.", param=at)
    before = next((m for m in reversed(messages[:index]) if m.role != "tool"), None)
    for call in (before.tool_calls or ()) if before is not None else ():
        if call.id == message.tool_call_id:
            return call
    raise InvalidRequestError(
        f"'{at}' must name a tool call of the assistant's message before it.", param=at
    )


def _unsupported(at: str, by: str = "") -> UnsupportedParameterError:
    return UnsupportedParameterError(f"'{at}' is not supported{by}.", param=at)
