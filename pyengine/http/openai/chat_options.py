"""From the fields of a chat request to its ChatOptions."""

from typing import Any

from pyengine.chat.messages import text_of_parts
from pyengine.chat.options import ChatOptions
from pyengine.chat.template import ChatTemplate
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.structured import Constraint
from pyengine.http.openai.tool_choice import choice_in_chat
from pyengine.http.openai.tools import read_tools


def chat_options(
    request: ChatRequest, grammar: Grammar | None, template: ChatTemplate | None, limits: Limits
) -> ChatOptions:
    """The options of a chat request besides sampling.

    Raises:
        InvalidRequestError: A field is malformed, or not supported; named.
    """
    choice, allowed = choice_in_chat(request.tool_choice)
    return ChatOptions(
        tools=read_tools(request.tools, limits),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=grammar,
        template_arguments=_template_arguments(request, template),
    )


def grammar_names(wanted: Constraint, options: ChatOptions) -> tuple[str, dict[str, str]]:
    """The request's fields that a refused grammar comes from.

    Returns the field that the whole of it comes from (the one that describes the text; else the
    only tool, or the tools together), and the field of each tool's schema by the beginning of its
    refusals: chat formats name the schemas after their tools.
    """
    schemas = {
        f"tool '{tool.name}'": f"tools[{index}].{options.parameters_at}"
        for index, tool in enumerate(options.tools)
        if tool in options.callable_tools
    }
    if wanted.grammar is not None or not schemas:
        return wanted.field, schemas
    return next(iter(schemas.values())) if len(schemas) == 1 else "tools", schemas


def predicted(request: ChatRequest) -> str | None:
    """The text that the answer is expected to repeat in parts.

    Raises:
        InvalidRequestError: It is no text.
    """
    if request.prediction is None:
        return None
    content = request.prediction.content
    return content if isinstance(content, str) else text_of_parts(content, "prediction.content")


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
