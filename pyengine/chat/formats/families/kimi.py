"""Kimi K2, K2 Thinking, K2.5 and Kimi Linear: calls in a section of their own, with their ids.

As their chat templates render them (Moonshot AI, "Tool Use of Kimi-K2"): an id is
``functions.NAME:NUMBER``, and numbers count the calls of the conversation.
"""

from pyengine.chat.formats.bodies import NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

_CALLS = Calls(
    NamedJson(before="functions.", between="<|tool_call_argument_begin|>", numbered=True),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    open=("<|tool_calls_section_begin|>",),
    close=("<|tool_calls_section_end|>",),
)

KIMI = ChatFormat("kimi", Delimited(_CALLS))
KIMI_THINKING = ChatFormat("kimi_thinking", Delimited(_CALLS, Reasoning(after="")))
