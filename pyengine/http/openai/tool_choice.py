"""``tool_choice``, as chat completions and responses spell it."""

from collections.abc import Sequence

from pyengine.chat.tools import Named, ToolChoice
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.openai.schema.responses import ToolChoiceObject
from pyengine.http.openai.schema.tools import ToolChoiceParam
from pyengine.http.openai.tools import ServedTool, missing

Choice = tuple[ToolChoice, frozenset[str] | None]
"""Whether tools are called, and the names of those that may be; None is all."""

_WORDS: dict[str | None, ToolChoice] = {
    None: "auto",
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",  # as Mistral says it
}


def choice_in_chat(given: str | ToolChoiceParam | None) -> Choice:
    """The choice of a chat request: names are under ``function``, allowed tools in an object.

    Raises:
        InvalidRequestError: It is malformed, or not supported; names what.
    """
    if not isinstance(given, ToolChoiceParam):
        return _WORDS[given], None
    at = f"tool_choice.{given.type}"
    if given.type in ("function", "custom"):
        named_tool = given.function if given.type == "function" else given.custom
        if named_tool is None:
            raise missing(at)
        return Named(named_tool.name), None
    if given.type == "allowed_tools":
        if given.allowed_tools is None:
            raise missing(at)
        tools = given.allowed_tools.tools
        named = [
            (tool.type, None if (of := tool.function or tool.custom) is None else of.name)
            for tool in tools
        ]
        return _allowed(given.allowed_tools.mode, named, at)
    raise _unsupported(given.type)


def choice_in_response(
    given: str | ToolChoiceObject | None, served: Sequence[ServedTool]
) -> Choice:
    """The choice of a Responses request: names and allowed tools are in the choice itself.

    Raises:
        InvalidRequestError: As of :func:`choice_in_chat`.
    """
    if not isinstance(given, ToolChoiceObject):
        return _WORDS[given], None
    names = {each.name: each.tool.name for each in served}
    if given.type in ("function", "custom"):
        if given.name is None:
            raise missing("tool_choice.name")
        return Named(names.get(given.name, given.name)), None
    if given.type == "allowed_tools":
        if given.tools is None:
            raise missing("tool_choice.tools")
        named = [
            (tool.type, None if tool.name is None else names.get(tool.name, tool.name))
            for tool in given.tools
        ]
        return _allowed(given.mode, named, "tool_choice")
    raise _unsupported(given.type)


def _allowed(mode: str | None, tools: Sequence[tuple[str, str | None]], at: str) -> Choice:
    """The choice among tools that are given by type and name."""
    names = set()
    for index, (kind, name) in enumerate(tools):
        if kind not in ("function", "custom") or name is None:
            where = f"{at}.tools[{index}]"
            raise UnsupportedParameterError(
                f"'{where}' must name a function or a custom tool.", param=where
            )
        names.add(name)
    if mode not in ("auto", "required"):
        raise InvalidRequestError(f"'{at}.mode' must be auto or required.", param=f"{at}.mode")
    return _WORDS[mode], frozenset(names)


def _unsupported(kind: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"'tool_choice' of type '{kind[:100]}' is not supported.", param="tool_choice.type"
    )
