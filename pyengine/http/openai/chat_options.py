"""From the fields of a chat request to what is wanted of its answer."""

from typing import Any

from pyengine.chat.messages import text_of_parts
from pyengine.chat.options import ChatOptions
from pyengine.chat.template import ChatTemplate
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.tools import ToolParam
from pyengine.http.openai.tool_choice import choice_in_chat


def chat_options(
    request: ChatRequest, grammar: Grammar | None, template: ChatTemplate | None, limits: Limits
) -> ChatOptions:
    """What a request wants beside how it is sampled.

    Raises:
        InvalidRequestError: A field is malformed, or not supported; named.
    """
    choice, allowed = choice_in_chat(request.tool_choice)
    return ChatOptions(
        tools=_tools(request.tools or [], limits),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=grammar,
        template_arguments=_template_arguments(request, template),
    )


def predicted(request: ChatRequest) -> str | None:
    """The text that the answer is expected to repeat in parts.

    Raises:
        InvalidRequestError: It is no text.
    """
    if request.prediction is None:
        return None
    content = request.prediction.content
    return content if isinstance(content, str) else text_of_parts(content, "prediction.content")


def _tools(given: list[ToolParam], limits: Limits) -> tuple[Tool, ...]:
    if len(given) > limits.tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.tools} tools, not {len(given)}.", param="tools"
        )
    return tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))


def _tool(tool: ToolParam, at: str) -> Tool:
    if tool.type != "function" or tool.custom is not None:
        raise UnsupportedParameterError(
            f"Tools of type '{tool.type[:100]}' are not supported ('{at}').", param=f"{at}.type"
        )
    if tool.function is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.function'.",
            param=f"{at}.function",
            code="missing_required_parameter",
        )
    function = tool.function
    entry = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": function.strict,
    }
    return Tool.from_openai({"function": entry}, at)


def _template_arguments(request: ChatRequest, template: ChatTemplate | None) -> dict[str, Any]:
    """The template's variables: those of chat_template_kwargs, and the reasoning effort."""
    arguments = dict(request.chat_template_kwargs or {})
    effort = effort_argument(request.reasoning_effort, template, "reasoning_effort")
    if arguments.keys() & effort.keys():
        raise InvalidRequestError(
            "'reasoning_effort' is also in 'chat_template_kwargs'; give one.",
            param="reasoning_effort",
        )
    return arguments | effort


def effort_argument(effort: str | None, template: ChatTemplate | None, at: str) -> dict[str, Any]:
    """The reasoning effort as a variable, for a template that reads it.

    What efforts there are, and what they do, is for the template to know.

    Raises:
        UnsupportedParameterError: The template reads none.
    """
    if effort is None:
        return {}
    if template is None or "reasoning_effort" not in template.variables:
        raise UnsupportedParameterError(
            f"'{at}' is not supported by the model's chat template.", param=at
        )
    return {"reasoning_effort": effort}
