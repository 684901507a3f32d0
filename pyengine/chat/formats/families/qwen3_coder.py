"""Qwen3-Coder: every parameter between tags of its own.

The model often leaves out ``<tool_call>``; ``<function=`` alone begins a call too.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.tagged_call import TaggedCall

_CALLS = Calls(
    TaggedCall(),
    begin="<tool_call>\n",
    end="\n</tool_call>",
    between="\n",
    others=("<function=",),
)

QWEN3_CODER = ChatFormat("qwen3_coder", Delimited(_CALLS))
QWEN3_CODER_THINKING = ChatFormat("qwen3_coder_thinking", Delimited(_CALLS, Reasoning()))
