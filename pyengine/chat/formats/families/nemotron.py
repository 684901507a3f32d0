"""Llama-Nemotron: a list of JSON objects between tags, after reasoning.

As NVIDIA's chat templates render it.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

NEMOTRON = ChatFormat(
    "nemotron",
    Delimited(
        Calls(JsonCall(), between=", ", open=("<TOOLCALL>", "["), close=("]", "</TOOLCALL>")),
        Reasoning(),
    ),
)
