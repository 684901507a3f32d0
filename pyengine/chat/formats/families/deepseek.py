"""DeepSeek V3, R1 and V3.1: calls between markers of their own, one for every purpose.

As their chat templates render them. V3 and R1 put a fence around the arguments, V3.1 does not; the
template of V3.1 closes the reasoning in the prompt unless it was asked for.
"""

from pyengine.chat.formats.bodies import NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

_FENCED = Calls(
    NamedJson(before="function<｜tool▁sep｜>", between="\n```json\n", after="\n```"),
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    between="\n",
    open=("<｜tool▁calls▁begin｜>",),
    close=("<｜tool▁calls▁end｜>",),
)
_PLAIN = Calls(
    NamedJson(between="<｜tool▁sep｜>"),
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    open=("<｜tool▁calls▁begin｜>",),
    close=("<｜tool▁calls▁end｜>",),
)

DEEPSEEK_V3 = ChatFormat("deepseek_v3", Delimited(_FENCED))
DEEPSEEK_R1 = ChatFormat("deepseek_r1", Delimited(_FENCED, Reasoning()))
DEEPSEEK_V31 = ChatFormat("deepseek_v31", Delimited(_PLAIN, Reasoning(after="")))
