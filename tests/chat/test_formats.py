"""Chat formats: what the grammar can write, the parser reads back, however it is cut."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyengine.chat.formats import (
    FORMATS,
    ChatFormat,
    ContentDelta,
    Event,
    Parser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pyengine.chat.tools import Named, Tool, ToolChoice
from pyengine.grammar import json_schema
from tests.chat.walk import HOSTILE, LETTERS, Truth, Walker

TEXT = {"type": "string"}
TOOLS = [
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": TEXT,
                "days": {"type": "integer"},
                "unit": {"enum": ["°C", "F"]},
            },
            "required": ["city"],
        },
        strict=True,
    ),
    Tool(
        "set-light.v2",
        parameters={
            "type": "object",
            "properties": {
                "room": {"anyOf": [TEXT, {"type": "null"}]},
                "on": {"type": "boolean"},
                "level": {"type": "number"},
                "tags": {"type": "array", "items": TEXT},
                "more": {
                    "type": "object",
                    "properties": {"deep": {"type": "array", "items": {"type": "boolean"}}},
                },
            },
        },
    ),
    Tool("now"),
]
IN_ANY_ORDER = [replace(tool, key_order="any") for tool in TOOLS]
THINKING = {
    "command", "deepseek_r1", "deepseek_v31", "gemma4", "glm45", "gpt_oss", "granite_thinking",
    "hunyuan", "hunyuan_json", "kimi_thinking", "magistral", "minimax_m2", "nemotron",
    "olmo3_thinking", "qwen3", "qwen3_coder_thinking", "seed_oss",
}  # fmt: skip
FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
BUSY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def parse(parser: Parser, pieces: list[str]) -> list[Event]:
    """All events; text and reasoning stand where they say, in order."""
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish()
    written, at = "".join(pieces), 0
    for event in events:
        if isinstance(event, ContentDelta | ReasoningDelta):
            begin = event.end - len(event.text)
            assert begin >= at
            assert written[begin : event.end] == event.text
            at = event.end
    return events


def told(events: list[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and calls with their arguments' text; checks the order of events."""
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    ids = set()
    for event in events:
        match event:
            case ContentDelta(text):
                assert text
                content += text
            case ReasoningDelta(text):
                assert text
                reasoning += text
            case ToolCallStart(index, name_of_call, name):
                assert index == len(calls)
                ids.add(name_of_call)
                calls.append((name, ""))
            case ToolCallArguments(index, fragment):
                assert index == len(calls) - 1
                assert fragment
                calls[-1] = (calls[-1][0], calls[-1][1] + fragment)
    assert len(ids) == len(calls)
    return content, reasoning, calls


def cut(data: st.DataObject, text: str) -> list[str]:
    """The text in random pieces."""
    if data.draw(st.booleans()):
        return list(text)
    at = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def meant(form: ChatFormat, truth: Truth) -> tuple[str, str, list[tuple[str, Any]]]:
    """What the walker said, without the newlines at borders with marks."""
    content, reasoning = "".join(truth.content), "".join(truth.reasoning)
    if form.name != "gpt_oss":
        reasoning = reasoning.strip("\n")
        if truth.reasoning or form.name == "glm45":  # which writes a newline first
            content = content.lstrip("\n")
        if truth.calls:
            content = content.rstrip("\n")
    return content, reasoning, truth.calls


@FORMAT
@BUSY
@given(data=st.data())
def test_written_calls_are_read_back(form: ChatFormat, data: st.DataObject) -> None:
    choice: ToolChoice = data.draw(
        st.sampled_from(["auto", "auto", "required", Named("now"), "none"])
    )
    parallel, reasoning, is_open = (data.draw(st.booleans()) for _ in range(3))
    is_open = is_open and form.name in THINKING
    tools = data.draw(st.sampled_from([TOOLS, IN_ANY_ORDER]))
    grammar = form.grammar(
        tools, choice, parallel=parallel, reasoning=reasoning, reasoning_open=is_open
    )
    assert grammar is not None
    walker = Walker(data.draw, LETTERS + HOSTILE)
    text = walker.text(grammar)
    content, thoughts, calls = meant(form, walker.truth)
    tools = [] if choice == "none" else TOOLS
    whole = told(parse(form.parser(tools, reasoning_open=is_open), [text]))
    said = whole[0]
    if form.name in ("command", "hunyuan", "hunyuan_json"):
        # whose text may stand between marks, or not
        said, content = said.strip("\n"), content.strip("\n")
    assert (said, whole[1]) == (content, thoughts)
    assert [(name, json.loads(arguments)) for name, arguments in whole[2]] == calls
    assert told(parse(form.parser(tools, reasoning_open=is_open), cut(data, text))) == whole
    assert len(calls) <= (99 if parallel and form.name != "gpt_oss" else 1)
    match choice:
        case "required":
            assert calls
            assert not content
        case Named(name):
            assert [call[0] for call in calls] == [name]
        case "none":
            assert not calls


@FORMAT
@BUSY
@given(data=st.data())
def test_whatever_comes_is_cut_anywhere(form: ChatFormat, data: st.DataObject) -> None:
    walker = Walker(data.draw, LETTERS + HOSTILE)
    parts = data.draw(st.lists(st.sampled_from(["free", "call"]), max_size=4))
    grammar = form.grammar(TOOLS, "required", reasoning=False)
    assert grammar is not None
    text = "".join(walker.free([]) if part == "free" else walker.text(grammar) for part in parts)
    text = text[: data.draw(st.integers(0, len(text)))]
    whole = told(parse(form.parser(TOOLS), [text]))
    assert told(parse(form.parser(TOOLS), cut(data, text))) == whole
    assert {name for name, _ in whole[2]} <= {tool.name for tool in TOOLS}


@FORMAT
@BUSY
@given(data=st.data())
def test_content_of_a_grammar_follows_the_reasoning(form: ChatFormat, data: st.DataObject) -> None:
    schema = {"type": "object", "properties": {"answer": TEXT}, "required": ["answer"]}
    choice: ToolChoice = data.draw(st.sampled_from(["none", "auto"]))
    grammar = form.grammar(TOOLS, choice, content=json_schema(schema))
    assert grammar is not None
    walker = Walker(data.draw, LETTERS)
    text = walker.text(grammar)
    tools = TOOLS if choice == "auto" else []
    content, reasoning, calls = told(parse(form.parser(tools), cut(data, text)))
    assert (content, reasoning) == meant(form, walker.truth)[:2]
    assert len(calls) == len(walker.truth.calls)
    assert bool(calls) != bool(content)
    if content:
        assert json.loads(content).keys() == {"answer"}


@FORMAT
def test_no_tools_and_no_content_is_no_grammar(form: ChatFormat) -> None:
    assert form.grammar([], "auto") is None
    assert form.grammar([], "none", reasoning_open=True) is None


@FORMAT
def test_text_without_marks_passes_at_once(form: ChatFormat) -> None:
    parser = form.parser(TOOLS)
    before = "<|channel|>final<|message|>" if form.name == "gpt_oss" else ""
    parser.feed(before)
    for piece in ("Hello", " world", ", how are", " you?"):
        assert parser.feed(piece) == [ContentDelta(piece)]
    assert parser.finish() == []


@FORMAT
def test_a_name_comes_first_and_arguments_as_they_come(form: ChatFormat) -> None:
    grammar = form.grammar(TOOLS[:1], "required", parallel=False, reasoning=False)
    assert grammar is not None
    parser = form.parser(TOOLS)
    text = "".join(_longest(grammar))
    head, tail = text.split("Reykjavik")
    events = parser.feed(head + "Reyk")
    assert isinstance(events[0], ToolCallStart)
    assert [type(event) for event in events] == [ToolCallStart, ToolCallArguments]
    assert parser.feed("javik") == [ToolCallArguments(0, "javik")]
    rest = parser.feed(tail) + parser.finish()
    _, _, calls = told([*events, ToolCallArguments(0, "javik"), *rest])
    assert calls[0][0] == "get_weather"
    assert json.loads(calls[0][1])["city"] == "Reykjavik"


def _longest(grammar: Any) -> list[str]:
    """One call of get_weather by hand: fixed text of the grammar, and one city."""
    match grammar.kind:
        case "text":
            return [grammar.fields["text"]]
        case "sequence":
            return [text for part in grammar.fields["parts"] for text in _longest(part)]
        case "any_of":
            return _longest(grammar.fields["options"][0])
        case "json_schema":
            schema = grammar.fields["schema"]
            return ['"Reykjavik"' if schema == TEXT else '{"city": "Reykjavik"}']
        case "free_text":
            return ["Reykjavik"]
    return []
