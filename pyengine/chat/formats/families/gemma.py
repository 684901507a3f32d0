"""Gemma 3: what the prompt asks for, as it has no tokens for calls.

Google's documentation of function calling shows both: Python in a fence named ``tool_code``, and a
JSON object ``{"name", "parameters"}``, which models like to put in a fence. The list of Python
calls that some templates ask for is Llama's.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Bare, Calls, Delimited
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.python_call import PythonCall

GEMMA_TOOL_CODE = ChatFormat(
    "gemma_tool_code",
    Delimited(Calls(PythonCall(), between="\n", open=("```tool_code\n",), close=("\n```",))),
    stop_tokens=("<end_of_turn>",),
)
GEMMA_JSON = ChatFormat(
    "gemma_json",
    Delimited(
        Calls(
            JsonCall("parameters"),
            between=",\n",
            open=("```json\n",),
            close=("\n```",),
            bare=Bare(first="{"),
        )
    ),
    stop_tokens=("<end_of_turn>",),
)
