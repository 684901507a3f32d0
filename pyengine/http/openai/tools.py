"""``tools``, as chat completions and responses spell them."""

from collections.abc import Sequence

from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.responses import FunctionToolParam
from pyengine.http.openai.schema.tools import FunctionParam, ToolParam


def read_tools(
    given: Sequence[ToolParam | FunctionToolParam] | None, limits: Limits
) -> tuple[Tool, ...]:
    """The tools of a request.

    Raises:
        InvalidRequestError: There are too many, or one is malformed or not supported; names it.
    """
    if given is None:
        return ()
    if len(given) > limits.tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.tools} tools, not {len(given)}.", param="tools"
        )
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))


def _tool(tool: ToolParam | FunctionToolParam, at: str) -> Tool:
    if tool.type != "function":
        raise UnsupportedParameterError(
            f"Tools of type '{tool.type[:100]}' are not supported ('{at}').", param=f"{at}.type"
        )
    if isinstance(tool, FunctionToolParam):
        return _function(tool, at)
    if tool.function is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.function'.",
            param=f"{at}.function",
            code="missing_required_parameter",
        )
    return _function(tool.function, f"{at}.function")


def _function(given: FunctionParam | FunctionToolParam, at: str) -> Tool:
    fields = {
        "name": given.name,
        "description": given.description,
        "parameters": given.parameters,
        "strict": given.strict,
        "key_order": given.key_order,
    }
    return Tool.from_function(fields, at)
