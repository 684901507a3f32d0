"""Llama 3 and 4: a JSON object or a Python list of calls as the whole answer.

As Meta's prompt formats describe them: 3.1 and 3.2 write ``{"name", "parameters"}``, sometimes
behind ``<|python_tag|>``, and so does 4 where its template describes them; 3.2 (by choice) and 4
write ``[f(a=1), g()]``, 4 sometimes between ``<|python_start|>`` and ``<|python_end|>``.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Bare, Calls, Delimited
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.python_call import PythonCall

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
