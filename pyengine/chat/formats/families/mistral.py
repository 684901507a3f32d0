"""Mistral: ``[TOOL_CALLS]`` and a list of JSON objects; since version 11 a name and its arguments.

As mistral-common's instruct tokenizers write them: up to version 3 with a space before the list,
from 7 (Tekken) without; from 11 ``[TOOL_CALLS]name[ARGS]{...}`` for each call, at first without
``[ARGS]``. Magistral thinks between ``[THINK]`` and ``[/THINK]``.
"""

from pyengine.chat.formats.bodies import JsonCall, NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.sink import short_call_id

_THINK = Reasoning("[THINK]", "[/THINK]", "")


def _list(before: str) -> Calls:
    return Calls(JsonCall(), between=", ", open=("[TOOL_CALLS]", before + "["), close=("]",))


_NAMED = Calls(NamedJson(between="[ARGS]", optional=True), begin="[TOOL_CALLS]")

MISTRAL = ChatFormat("mistral", Delimited(_list(" ")), make_id=short_call_id)
MISTRAL_TEKKEN = ChatFormat("mistral_tekken", Delimited(_list("")), make_id=short_call_id)
MISTRAL_ARGS = ChatFormat("mistral_args", Delimited(_NAMED), make_id=short_call_id)
MAGISTRAL = ChatFormat("magistral", Delimited(_NAMED, _THINK), make_id=short_call_id)
