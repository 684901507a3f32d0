"""MiniMax-M2: calls in a block, each parameter in a tag with its name.

As MiniMax's chat template renders it, which also opens the reasoning in the prompt.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.tagged_call import TaggedCall
from pyengine.grammar.parameters import ParameterTags

MINIMAX_M2 = ChatFormat(
    "minimax_m2",
    Delimited(
        Calls(
            TaggedCall(
                begin='<invoke name="',
                named='">\n',
                tags=ParameterTags('<parameter name="', '">', "</parameter>"),
                end="</invoke>",
            ),
            end="\n",
            open=("<minimax:tool_call>\n",),
            close=("</minimax:tool_call>",),
        ),
        Reasoning(),
    ),
    stop_tokens=("[e~[",),
)
