"""Functionary 3.1: ``<function=name>{...}</function>`` for each call.

As MeetKai's template, and Meta's prompt for custom tools of Llama 3.1, describe it.
"""

from pyengine.chat.formats.bodies import NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited
from pyengine.chat.formats.format import ChatFormat

FUNCTIONARY = ChatFormat(
    "functionary",
    Delimited(Calls(NamedJson(between=">"), begin="<function=", end="</function>")),
    stop_tokens=("<|eom_id|>", "<|eot_id|>"),
)
