"""Gemma 4: calls, thoughts and strings between tokens of their own.

As Google's documentation of its prompts and its chat template have it. The model ends a call with
the token that begins the tool's answer, and goes on in the same turn behind that answer.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.keyed_call import KeyedCall

GEMMA4 = ChatFormat(
    "gemma4",
    Delimited(
        Calls(KeyedCall(), begin="<|tool_call>", end="<tool_call|>"),
        Reasoning("<|channel>thought", "<channel|>", ""),
    ),
    stop_tokens=("<turn|>", "<|tool_response>"),
)
