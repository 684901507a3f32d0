"""Which format a template writes; and templates that are given tools."""

import copy
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from pyengine.chat.formats import FORMATS, ContentDelta, detect
from pyengine.chat.messages import read_messages, template_messages
from pyengine.chat.template import ChatTemplate
from pyengine.chat.tools import Tool
from pyengine.settings.choices import ChatFormatName
from tests.chat.test_formats import parse, told
from tools.demo_model.template import CHAT_TEMPLATE, SPECIAL_TOKENS

LLAMA = "{{ '<|start_header_id|>' }}"
DEEPSEEK = "'<｜tool▁calls▁begin｜>'"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("<tool_call>", "hermes"),
        ("<tool_call></think>", "qwen3"),
        ("<tool_call>\n<function=x>", "qwen3_coder"),
        ("<tool_call>\n<function=x> {{ '</think>' }}", "qwen3_coder_thinking"),
        (LLAMA + "<{start_tag}={function_name}>{parameters} <function=x>{", "functionary"),
        (LLAMA + '"parameters"', "llama3_json"),
        (LLAMA + '"parameters" [func_name1(a=1)]', "llama_pythonic"),
        ("<|header_start|> [func_name1(a=1)]", "llama4_pythonic"),
        ("[TOOL_CALLS] [", "mistral"),
        ("[TOOL_CALLS][", "mistral_tekken"),
        ("[TOOL_CALLS]' + name + '[ARGS]", "mistral_args"),
        ("[TOOL_CALLS]' + name + '[ARGS][THINK]", "magistral"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi"),
        ("<|tool_calls_section_begin|> <think></think>", "kimi_thinking"),
        (DEEPSEEK + "```json", "deepseek_v3"),
        (DEEPSEEK + "```json </think>", "deepseek_r1"),
        (DEEPSEEK + "</think>", "deepseek_v31"),
        ("<|start|>assistant<|channel|>", "gpt_oss"),
        ("<|tool|>' + tools + '<|/tool|>", "phi4_mini"),
        ("functools[{", "phi4_functools"),
        ("<start_of_turn> ```tool_code", "gemma_tool_code"),
        ('<start_of_turn> {"name": , "parameters": }', "gemma_json"),
        ("<|turn>model {{ '<|tool_call>call:' + name }} <|channel>thought", "gemma4"),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key> {{ '</think>' }}", "glm45"),
        ("{%- set mark = '<minimax:tool_call>' -%}<invoke name= <think>", "minimax_m2"),
        ("<seed:tool_call>\n<function=x> </seed:think>", "seed_oss"),
        ("<|START_ACTION|> [func_name1", "command"),
        ("<|start_of_role|>{{ '<|tool_call|>' }}", "granite"),
        ("<|start_of_role|>{{ '<|tool_call|>' }} <think></think>", "granite_thinking"),
        ("<tool_calls><tool_call>' + name + '\n```json' </think>", "hunyuan"),
        ('<tool_calls>[{"name": "func_name1"}]</tool_calls> <think>', "hunyuan_json"),
        ("<|start_of_role|> <tool_call>", "hermes"),  # Granite 4
        ("[|assistant|] <tool_call> <think>", "qwen3"),  # EXAONE 4
        ("<|im_start|> <tool_call> /no_think <think>", "qwen3"),  # SmolLM3
        ("<|im_start|> <function_calls>", "olmo3"),
        ("<|im_start|> <function_calls> assistant\n<think>", "olmo3_thinking"),
        ("<|start_header_id|> <TOOLCALL> <think>", "nemotron"),
        ('<|header_start|> {"name": function name, "parameters": dictionary}', "llama4_json"),
        ("<start_of_turn>", None),
        (LLAMA, None),
        ("<|im_start|>", None),
    ],
)
def test_by_its_marks(source: str, name: str | None) -> None:
    found = detect(source)
    assert (found and found.name) == name


def test_every_format_is_found_by_its_name() -> None:
    assert all(form.name == name for name, form in FORMATS.items())
    assert {"none", *FORMATS} == set(get_args(ChatFormatName))


def test_the_demo_model() -> None:
    form = detect(CHAT_TEMPLATE)
    assert form is not None
    assert form.name == "hermes"
    assert form.needs_special_tokens(SPECIAL_TOKENS)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain in Paris?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
]


def test_the_demo_templates_tools_and_calls(demo_model: Path) -> None:
    template = ChatTemplate.from_folder(demo_model)
    assert template is not None
    called = copy.deepcopy(CALLED)
    called[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Paris"}'
    read = [message for message, _ in read_messages(called, template.message_keys)]
    prompt = template.render(template_messages(read, template)[0], [WEATHER])
    signature = json.dumps(WEATHER["function"], ensure_ascii=False)
    assert f"<tools>\n{signature}\n</tools>" in prompt
    assert "<tool_response>\nRain.\n</tool_response>" in prompt
    # What the template renders as an earlier answer, the parser reads as that answer.
    answer = prompt.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    form = detect(CHAT_TEMPLATE)
    assert form is not None
    tool = Tool.from_openai(WEATHER)
    content, _, calls = told(parse(form.parser([tool]), [answer]))
    assert content == "I look."
    assert [(name, json.loads(text)) for name, text in calls] == [
        ("get_weather", {"city": "Paris"})
    ]


def test_a_template_may_read_a_tool_as_it_likes() -> None:
    source = (
        "{% for tool in tools %}{{ tool.function.name }}:"
        "{% for name, each in tool.function.parameters.properties | items %}{{ name }}={{ each.type"
        " }}{% endfor %}{{ tool | tojson(indent=None) | length > 9 }}{% endfor %}"
        "{% for message in messages %}{% for call in message.tool_calls or [] %}"
        "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.render(CALLED, [WEATHER]) == 'get_weather:city=stringTrue{"city": "Paris"}'
    assert "tool_calls" in template.message_keys
    assert "name" not in ChatTemplate("{% for t in tools %}{{ t.name }}{% endfor %}").message_keys


def test_a_template_cannot_change_the_tools() -> None:
    tools = [json.loads(json.dumps(WEATHER))]
    with pytest.raises(Exception, match=r"refuses|cannot"):
        ChatTemplate("{{ tools[0].update(type='x') }}").render(CALLED, tools)
    assert tools == [WEATHER]


def test_text_stays_text_without_a_reasoning_part() -> None:
    form = FORMATS["hermes"]
    assert parse(form.parser(), ["a<", "b"]) == [ContentDelta("a<"), ContentDelta("b")]
