"""GLM-4.5 to 4.7: the name of a function, then each argument's key and value between tags.

As Z.ai's chat templates render it. A newline comes before the reasoning, and before the text of an
answer without it; version 4.7 leaves out those between tags, which the reader takes, too.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.tagged_call import TaggedCall
from pyengine.grammar.parameters import ParameterTags

_TAGS = ParameterTags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")

GLM45 = ChatFormat(
    "glm45",
    Delimited(
        Calls(
            TaggedCall(begin="", named="\n", tags=_TAGS, end="</tool_call>"),
            begin="<tool_call>",
            between="\n",
        ),
        Reasoning(after="\n", before="\n"),
    ),
    stop_tokens=("<|user|>", "<|observation|>"),
)
