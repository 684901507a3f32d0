"""Hunyuan: calls in one pair of tags, each a name and fenced JSON or all one list of JSON objects.

As the chat templates of Tencent's models render calls, and as Hunyuan-A13B's model card asks for
them in a prompt of its own. Models that think write their answer between tags, too.
"""

from pyengine.chat.formats.bodies import JsonCall, NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

_FENCED = Calls(
    NamedJson(between="\n```json\n", after="\n```"),
    begin="<tool_call>",
    end="</tool_call>",
    between="\n",
    open=("<tool_calls>",),
    close=("</tool_calls>",),
)
_LIST = Calls(JsonCall(), between=", ", open=("<tool_calls>", "["), close=("]", "</tool_calls>"))
_REASONING, _AROUND = Reasoning(after="\n"), ("<answer>", "</answer>")

HUNYUAN = ChatFormat("hunyuan", Delimited(_FENCED, _REASONING, _AROUND))
HUNYUAN_JSON = ChatFormat("hunyuan_json", Delimited(_LIST, _REASONING, _AROUND))
