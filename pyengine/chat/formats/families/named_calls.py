"""Families that write a call as a name and its arguments in JSON; some have a list, too."""

from pyengine.chat.formats.bodies import JsonCall, NamedJson
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.sink import short_call_id

# DeepSeek V3, R1 and V3.1: calls between markers of their own, one for every purpose. As their chat
# templates render them. V3 and R1 put a fence around the arguments, V3.1 does not; the template of
# V3.1 closes the reasoning in the prompt unless it was asked for.
_DEEPSEEK_FENCED = Calls(
    NamedJson(before="function<｜tool▁sep｜>", between="\n```json\n", after="\n```"),
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    between="\n",
    open=("<｜tool▁calls▁begin｜>",),
    close=("<｜tool▁calls▁end｜>",),
)
_DEEPSEEK_PLAIN = Calls(
    NamedJson(between="<｜tool▁sep｜>"),
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    open=("<｜tool▁calls▁begin｜>",),
    close=("<｜tool▁calls▁end｜>",),
)

DEEPSEEK_V3 = ChatFormat("deepseek_v3", Delimited(_DEEPSEEK_FENCED))
DEEPSEEK_R1 = ChatFormat("deepseek_r1", Delimited(_DEEPSEEK_FENCED, Reasoning()))
DEEPSEEK_V31 = ChatFormat("deepseek_v31", Delimited(_DEEPSEEK_PLAIN, Reasoning(after="")))

# Functionary 3.1: ``<function=name>{...}</function>`` for each call. As MeetKai's template, and
# Meta's prompt for custom tools of Llama 3.1, describe it.
FUNCTIONARY = ChatFormat(
    "functionary",
    Delimited(Calls(NamedJson(between=">"), begin="<function=", end="</function>")),
    stop_tokens=("<|eom_id|>", "<|eot_id|>"),
)

# Hunyuan: calls in one pair of tags, each a name and fenced JSON or all one list of JSON objects.
# As the chat templates of Tencent's models render calls, and as Hunyuan-A13B's model card asks for
# them in a prompt of its own. Models that think write their answer between tags, too.
_HUNYUAN_FENCED = Calls(
    NamedJson(between="\n```json\n", after="\n```"),
    begin="<tool_call>",
    end="</tool_call>",
    between="\n",
    open=("<tool_calls>",),
    close=("</tool_calls>",),
)
_HUNYUAN_LIST = Calls(
    JsonCall(), between=", ", open=("<tool_calls>", "["), close=("]", "</tool_calls>")
)
_HUNYUAN_REASONING, _HUNYUAN_AROUND = Reasoning(after="\n"), ("<answer>", "</answer>")

HUNYUAN = ChatFormat("hunyuan", Delimited(_HUNYUAN_FENCED, _HUNYUAN_REASONING, _HUNYUAN_AROUND))
HUNYUAN_JSON = ChatFormat(
    "hunyuan_json", Delimited(_HUNYUAN_LIST, _HUNYUAN_REASONING, _HUNYUAN_AROUND)
)

# Kimi K2, K2 Thinking, K2.5 and Kimi Linear: calls in a section of their own, with their ids. As
# their chat templates render them (Moonshot AI, "Tool Use of Kimi-K2"): an id is
# ``functions.NAME:NUMBER``, and numbers count the calls of the conversation.
_KIMI_CALLS = Calls(
    NamedJson(before="functions.", between="<|tool_call_argument_begin|>", numbered=True),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    open=("<|tool_calls_section_begin|>",),
    close=("<|tool_calls_section_end|>",),
)

KIMI = ChatFormat("kimi", Delimited(_KIMI_CALLS))
KIMI_THINKING = ChatFormat("kimi_thinking", Delimited(_KIMI_CALLS, Reasoning(after="")))

# Mistral: ``[TOOL_CALLS]`` and a list of JSON objects; since version 11 a name and its arguments.
# As mistral-common's instruct tokenizers write them: up to version 3 with a space before the list,
# from 7 (Tekken) without; from 11 ``[TOOL_CALLS]name[ARGS]{...}`` for each call, at first without
# ``[ARGS]``. Magistral thinks between ``[THINK]`` and ``[/THINK]``.
_MISTRAL_THINK = Reasoning("[THINK]", "[/THINK]", "")


def _list(before: str) -> Calls:
    return Calls(JsonCall(), between=", ", open=("[TOOL_CALLS]", before + "["), close=("]",))


_MISTRAL_NAMED = Calls(NamedJson(between="[ARGS]", optional=True), begin="[TOOL_CALLS]")

MISTRAL = ChatFormat("mistral", Delimited(_list(" ")), make_id=short_call_id)
MISTRAL_TEKKEN = ChatFormat("mistral_tekken", Delimited(_list("")), make_id=short_call_id)
MISTRAL_ARGS = ChatFormat("mistral_args", Delimited(_MISTRAL_NAMED), make_id=short_call_id)
MAGISTRAL = ChatFormat(
    "magistral", Delimited(_MISTRAL_NAMED, _MISTRAL_THINK), make_id=short_call_id
)
