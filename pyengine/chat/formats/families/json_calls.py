"""Families that write a call as a JSON object, between marks of their own."""

from pyengine.chat.formats.bodies import JsonCall
from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat

# Command R7B and Command A: a list of actions, or a response, both between tokens of their own. As
# Cohere's chat templates render it. Command R and R+ describe calls in words; they have no format.
COMMAND = ChatFormat(
    "command",
    Delimited(
        Calls(
            JsonCall("parameters", name="tool_name", number="tool_call_id"),
            between=",\n    ",
            open=("<|START_ACTION|>", "[\n    "),
            close=("\n]", "<|END_ACTION|>"),
        ),
        Reasoning("<|START_THINKING|>", "<|END_THINKING|>", ""),
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    stop_tokens=("<|END_OF_TURN_TOKEN|>",),
)

# Granite 3: a list of JSON objects behind a token; Granite 3.3 may think first. As IBM's chat
# templates render it. Granite 4 writes as Hermes does.
_GRANITE_CALLS = Calls(JsonCall(), between=", ", open=("<|tool_call|>", "["), close=("]",))

GRANITE = ChatFormat("granite", Delimited(_GRANITE_CALLS))
GRANITE_THINKING = ChatFormat(
    "granite_thinking",
    Delimited(_GRANITE_CALLS, Reasoning(after=""), around=("<response>", "</response>")),
)

# Hermes and Qwen: JSON between ``<tool_call>`` tags; Qwen 3 thinks first. As the chat templates of
# NousResearch's Hermes 2 Pro, Qwen 2.5 and Qwen 3 render it; the demo model writes so too.
_HERMES_CALLS = Calls(JsonCall(), begin="<tool_call>\n", end="\n</tool_call>", between="\n")

HERMES = ChatFormat("hermes", Delimited(_HERMES_CALLS))
QWEN3 = ChatFormat("qwen3", Delimited(_HERMES_CALLS, Reasoning()))

# Llama-Nemotron: a list of JSON objects between tags, after reasoning. As NVIDIA's chat templates
# render it.
NEMOTRON = ChatFormat(
    "nemotron",
    Delimited(
        Calls(JsonCall(), between=", ", open=("<TOOLCALL>", "["), close=("]", "</TOOLCALL>")),
        Reasoning(),
    ),
)

# Phi-4-mini: a list of JSON objects, between tokens of its own or behind ``functools``. As
# Microsoft's model card shows the first, and prompts written for other servers ask for the second.
PHI4_MINI = ChatFormat(
    "phi4_mini",
    Delimited(
        Calls(
            JsonCall(),
            between=", ",
            open=("<|tool_call|>", "["),
            close=("]", "<|/tool_call|>"),
        )
    ),
    stop_tokens=("<|end|>",),
)
PHI4_FUNCTOOLS = ChatFormat(
    "phi4_functools",
    Delimited(Calls(JsonCall(), between=", ", open=("functools[",), close=("]",))),
    stop_tokens=("<|end|>",),
)
