"""From the fields of a chat request to its ChatOptions."""

from collections.abc import Sequence
from typing import Any

from pyengine.chat.messages import text_of_parts
from pyengine.chat.options import ChatOptions
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.structured import Constraint
from pyengine.http.openai.tool_choice import choice_in_chat
from pyengine.http.openai.tools import ServedTool, known


def chat_options(
    request: ChatRequest,
    grammar: Grammar | None,
    limits: Limits,
    thinks: bool | None,
    tools: Sequence[ServedTool],
) -> ChatOptions:
    """The options of a chat request besides sampling; ``thinks``: whether the model thinks first.

    Raises:
        InvalidRequestError: A field is malformed, or not supported; named.
    """
    choice, allowed = choice_in_chat(request.tool_choice)
    return ChatOptions(
        tools=known(tools),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=grammar,
        reasoning=thinks,
        thinking_budget=thinking_budget(request)[1],
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=_continues(request),
        chat_template=own_template(request.chat_template, limits),
        template_arguments=template_arguments(
            request.chat_template_kwargs,
            reasoning_effort=("reasoning_effort", _effort(request)),
            verbosity=("verbosity", request.verbosity),
        ),
    )


def thinks_first(request: ChatRequest) -> tuple[bool | None, str]:
    """Whether the model is to think first, and the field that says so.

    Raises:
        InvalidRequestError: Two fields say so and differ.
    """
    if request.thinking is None:
        return request.enable_thinking, "enable_thinking"
    wanted = request.thinking.type != "disabled"
    if request.enable_thinking not in (None, wanted):
        raise InvalidRequestError(
            "'thinking' and 'enable_thinking' mean the same; give one.", param="thinking"
        )
    return wanted, "thinking"


def thinking_budget(request: ChatRequest) -> tuple[str, int | None]:
    """The field that gives the thinking budget, and the budget; -1 is none.

    Raises:
        InvalidRequestError: Two are given and differ.
    """
    fields = {
        "thinking_token_budget": request.thinking_token_budget,
        "thinking.budget_tokens": request.thinking.budget_tokens if request.thinking else None,
        "reasoning.max_tokens": request.reasoning.max_tokens if request.reasoning else None,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    if len(set(given.values())) > 1:
        first, second, *_ = given
        raise InvalidRequestError(
            f"'{first}' and '{second}' mean the same; give one.", param=second
        )
    name, found = next(iter(given.items()), ("thinking_token_budget", None))
    return name, None if found == -1 else found


def own_template(given: str | None, limits: Limits) -> str | None:
    """The chat template that a request brings.

    Raises:
        UnsupportedParameterError: The server takes none.
    """
    if given is not None and not limits.trust_request_chat_template:
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


def template_arguments(
    given: dict[str, Any] | None, **fields: tuple[str, str | None]
) -> dict[str, Any]:
    """The template's variables: those that the request gives, and those that fields of it are.

    What efforts of reasoning there are, say, and what they do, is for the template to know.

    Args:
        given: ``chat_template_kwargs``.
        fields: By the variable, the request's field and its value.

    Raises:
        InvalidRequestError: A variable is given twice.
    """
    arguments = dict(given or {})
    for name, (at, value) in fields.items():
        if value is None:
            continue
        if name in arguments:
            raise InvalidRequestError(
                f"'{at}' is also in 'chat_template_kwargs'; give one.", param=at
            )
        arguments[name] = value
    return arguments


def _effort(request: ChatRequest) -> str | None:
    """The effort, as OpenAI spells it in chats or as it does in responses."""
    other = None if request.reasoning is None else request.reasoning.effort
    if None not in (other, request.reasoning_effort) and other != request.reasoning_effort:
        raise InvalidRequestError(
            "'reasoning.effort' and 'reasoning_effort' mean the same; give one.",
            param="reasoning.effort",
        )
    return request.reasoning_effort or other
