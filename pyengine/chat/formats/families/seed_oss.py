"""Seed-OSS: parameters between tags as Qwen3-coder has them, on one line with their values.

As ByteDance's chat template renders it.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.tagged_call import TaggedCall
from pyengine.grammar.parameters import ParameterTags

SEED_OSS = ChatFormat(
    "seed_oss",
    Delimited(
        Calls(
            TaggedCall(tags=ParameterTags(between=">", after="</parameter>")),
            begin="<seed:tool_call>\n",
            end="\n</seed:tool_call>",
            between="\n",
        ),
        Reasoning("<seed:think>", "</seed:think>", "\n"),
    ),
    stop_tokens=("<seed:eos>",),
)
