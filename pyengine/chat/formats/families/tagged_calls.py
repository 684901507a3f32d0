"""Families that write every parameter of a call between tags."""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.tagged_call import TaggedCall
from pyengine.grammar.parameters import ParameterTags

# GLM-4.5 to 4.7: the name of a function, then each argument's key and value between tags. As Z.ai's
# chat templates render it. A newline comes before the reasoning, and before the text of an answer
# without it; version 4.7 leaves out those between tags, which the reader takes, too.
_GLM_TAGS = ParameterTags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")

GLM45 = ChatFormat(
    "glm45",
    Delimited(
        Calls(
            TaggedCall(begin="", named="\n", tags=_GLM_TAGS, end="</tool_call>"),
            begin="<tool_call>",
            between="\n",
        ),
        Reasoning(after="\n", before="\n"),
    ),
    stop_tokens=("<|user|>", "<|observation|>"),
)

# MiniMax-M2: calls in a block, each parameter in a tag with its name. As MiniMax's chat template
# renders it, which also opens the reasoning in the prompt.
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

# Qwen3-Coder: every parameter between tags of its own. The model often leaves out ``<tool_call>``;
# ``<function=`` alone begins a call too.
_CODER_CALLS = Calls(
    TaggedCall(),
    begin="<tool_call>\n",
    end="\n</tool_call>",
    between="\n",
    others=("<function=",),
)

QWEN3_CODER = ChatFormat("qwen3_coder", Delimited(_CODER_CALLS))
QWEN3_CODER_THINKING = ChatFormat("qwen3_coder_thinking", Delimited(_CODER_CALLS, Reasoning()))

# Seed-OSS: parameters between tags as Qwen3-coder has them, on one line with their values. As
# ByteDance's chat template renders it.
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
