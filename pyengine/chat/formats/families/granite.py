"""Granite 3: a list of JSON objects behind a token; Granite 3.3 may think first.

As IBM's chat templates render it. Granite 4 writes as Hermes does.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

_CALLS = Calls(JsonCall(), between=", ", open=("<|tool_call|>", "["), close=("]",))

GRANITE = ChatFormat("granite", Delimited(_CALLS))
GRANITE_THINKING = ChatFormat(
    "granite_thinking", Delimited(_CALLS, Reasoning(after=""), around=("<response>", "</response>"))
)
