"""Families that write calls as Python does, or in JSON where their template asks for that."""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Bare, Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.python_call import PythonCall

# Gemma 3: what the prompt asks for, as it has no tokens for calls. Google's documentation of
# function calling shows both: Python in a fence named ``tool_code``, and a JSON object ``{"name",
# "parameters"}``, which models like to put in a fence. The list of Python calls that some templates
# ask for is Llama's.
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

# Llama 3 and 4: a JSON object or a Python list of calls as the whole answer. As Meta's prompt
# formats describe them: 3.1 and 3.2 write ``{"name", "parameters"}``, sometimes behind
# ``<|python_tag|>``, and so does 4 where its template describes them; 3.2 (by choice) and 4 write
# ``[f(a=1), g()]``, 4 sometimes between ``<|python_start|>`` and ``<|python_end|>``.
LLAMA3_JSON = ChatFormat(
    "llama3_json",
    Delimited(
        Calls(JsonCall("parameters"), between="; ", open=("<|python_tag|>",), bare=Bare(first="{"))
    ),
    stop_tokens=("<|eom_id|>", "<|eot_id|>"),
)

LLAMA_PYTHONIC = ChatFormat(
    "llama_pythonic",
    Delimited(Calls(PythonCall(), between=", ", bare=Bare(first="[", open="[", close="]"))),
    stop_tokens=("<|eom_id|>", "<|eot_id|>"),
)

LLAMA4_JSON = ChatFormat(
    "llama4_json",
    Delimited(
        Calls(
            JsonCall("parameters"),
            between="; ",
            open=("<|python_start|>",),
            close=("<|python_end|>",),
            bare=Bare(first="{"),
        )
    ),
    stop_tokens=("<|eom|>", "<|eot|>"),
)

LLAMA4_PYTHONIC = ChatFormat(
    "llama4_pythonic",
    Delimited(
        Calls(
            PythonCall(),
            between=", ",
            open=("<|python_start|>", "["),
            close=("]", "<|python_end|>"),
            bare=Bare(first="[", open="[", close="]"),
        )
    ),
    stop_tokens=("<|eom|>", "<|eot|>"),
)

# OLMo 3: calls as Python writes them, one a line, between tags. As Ai2's chat templates render it;
# the template of a model that thinks opens the reasoning in the prompt.
_OLMO_CALLS = Calls(
    PythonCall(), between="\n", open=("<function_calls>\n",), close=("\n</function_calls>",)
)

OLMO3 = ChatFormat("olmo3", Delimited(_OLMO_CALLS))
OLMO3_THINKING = ChatFormat("olmo3_thinking", Delimited(_OLMO_CALLS, Reasoning()))
