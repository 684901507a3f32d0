"""``tools``, as chat completions spell them, and what they are to the client and the model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.hosted_tools import is_hosted, left_out
from pyengine.http.limits import Limits, check_tools
from pyengine.http.openai.custom_tools import custom_tool
from pyengine.http.openai.schema.tools import FunctionParam, GrammarText, ToolParam


@dataclass(frozen=True)
class ServedTool:
    """A tool as the client knows it.

    Attributes:
        tool: As the model knows it.
        kind: How its calls are written.
        name: Its name, of which the model's may be made.
        namespace: The namespace that has it.
    """

    tool: Tool
    kind: Literal["function", "custom", "tool_search"] = "function"
    name: str = ""
    namespace: str | None = None


def known(served: Iterable[ServedTool]) -> tuple[Tool, ...]:
    """The tools as the model knows them."""
    return tuple(each.tool for each in served)


def customs(served: Iterable[ServedTool]) -> frozenset[str]:
    """The names of the custom tools among them."""
    return frozenset(each.name for each in served if each.kind == "custom")


def read_tools(
    given: Sequence[ToolParam] | None, limits: Limits, warn: dict[str, None]
) -> tuple[ServedTool, ...]:
    """The tools of a chat request; ``warn`` takes a line for each tool that is left out.

    Raises:
        InvalidRequestError: There are too many, or one is malformed or not supported; names it.
    """
    given = given or ()
    check_tools(len(given), limits)
    made = (_tool(tool, f"tools[{index}]", warn) for index, tool in enumerate(given))
    return tuple(tool for tool in made if tool is not None)


def _tool(given: ToolParam, at: str, warn: dict[str, None]) -> ServedTool | None:
    if is_hosted(given.type):
        warn[left_out(given.type)] = None
        return None
    if given.type not in ("function", "custom"):
        raise unsupported(given.type, at)
    inner = given.function if given.type == "function" else given.custom
    if inner is None:
        raise missing(f"{at}.{given.type}")
    at = f"{at}.{given.type}"
    if isinstance(inner, FunctionParam):
        return ServedTool(function_tool(inner, at), name=inner.name)
    grammar = inner.format.grammar if isinstance(inner.format, GrammarText) else None
    tool = custom_tool(inner.name, inner.description, grammar, at, warn)
    return ServedTool(tool, "custom", inner.name)


def function_tool(given: FunctionParam, at: str) -> Tool:
    """The tool that a function is.

    Raises:
        InvalidRequestError: It is malformed; names what.
    """
    fields = {
        "name": given.name,
        "description": given.description,
        "parameters": given.parameters,
        "strict": given.strict,
        "key_order": given.key_order,
    }
    return Tool.from_function(fields, at)


def unsupported(kind: object, at: str) -> UnsupportedParameterError:
    """The error about a tool of a type that is not known."""
    return UnsupportedParameterError(
        f"Tools of type '{str(kind)[:100]}' are not supported ('{at}').", param=f"{at}.type"
    )


def missing(at: str) -> InvalidRequestError:
    """The error about a field that must be there."""
    return InvalidRequestError(
        f"Missing required parameter: '{at}'.", param=at, code="missing_required_parameter"
    )
