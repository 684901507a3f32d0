"""From the fields of a chat request to its ChatOptions."""

from typing import Any

from pyengine.chat.messages import text_of_parts
from pyengine.chat.options import ChatOptions
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.structured import Constraint
from pyengine.http.openai.tool_choice import choice_in_chat
from pyengine.http.openai.tools import read_tools


def chat_options(request: ChatRequest, grammar: Grammar | None, limits: Limits) -> ChatOptions:
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
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=_continues(request),
        chat_template=own_template(request.chat_template, limits),
        template_arguments=template_arguments(
            request.chat_template_kwargs, request.reasoning_effort, "reasoning_effort"
        ),
    )


def own_template(given: str | None, limits: Limits) -> str | None:
    """The chat template that a request brings.

    Raises:
        UnsupportedParameterError: The server takes none.
    """
    if given is not None and not limits.request_templates:
        raise UnsupportedParameterError(
            "'chat_template' is not taken: the server was started without "
            "--trust-request-chat-template, so the model's own is used.",
            param="chat_template",
        )
    return given


def _continues(request: ChatRequest) -> bool:
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidRequestError(
            "'continue_final_message' and 'add_generation_prompt' contradict each other.",
            param="continue_final_message",
        )
    return bool(request.continue_final_message)


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


def template_arguments(given: dict[str, Any] | None, effort: str | None, at: str) -> dict[str, Any]:
    """The template's variables: those that the request gives, and the reasoning effort.

    What efforts there are, and what they do, is for the template to know.

    Args:
        given: ``chat_template_kwargs``.
        effort: The reasoning effort.
        at: The field that gives it.

    Raises:
        InvalidRequestError: The effort is given twice.
    """
    arguments = dict(given or {})
    if effort is None:
        return arguments
    if "reasoning_effort" in arguments:
        raise InvalidRequestError(f"'{at}' is also in 'chat_template_kwargs'; give one.", param=at)
    return {**arguments, "reasoning_effort": effort}
