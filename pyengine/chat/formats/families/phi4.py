"""Phi-4-mini: a list of JSON objects, between tokens of its own or behind ``functools``.

As Microsoft's model card shows the first, and prompts written for other servers ask for the second.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited
from pyengine.chat.formats.format import ChatFormat

PHI4_MINI = ChatFormat(
    "phi4_mini",
    Delimited(
        Calls(
            JsonCall(),
            between=", ",
            open=("<|tool_call|>", "["),
            close=("]", "<|/tool_call|>"),
        )
    ),
    stop_tokens=("<|end|>",),
)
PHI4_FUNCTOOLS = ChatFormat(
    "phi4_functools",
    Delimited(Calls(JsonCall(), between=", ", open=("functools[",), close=("]",))),
    stop_tokens=("<|end|>",),
)
