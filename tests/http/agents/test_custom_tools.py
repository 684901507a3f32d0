"""Custom tools: their grammars are enforced, and their texts come out as the model wrote them."""

import json
import re
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine import AsyncEngine
from pyengine.chat.template import ChatTemplate
from pyengine.grammar import json_schema
from pyengine.grammar.lark_regex import NotRegularError, regex_of_lark
from pyengine.http.limits import Limits
from pyengine.http.openai.custom_tools import InputText, arguments_of, custom_tool
from pyengine.http.openai.schema.tools import TextGrammar
from pyengine.http.serving.server import HttpServer
from tests.answers import begins, matches
from tests.http.agents.patches import PATCH, TEXT
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import TEMPLATE

GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}}
CUSTOM: Any = {"name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}
TOOL: Any = {"type": "custom", "custom": CUSTOM}
CALL = f'<tool_call>\n{{"name": "apply_patch", "arguments": {arguments_of(TEXT)}}}\n</tool_call>'
Q: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=CALL, max_context=4096)


def test_the_grammar_of_patches_holds_within_a_call() -> None:
    warn: dict[str, None] = {}
    tool = custom_tool("apply_patch", None, TextGrammar("lark", PATCH), "tools[0]", warn)
    assert not warn
    grammar = json_schema(tool.schema)
    assert matches(grammar, json.dumps({"input": TEXT}, ensure_ascii=False))
    for wrong in (TEXT[1:], TEXT.replace("+print", "print"), TEXT.replace("Add", "Ad")):
        assert not matches(grammar, json.dumps({"input": wrong}, ensure_ascii=False))
    assert begins(grammar, '{"input": "*** Begin Patch\\n*** ')
    assert not begins(grammar, '{"input": "*** Begin Patch\\nx')


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        ('start: "a"+ B?\nB: "b" | /[0-9]+/', ["a", "aab", "a12"], ["b", "abb", ""]),
        (
            'start: [sign] INT ("," INT)~2..3\nsign: "-"\n%import common.INT',
            ["-1,2,3"],
            ["1", "1,2"],
        ),
        ("%import common (WORD, WS_INLINE)\nstart: WORD (WS_INLINE WORD)*", ["a bc"], ["a ", "a1"]),
        ('start: /a.b/s | "q\\n\\"."  // a comment\n', ["a\nb", 'q\n".'], ["ab", 'q\n"x']),
        ('?start: x\n!x.2: "(" y ")" -> z\ny: "1"\n | "2"', ["(1)", "(2)"], ["(12)"]),
        ('start: "Yes"i', ["yes", "YES", "yEs"], ["ye"]),
    ],
)
def test_lark_grammars_are_regular_expressions(source: str, yes: list[str], no: list[str]) -> None:
    pattern = re.compile(regex_of_lark(source))
    assert all(pattern.fullmatch(text) for text in yes)
    assert not any(pattern.fullmatch(text) for text in no)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('start: "(" start ")" | "x"', "leads back to itself"),
        ('start: a\na: b\nb: "x" a?', "leads back to itself"),
        ('start: "x"\n%ignore " "', "%ignore"),
        ("start: unknown", "no 'unknown'"),
        ('begin: "x"', "no rule 'start'"),
        ('start: "x" (', "malformed|not closed"),
        ("start: /x/i", "flags 'i'"),
        ("%import python.NAME\nstart: NAME", "%import"),
        ('start: "x"{2}', "not known"),
    ],
)
def test_what_is_not_regular_is_told(source: str, why: str) -> None:
    with pytest.raises(NotRegularError, match=why):
        regex_of_lark(source)


@given(st.text(), st.lists(st.integers(0, 60)), st.booleans())
def test_texts_come_in_pieces(text: str, cuts: list[int], ascii_only: bool) -> None:
    text = text.encode(errors="ignore").decode()
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    reader = InputText()
    pieces = [reader.feed(arguments[a:b]) for a, b in pairwise(places)]
    assert "".join(pieces) == text


async def test_in_chats(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    create = client.chat.completions.create
    answer = await create(model="org/fake", messages=Q, tools=[TOOL])
    made: Any = answer.choices[0].message.tool_calls
    (call,) = made
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", TEXT)
    assert "follows this lark grammar" in engine.tokenizer.decode(engine.asked[0].prompt)
    text, kinds = "", set()
    async for chunk in await create(model="org/fake", messages=Q, tools=[TOOL], stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            told: Any = delta.model_dump(exclude_unset=True)
            kinds.add(told.get("type"))
            text += told["custom"]["input"]
            assert "function" not in told
    assert (text, kinds) == (TEXT, {"custom", None})
    history: Any = [
        *Q,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "Done."},
    ]
    engine.answer = "ok"
    await create(model="org/fake", messages=history, tools=[TOOL])
    assert "[apply_patch ];tool:Done.;" in engine.tokenizer.decode(engine.asked[-1].prompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice.custom"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "x"}}},
         "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {**CUSTOM, "name": "?"}}]},
         "tools[0].custom.name"),
        ({"messages": [*Q, {"role": "assistant", "tool_calls": [{"id": "x", "type": "custom"}]}]},
         "messages[1].tool_calls[0]"),
    ],
)  # fmt: skip
async def test_wrong_ones_are_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/chat/completions", json={"messages": Q, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


async def test_grammars_that_are_not_enforced_are_told_of(http: httpx.AsyncClient) -> None:
    grammar = {"syntax": "lark", "definition": 'start: "(" start ")" | "x"'}
    custom = {**CUSTOM, "format": {"type": "grammar", "grammar": grammar}}
    tools = [{"type": "custom", "custom": custom}, {"type": "web_search"}]
    answer = (await http.post("/v1/chat/completions", json={"messages": Q, "tools": tools})).json()
    told = "\n".join(answer["warnings"])
    assert "'tools[0].custom.format' is told to the model and not enforced" in told
    assert "'web_search' is left out" in told


async def test_the_real_engine_writes_a_patch() -> None:
    """The demo model knows no patches: the grammar alone makes it write one."""
    async with AsyncEngine() as engine:
        server = HttpServer(engine, port=0, limits=Limits())
        await server.start()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client:
            for seed in range(3):
                answer = await client.chat.completions.create(
                    model=engine.model_name, messages=Q, tools=[TOOL], seed=seed, max_tokens=300,
                    tool_choice={"type": "custom", "custom": {"name": "apply_patch"}},
                    extra_body={"structured_outputs": {"close_within_max_tokens": True}},
                )  # fmt: skip
                made: Any = answer.choices[0].message.tool_calls
                (call,) = made
                assert call.type == "custom"
                assert re.fullmatch(regex_of_lark(PATCH), call.custom.input)
        await server.stop(0)
