"""Hermes and Qwen: JSON between ``<tool_call>`` tags; Qwen 3 thinks first.

As the chat templates of NousResearch's Hermes 2 Pro, Qwen 2.5 and Qwen 3 render it; the demo model
writes so too.
"""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

_CALLS = Calls(JsonCall(), begin="<tool_call>\n", end="\n</tool_call>", between="\n")

HERMES = ChatFormat("hermes", Delimited(_CALLS))
QWEN3 = ChatFormat("qwen3", Delimited(_CALLS, Reasoning()))
