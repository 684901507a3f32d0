"""``tool_choice``, as chat completions and responses spell it."""

from collections.abc import Sequence

from pyengine.chat.tools import Named, ToolChoice
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.openai.schema.responses import ToolChoiceObject
from pyengine.http.openai.schema.tools import ToolChoiceParam

Choice = tuple[ToolChoice, frozenset[str] | None]
"""Whether tools are called, and the names of those that may be; None is all."""

_WORDS: dict[str | None, ToolChoice] = {
    None: "auto",
    "auto": "auto",
    "none": "none",
    "required": "required",
}


def choice_in_chat(given: str | ToolChoiceParam | None) -> Choice:
    """The choice of a chat request: names are under ``function``, allowed tools in an object.

    Raises:
        InvalidRequestError: It is malformed, or not supported; names what.
    """
    if not isinstance(given, ToolChoiceParam):
        return _WORDS[given], None
    at = f"tool_choice.{given.type}"
    if given.type == "function":
        if given.function is None:
            raise _missing(at)
        return Named(given.function.name), None
    if given.type == "allowed_tools":
        if given.allowed_tools is None:
            raise _missing(at)
        tools = given.allowed_tools.tools
        named = [(tool.type, None if (f := tool.function) is None else f.name) for tool in tools]
        return _allowed(given.allowed_tools.mode, named, at)
    raise _unsupported(given.type)


def choice_in_response(given: str | ToolChoiceObject | None) -> Choice:
    """The choice of a Responses request: names and allowed tools are in the choice itself.

    Raises:
        InvalidRequestError: As of :func:`choice_in_chat`.
    """
    if not isinstance(given, ToolChoiceObject):
        return _WORDS[given], None
    if given.type == "function":
        if given.name is None:
            raise _missing("tool_choice.name")
        return Named(given.name), None
    if given.type == "allowed_tools":
        if given.tools is None:
            raise _missing("tool_choice.tools")
        named = [(tool.type, tool.name) for tool in given.tools]
        return _allowed(given.mode, named, "tool_choice")
    raise _unsupported(given.type)


def _allowed(mode: str | None, tools: Sequence[tuple[str, str | None]], at: str) -> Choice:
    """The choice among tools that are given by type and name."""
    names = set()
    for index, (kind, name) in enumerate(tools):
        if kind != "function" or name is None:
            where = f"{at}.tools[{index}]"
            raise UnsupportedParameterError(f"'{where}' must name a function.", param=where)
        names.add(name)
    if mode not in ("auto", "required"):
        raise InvalidRequestError(f"'{at}.mode' must be auto or required.", param=f"{at}.mode")
    return _WORDS[mode], frozenset(names)


def _missing(at: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Missing required parameter: '{at}'.", param=at, code="missing_required_parameter"
    )


def _unsupported(kind: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"'tool_choice' of type '{kind[:100]}' is not supported.", param="tool_choice.type"
    )
