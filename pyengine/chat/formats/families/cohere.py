"""Command R7B and Command A: a list of actions, or a response, both between tokens of their own.

As Cohere's chat templates render it. Command R and R+ describe calls in words; they have no format.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

COMMAND = ChatFormat(
    "command",
    Delimited(
        Calls(
            JsonCall("parameters", name="tool_name", number="tool_call_id"),
            between=",\n    ",
            open=("<|START_ACTION|>", "[\n    "),
            close=("\n]", "<|END_ACTION|>"),
        ),
        Reasoning("<|START_THINKING|>", "<|END_THINKING|>", ""),
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    stop_tokens=("<|END_OF_TURN_TOKEN|>",),
)
