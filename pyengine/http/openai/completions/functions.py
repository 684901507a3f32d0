"""``functions`` and ``function_call``: the form that tools had in chats before there were tools.

A request in that form becomes one with tools, of which the model may call one. Messages of its kind
become messages of tools; the ids that tie a result to its call are made here.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from pyengine.chat.messages import FunctionCall, Message, MessageToolCall
from pyengine.errors import InvalidRequestError
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.tools import NamedFunction, ToolChoiceParam, ToolParam

FINISH = "function_call"
"""Why an answer ended that is a call, in the older form."""


def with_tools(request: ChatRequest) -> ChatRequest:
    """The request with tools, where it has functions, and with the messages of tools.

    Raises:
        InvalidRequestError: It has both, or chooses among functions that it does not have; named.
    """
    request = replace(request, messages=_messages(request.messages))
    if not request.functions:
        if request.function_call not in (None, "none", "auto"):
            raise InvalidRequestError(
                "'function_call' names a function, but there are no 'functions'.",
                param="function_call",
            )
        return request
    for name in ("tools", "tool_choice"):
        if getattr(request, name) is not None:
            raise InvalidRequestError(
                f"'functions' is the older form of tools, and '{name}' the newer; give one.",
                param="functions",
            )
    choice = request.function_call
    if isinstance(choice, NamedFunction):
        chosen: str | ToolChoiceParam = ToolChoiceParam("function", choice)
    else:
        chosen = choice or "auto"
    return replace(
        request,
        tools=[ToolParam("function", each) for each in request.functions],
        tool_choice=chosen,
        parallel_tool_calls=False,
    )


def _messages(given: Sequence[Message]) -> list[Message]:
    made: list[Message] = []
    for index, message in enumerate(given):
        if isinstance(message.function_call, FunctionCall):
            call = MessageToolCall(f"function_{index}", message.function_call)
            message = replace(message, function_call=None, tool_calls=[call])
        elif message.role == "function":
            before = made[-1].tool_calls if made else None
            answered = before[0].id if before else None
            message = replace(message, role="tool", tool_call_id=answered)
        made.append(message)
    return made
