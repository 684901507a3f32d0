"""Each family's answers as its models write them, and near misses."""

import json
from typing import Any

import pytest

from pyengine.chat.formats import FORMATS, ContentDelta, ToolCallStart
from pyengine.chat.tools import Named, Tool
from pyengine.errors import InvalidRequestError
from tests.chat.test_formats import TOOLS, parse, told

W = "get_weather"
PARIS = {"city": "Paris"}
OSLO = {"city": "Oslo", "days": 2}
JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'

CASES: list[tuple[str, str, tuple[str, str, list[tuple[str, Any]]]]] = [
    ("hermes", f"<tool_call>\n{JSON}\n</tool_call>", ("", "", [(W, PARIS)])),
    ("hermes", f"<tool_call>{JSON}</tool_call>\n\nDone.", ("Done.", "", [(W, PARIS)])),
    (
        "hermes",
        f"Two.\n<tool_call>\n{JSON}\n</tool_call>\nAnd\n<tool_call>\n{JSON}\n</tool_call>\n",
        ("Two.And", "", [(W, PARIS)] * 2),
    ),
    (
        "hermes",
        '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>',
        ("", "", [(W, PARIS)]),
    ),
    (
        "hermes",
        '<tool_call>{"id": [1, {"a": "}"}], "name":"get_weather","arguments":'
        '"{\\"city\\": \\"Paris\\"}" } </tool_call>',
        ("", "", [(W, PARIS)]),
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', ("", "", [("now", {})])),
    ("hermes", "1 < 2 <tool_cal", ("1 < 2 <tool_cal", "", [])),
    (
        "hermes",
        '<tool_call>{"name": "rm"}</tool_call>',
        ('<tool_call>{"name": "rm"}</tool_call>', "", []),
    ),
    ("hermes", "<tool_call>\nno\n</tool_call>", ("<tool_call>\nno\n</tool_call>", "", [])),
    ("hermes", f"<tool_call><tool_call>{JSON}</tool_call>", ("<tool_call>", "", [(W, PARIS)])),
    ("hermes", "a\n\n", ("a\n\n", "", [])),
    ("hermes", "<think>x</think>y", ("<think>x</think>y", "", [])),
    (
        "qwen3",
        f"<think>\nI see.\n\n</think>\n\nWell.\n<tool_call>\n{JSON}\n</tool_call>",
        ("Well.", "I see.", [(W, PARIS)]),
    ),
    ("qwen3", "\n<think>\n\n</think>\n\n42\n", ("42\n", "", [])),
    ("qwen3", "<think>\nfor ever\n", ("", "for ever\n", [])),
    (
        "qwen3_coder",
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "</function>\n</tool_call>",
        ("I look.", "", [(W, PARIS)]),
    ),
    (
        "qwen3_coder",
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
        ("", "", [(W, OSLO)]),
    ),
    (
        "qwen3_coder",
        "<tool_call><function=set-light.v2><parameter=room>a\n\nb</parameter><parameter=on>True"
        '</parameter><parameter=tags>["x"]</parameter><parameter=level>loud</parameter>'
        "</function></tool_call>",
        (
            "",
            "",
            [("set-light.v2", {"room": "a\n\nb", "on": True, "tags": ["x"], "level": "loud"})],
        ),
    ),
    ("qwen3_coder", "<function=now>\n</function>", ("", "", [("now", {})])),
    ("qwen3_coder", "<function=rm>\n</function>", ("<function=rm>\n</function>", "", [])),
    (
        "functionary",
        'I look.<function=get_weather>{"city": "Paris"}</function><function=now>{}</function>',
        ("I look.", "", [(W, PARIS), ("now", {})]),
    ),
    ("functionary", "<function=rm>{}</function>", ("<function=rm>{}</function>", "", [])),
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        ("", "", [(W, PARIS)]),
    ),
    (
        "llama3_json",
        '<|python_tag|>{"name": "now", "parameters": {}}; '
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        ("", "", [("now", {}), (W, PARIS)]),
    ),
    ("llama3_json", '{"name": "Ada", "age": 36}', ('{"name": "Ada", "age": 36}', "", [])),
    ("llama3_json", '{"a": [1, {"b": 2}]} ok', ('{"a": [1, {"b": 2}]} ok', "", [])),
    ("llama3_json", "  {x", ("  {x", "", [])),
    (
        "llama_pythonic",
        "[get_weather(city='Paris'), get_weather(city=\"Oslo\", days=2,),]",
        ("", "", [(W, PARIS), (W, OSLO)]),
    ),
    (
        "llama_pythonic",
        "[set-light.v2(room=None, on=True, level=.5e1, tags=['a\\'\\x41\\n', \"\\u00e9\"], "
        "more={'deep': (True, False)})]",
        (
            "",
            "",
            [
                (
                    "set-light.v2",
                    {
                        "room": None,
                        "on": True,
                        "level": 5.0,
                        "tags": ["a'A\n", "é"],
                        "more": {"deep": [True, False]},
                    },
                )
            ],
        ),
    ),
    ("llama_pythonic", "[1, 2]", ("[1, 2]", "", [])),
    ("llama_pythonic", "[link](http://x)", ("[link](http://x)", "", [])),
    ("llama_pythonic", "See [now()]", ("See [now()]", "", [])),
    (
        "llama4_pythonic",
        "<|python_start|>[now()]<|python_end|>",
        ("", "", [("now", {})]),
    ),
    ("llama4_pythonic", "[now()]", ("", "", [("now", {})])),
    (
        "mistral",
        f'[TOOL_CALLS][{JSON[:-1]}, "id": "abcdefghi"}}]',
        ("", "", [(W, PARIS)]),
    ),
    ("mistral_tekken", f"Hm.[TOOL_CALLS] [{JSON}, {JSON}]", ("Hm.", "", [(W, PARIS)] * 2)),
    (
        "mistral_args",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now{}',
        ("", "", [(W, PARIS), ("now", {})]),
    ),
    ("magistral", "[THINK]so[/THINK]Yes", ("Yes", "so", [])),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        "now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", "", [(W, PARIS), ("now", {})]),
    ),
    (
        "deepseek_v31",
        'Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("Ok", "", [(W, PARIS)]),
    ),
    (
        "kimi_thinking",
        "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        ("I look.", "Hm.", [(W, PARIS), ("now", {})]),
    ),
    (
        "gpt_oss",
        "<|channel|>analysis<|message|>Need it.\n<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        ("", "Need it.\n", [(W, PARIS)]),
    ),
    (
        "gpt_oss",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}',
        ("", "", [(W, PARIS)]),
    ),
    (
        "gpt_oss",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
        "<|message|>It rains.<|return|>",
        ("I look.It rains.", "", []),
    ),
    ("gpt_oss", "<|channel|>commentary to=browser.open<|message|>{}", ("{}", "", [])),
    ("gpt_oss", "plain text", ("plain text", "", [])),
    (
        "glm45",
        "\n<think>It rains?</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>",
        ("I look.", "It rains?", [(W, OSLO)]),
    ),
    (
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        ("", "", [(W, PARIS), ("now", {})]),
    ),
    (
        "glm45",
        "<tool_call>set-light.v2\n<arg_key>room</arg_key>\n<arg_value>\na\n</arg_value>\n"
        '<arg_key>tags</arg_key>\n<arg_value>["</arg_value>"]</arg_value>\n</tool_call>',
        ("", "", [("set-light.v2", {"room": "\na\n", "tags": ["</arg_value>"]})]),
    ),
    ("glm45", "\nHello\n", ("Hello\n", "", [])),
    ("glm45", "<tool_call>rm\n</tool_call>", ("<tool_call>rm\n</tool_call>", "", [])),
    (
        "minimax_m2",
        '<think>\nTwo.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>",
        ("I look.", "Two.", [(W, PARIS), ("now", {})]),
    ),
    (
        "seed_oss",
        "<seed:think>So.</seed:think>\n\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        "</seed:tool_call>",
        ("", "So.", [(W, OSLO)]),
    ),
    (
        "command",
        "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    "
        '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        ("", "I look.", [(W, PARIS), ("now", {})]),
    ),
    ("command", "<|START_RESPONSE|>It rains.<|END_RESPONSE|>", ("It rains.", "", [])),
    ("command", "It rains.<|END_RESPONSE|>", ("It rains.", "", [])),
    (
        "gemma4",
        "<|channel>thought\nI look.\n<channel|>Well."
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        ("Well.", "I look.", [(W, PARIS), ("now", {})]),
    ),
    (
        "gemma4",
        "<|tool_call>call:set-light.v2{level:1.5,more:{deep:[true,False]},"
        'room:<|"|>a "b", {c}\n<|"|>,tags:[<|"|>x<|"|>,<|"|><|"|>]}<tool_call|>',
        (
            "",
            "",
            [
                (
                    "set-light.v2",
                    {
                        "level": 1.5,
                        "more": {"deep": [True, False]},
                        "room": 'a "b", {c}\n',
                        "tags": ["x", ""],
                    },
                )
            ],
        ),
    ),
    (
        "gemma4",
        '<|tool_call>call: get_weather {"city": "Oslo", <|"|>days<|"|>: 2}<tool_call|>',
        ("", "", [(W, OSLO)]),
    ),
    ("gemma4", "<|tool_call>call:get_weather{city:Paris}<tool_call|>", ("", "", [(W, PARIS)])),
    ("gemma4", "call:get_weather{city:Paris}", ("call:get_weather{city:Paris}", "", [])),
    ("gemma4", "<|tool_call>call:rm{}<tool_call|>", ("<|tool_call>call:rm{}<tool_call|>", "", [])),
    ("gemma4", "<|channel>thought\n<channel|>It rains.", ("It rains.", "", [])),
    ("gemma4", "<|channel>thought\nfor ever\n", ("", "for ever\n", [])),
    ("granite", f"<|tool_call|>[{JSON}, {JSON}]", ("", "", [(W, PARIS)] * 2)),
    (
        "granite_thinking",
        "<think>So.</think><response>It rains.</response>",
        ("It rains.", "So.", []),
    ),
    (
        "hunyuan",
        "<think>\nSo.\n</think>\n<answer>\nI look.<tool_calls><tool_call>get_weather\n```json\n"
        '{"city": "Paris"}\n```</tool_call>\n<tool_call>now\n```json\n{}\n```</tool_call>'
        "</tool_calls>\n</answer>",
        ("I look.", "So.", [(W, PARIS), ("now", {})]),
    ),
    ("hunyuan", "<think>\n\n</think>\n<answer>\nRain.\n</answer>", ("Rain.", "", [])),
    (
        "hunyuan_json",
        f"<think>\nSo.\n</think>\n<answer><tool_calls>[{JSON}, {JSON}]</tool_calls></answer>",
        ("", "So.", [(W, PARIS)] * 2),
    ),
    ("hunyuan_json", "<tool_calls>[1]</tool_calls>", ("<tool_calls>[1]</tool_calls>", "", [])),
    (
        "olmo3",
        '<function_calls>\nget_weather(city="Paris")\nnow()\n</function_calls>',
        ("", "", [(W, PARIS), ("now", {})]),
    ),
    (
        "nemotron",
        f"<think>\n\n</think>\n\n<TOOLCALL>[{JSON}]</TOOLCALL>",
        ("", "", [(W, PARIS)]),
    ),
    (
        "llama4_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        ("", "", [(W, PARIS)]),
    ),
    ("phi4_mini", f"<|tool_call|>[{JSON}]<|/tool_call|>", ("", "", [(W, PARIS)])),
    ("phi4_functools", f"functools[{JSON}, {JSON}]", ("", "", [(W, PARIS)] * 2)),
    ("phi4_functools", "Use functools.", ("Use functools.", "", [])),
    (
        "gemma_tool_code",
        '```tool_code\nget_weather(city="Paris")\nnow()\n```',
        ("", "", [(W, PARIS), ("now", {})]),
    ),
    ("gemma_tool_code", "```python\nnow()\n```", ("```python\nnow()\n```", "", [])),
    (
        "gemma_json",
        '```json\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n```',
        ("", "", [(W, PARIS)]),
    ),
    ("gemma_json", '```json\n{"a": 1}\n```', ('```json\n{"a": 1}\n```', "", [])),
]


@pytest.mark.parametrize("name, text, expected", CASES)  # noqa: PT006
def test_as_models_write(name: str, text: str, expected: Any) -> None:
    for pieces in ([text], list(text), [text[i : i + 7] for i in range(0, len(text), 7)]):
        content, reasoning, calls = told(parse(FORMATS[name].parser(TOOLS), pieces))
        assert (content, reasoning, [(n, json.loads(a)) for n, a in calls]) == expected


def test_reasoning_that_the_prompt_opened() -> None:
    form = FORMATS["deepseek_r1"]
    assert form.opens_reasoning("<｜Assistant｜><think>\n")
    assert not form.opens_reasoning("<｜Assistant｜>")
    assert not form.opens_reasoning("<think>x</think>")
    parser = form.parser(reasoning_open=True)
    assert told(parse(parser, ["hm", "m\n</thi", "nk>\n\nYes"]))[:2] == ("Yes", "hmm")
    parser = form.parser(reasoning_open=True)
    assert told(parse(parser, ["<think>\nhm</think>Yes"]))[:2] == ("Yes", "hm")
    assert FORMATS["gpt_oss"].opens_reasoning("<|start|>assistant<|channel|>analysis<|message|>")
    assert not FORMATS["hermes"].opens_reasoning("<think>")


def test_a_call_that_is_cut_short_is_begun() -> None:
    parser = FORMATS["hermes"].parser(TOOLS)
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
    content, _, calls = told(parse(parser, [text]))
    assert content == ""
    assert calls == [("get_weather", '{"city": "Par')]


def test_without_tools_nothing_is_a_call() -> None:
    text = f"<tool_call>\n{JSON}\n</tool_call>"
    assert parse(FORMATS["hermes"].parser([]), [text]) == [ContentDelta(text)]


def test_a_flood_of_whitespace_is_let_through() -> None:
    parser = FORMATS["qwen3"].parser(TOOLS)
    events = parse(parser, ["\n"] * 5000 + ["x"])
    assert told(events)[0] == "\n" * 5000 + "x"


def test_a_kimi_writes_the_ids_of_its_calls() -> None:
    call = "<|tool_call_begin|>functions.now:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    written = "".join(call.format(number) for number in (3, 4, 4))
    text = f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"
    events = parse(FORMATS["kimi"].parser(TOOLS), list(text))
    ids = [event.id for event in events if isinstance(event, ToolCallStart)]
    assert ids[:2] == ["functions.now:3", "functions.now:4"]
    assert ids[2].startswith("call_")  # a client must tell them apart


def test_ids_are_as_the_family_wants_them() -> None:
    starts = [
        event
        for name in ("mistral", "hermes")
        for event in parse(
            FORMATS[name].parser(TOOLS), [f"[TOOL_CALLS] [{JSON}]<tool_call>{JSON}</tool_call>"]
        )
        if isinstance(event, ToolCallStart)
    ]
    assert len(starts[0].id) == 9
    assert starts[0].id.isalnum()
    assert starts[1].id.startswith("call_")


def test_special_tokens_that_are_marks_are_needed() -> None:
    assert FORMATS["hermes"].needs_special_tokens(["<|im_end|>", "<tool_call>"])
    assert not FORMATS["hermes"].needs_special_tokens(["<|im_end|>", "<|endoftext|>"])
    assert FORMATS["mistral"].needs_special_tokens(["[TOOL_CALLS]"])
    assert FORMATS["gpt_oss"].needs_special_tokens(["<|message|>"])


def test_strict_schema_that_cannot_be_enforced_is_refused() -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^a+$"}}}
    strict = Tool("f", parameters=schema, strict=True)
    with pytest.raises(InvalidRequestError, match="'pattern' of parameter 'code'"):
        FORMATS["qwen3_coder"].grammar([strict], "auto")
    for name in ("hermes", "llama_pythonic"):
        assert FORMATS[name].grammar([strict], "auto") is not None
    assert FORMATS["qwen3_coder"].grammar([Tool("f", parameters=schema)], "auto") is not None
    pairs = Tool("f", parameters={"type": "object", "dependentRequired": {}}, strict=True)
    with pytest.raises(InvalidRequestError, match="dependentRequired"):
        FORMATS["qwen3_coder"].grammar([pairs], "auto")


def test_tools_and_choices_that_do_not_fit() -> None:
    form = FORMATS["hermes"]
    with pytest.raises(InvalidRequestError, match="two tools named 'now'"):
        form.grammar([Tool("now"), Tool("now")], "auto")
    with pytest.raises(InvalidRequestError, match="'tool_choice' names 'x'"):
        form.grammar(TOOLS, Named("x"))
    with pytest.raises(InvalidRequestError, match="no tools"):
        form.grammar([], "required")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"type": "retrieval"}, r"'tools\[0\]' must be a function"),
        ({"type": "function", "function": {"name": "a b"}}, "name"),
        ({"type": "function", "function": {"name": "a", "parameters": []}}, "parameters"),
        ({"type": "function", "function": {"name": "a", "strict": 1}}, "strict"),
    ],
)
def test_malformed_tools(given: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        Tool.from_openai(given)


def test_a_tool_of_a_request() -> None:
    made = Tool.from_openai({"type": "function", "function": {"name": "f", "strict": True}})
    assert made == Tool("f", strict=True)
    assert made.schema["additionalProperties"] is False
    assert Tool("f", parameters={"properties": {}}).schema["type"] == "object"


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("hermes", f"<tool_call>\n{JSON}\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
        ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}'),
        ("llama3_json", '<|python_tag|>{"name": "now", "parameters": {}}'),
        ("llama_pythonic", "[get_weather(city='Paris')]"),
        ("llama4_pythonic", "<|python_start|>[now()]<|python_end|>"),
        ("mistral", f"[TOOL_CALLS] [{JSON}]"),
        ("mistral_args", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"),
        ("phi4_mini", f"<|tool_call|>[{JSON}]<|/tool_call|>"),
        ("gemma_tool_code", "```tool_code\nnow()\n```"),
        ("gemma_json", '```json\n{"name": "now", "parameters": {}}\n```'),
        (
            "gpt_oss",
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
        ),
        ("gpt_oss", " to=functions.now<|channel|>commentary json<|message|>{}"),
        ("gpt_oss", "<|channel|>final<|message|>"),
    ],
)
def test_nothing_of_a_call_cut_short_is_text(name: str, whole: str) -> None:
    form = FORMATS[name]
    marks = sorted(form.layout.markers, key=len)
    # Marks are one token each: only behind them, and after the first, can an answer end.
    first = max((len(mark) for mark in marks if whole.startswith(mark)), default=4)
    inside = {
        at
        for mark in marks
        for begin in range(len(whole))
        if whole.startswith(mark, begin)
        for at in range(begin + 1, begin + len(mark))
    }
    for end in set(range(first, len(whole) + 1)) - inside:
        content, _, calls = told(parse(form.parser(TOOLS), [whole[:end]]))
        assert content.strip() == "", whole[:end]
        assert len(calls) <= 1


@pytest.mark.parametrize("end", ["<tool_call>", "<tool_call>\n{", "</tool_c"])
def test_nothing_after_a_call_is_text_if_it_is_cut_short(end: str) -> None:
    text = f"<tool_call>\n{JSON}\n</tool_call>\n{end}"
    content, _, calls = told(parse(FORMATS["hermes"].parser(TOOLS), [text]))
    assert (content, len(calls)) == ("", 1)


@pytest.mark.parametrize("text", ["to=5 or so", "to", "<", "a <tool_"])
def test_text_at_the_end_is_kept(text: str) -> None:
    for name in ("gpt_oss", "hermes"):
        assert told(parse(FORMATS[name].parser(TOOLS), [text]))[0] == text


@pytest.mark.parametrize("name", ["llama3_json", "gemma_json"])
def test_content_of_a_grammar_is_no_bare_call(name: str) -> None:
    text = '{"name": "get_weather", "population": 3}'
    form = FORMATS[name]
    assert told(parse(form.parser(TOOLS, content=True), [text])) == (text, "", [])
    assert told(parse(form.parser(TOOLS), [text]))[2] == [("get_weather", "{}")]
    marked = {"llama3_json": "<|python_tag|>", "gemma_json": "```json\n"}[name]
    call = marked + '{"name": "now", "parameters": {}}'
    assert told(parse(form.parser(TOOLS, content=True), [call]))[2] == [("now", "{}")]


def test_unenforced_parts_of_a_schema_are_warned_of() -> None:
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^a+$", "description": "a code", "minimum": 3},
            "count": {"type": "integer", "minimum": 3},
            "either": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        },
        "minProperties": 1,
    }
    tools = [Tool("f", parameters=schema), Tool("now")]
    whole = "tool 'f': 'minProperties' of the parameters is not enforced"
    assert FORMATS["qwen3_coder"].warnings(tools) == (
        whole,
        "tool 'f': 'pattern' of parameter 'code' is not enforced",
        "tool 'f': 'minLength' of parameter 'either' is not enforced",
    )
    assert FORMATS["llama_pythonic"].warnings(tools) == (whole,)
    assert FORMATS["hermes"].warnings(tools) == ()
    assert FORMATS["gpt_oss"].warnings(tools) == ()
