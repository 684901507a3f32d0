"""What an answer must look like: every spelling reaches the engine as a grammar, or is refused."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.http.fake_engine import ANSWER, FakeEngine

MODEL = "org/fake"
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
}
PATHS = pytest.mark.parametrize("path", list(MINIMAL))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f>"],
}


def _format(**fields: Any) -> dict[str, Any]:
    named = {"name": "answer", "schema": SCHEMA, **fields}
    return {"type": "json_schema", "json_schema": named}


def _schema(schema: Any = SCHEMA, whitespace: str = "single_line", **fields: Any) -> dict[str, Any]:
    unenforceable = fields.get("unenforceable", "refuse")
    return {
        "kind": "json_schema",
        "schema": schema,
        "whitespace": whitespace,
        "unenforceable": unenforceable,
    }


REGEX = {"kind": "regex", "pattern": "[ab]+"}
CHOICE = {"kind": "choice", "choices": ["a", "b"]}
LARK = {"kind": "lark", "source": 'start: "a" // ::='}
LARK_OF_EBNF = {"kind": "lark", "source": '// root ::= x\nstart: "root" "::="'}
EBNF = {"kind": "ebnf", "source": 'root ::= "a"'}
OBJECT = {"kind": "json_object", "whitespace": "single_line"}
COMPACT = {"whitespace": "compact"}


@PATHS
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": _format()}, _schema()),
        ({"response_format": _format(strict=True, description="d")}, _schema()),
        ({"response_format": _format(strict=False)}, _schema(unenforceable="ignore")),
        ({"structured_outputs": {"json": SCHEMA}}, _schema()),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, _schema()),
        ({"structured_outputs": {"json": True}}, _schema(True)),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"structured_outputs": {"json_object": False, "regex": "[ab]+"}}, REGEX),
        ({"structured_outputs": {"choice": ["a", "b"]}}, CHOICE),
        ({"structured_outputs": {"grammar": LARK["source"]}}, LARK),
        ({"structured_outputs": {"grammar": EBNF["source"]}}, EBNF),
        ({"structured_outputs": {"json": SCHEMA, **COMPACT}}, _schema(whitespace="compact")),
        (
            {"structured_outputs": {"json": SCHEMA, "unenforceable": "ignore"}},
            _schema(unenforceable="ignore"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "key_order": "any"}},
            _schema() | {"key_order": "any"},
        ),
        (
            {"response_format": _format(), "structured_outputs": {"key_order": "any"}},
            _schema() | {"key_order": "any"},
        ),
        ({"structured_outputs": {"json": SCHEMA, "key_order": "schema"}}, _schema()),
        (
            {"response_format": _format(), "structured_outputs": {"whitespace": "flexible"}},
            _schema(whitespace="flexible"),
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": COMPACT},
            {**OBJECT, **COMPACT},
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            _schema(whitespace="compact"),
        ),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, _schema()),
        ({"structured_outputs": {"grammar": LARK_OF_EBNF["source"]}}, LARK_OF_EBNF),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"}, _schema()),
        ({"guided_json": json.dumps(SCHEMA)}, _schema()),
        ({"guided_regex": "[ab]+"}, REGEX),
        ({"guided_choice": ["a", "b"]}, CHOICE),
        ({"guided_grammar": EBNF["source"]}, EBNF),
        ({"guided_json_object": True}, OBJECT),
        ({"regex": "[ab]+"}, REGEX),
        ({"ebnf": EBNF["source"]}, EBNF),
        ({"json_schema": json.dumps(SCHEMA)}, _schema()),
    ],
)
async def test_every_spelling(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    path: str,
    fields: dict[str, Any],
    grammar: dict[str, Any] | None,
) -> None:
    answer = await http.post(path, json={**MINIMAL[path], **fields})
    assert answer.status_code == 200, answer.text
    assert engine.asked[0].grammar == grammar
    assert not engine.asked[0].close_grammar


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"structural_tag": TAG}},
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
        {"structural_tag": json.dumps(TAG)},
        {"response_format": {"type": "structural_tag", **TAG}},
        {
            "response_format": {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<f>"],
                    "tags": [
                        {
                            "begin": "<f>",
                            "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                            "end": "</f>",
                        }
                    ],
                },
            }
        },
    ],
)
async def test_structural_tags(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    path = "/v1/completions"
    answer = await http.post(path, json={**MINIMAL[path], **fields})
    assert answer.status_code == 200, answer.text
    grammar = engine.asked[0].grammar
    assert grammar is not None
    assert grammar["parts"][0] == {"kind": "free_text", "until": ["<f>"]}
    assert _schema({"type": "integer"}) in grammar["parts"][1]["part"]["parts"][0]["parts"]


@PATHS
@pytest.mark.parametrize(
    ("fields", "params"),
    [
        (
            {"response_format": _format(), "guided_regex": "a"},
            ("guided_regex", "response_format"),
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            ("structured_outputs.choice", "structured_outputs.regex"),
        ),
        ({"regex": "a", "ebnf": "root ::= x"}, ("ebnf", "regex")),
        ({"structured_outputs": {"whitespace_pattern": " ?"}}, ()),
        ({"structured_outputs": {"disable_additional_properties": True}}, ()),
        ({"structured_outputs": {"whitespace": "some", "json": {}}}, ()),
        ({"structured_outputs": {"whitespace": "compact"}}, ()),
        ({"structured_outputs": {"regex": "a", "whitespace": "compact"}}, ()),
        ({"structured_outputs": {"regex": "a", "unenforceable": "ignore"}}, ()),
        ({"structured_outputs": {"json_object": True, "unenforceable": "ignore"}}, ()),
        ({"structured_outputs": {"unenforceable": "refuse"}}, ()),
        ({"structured_outputs": {"regex": "a", "key_order": "any"}}, ()),
        ({"structured_outputs": {"json_object": True, "key_order": "any"}}, ()),
        ({"structured_outputs": {"json": {}, "key_order": "sorted"}}, ()),
        (
            {
                "response_format": _format(strict=True),
                "structured_outputs": {"unenforceable": "ignore"},
            },
            ("structured_outputs.unenforceable",),
        ),
        ({"structured_outputs": {"choice": []}}, ("structured_outputs.choice",)),
        ({"structured_outputs": {"json": "{"}}, ("structured_outputs.json",)),
        ({"structured_outputs": {"json": 5}}, ("structured_outputs.json",)),
        ({"structural_tag": "[]"}, ("structural_tag",)),
        ({"guided_whitespace_pattern": " ?"}, ("guided_whitespace_pattern",)),
        ({"response_format": {"type": "xml"}}, ("response_format.type",)),
        ({"response_format": {"type": "json_schema"}}, ("response_format.json_schema",)),
        ({"response_format": _format(name="a b")}, ("response_format.json_schema.name",)),
        ({"response_format": _format(schema=None)}, ("response_format.json_schema.schema",)),
        ({"response_format": _format(more=1)}, ("response_format.json_schema.more",)),
    ],
)
async def test_wrong_formats_are_refused(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    path: str,
    fields: dict[str, Any],
    params: tuple[str, ...],
) -> None:
    answer = await http.post(path, json={**MINIMAL[path], **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    if params:
        assert error["param"] == params[0]
    else:
        options = set(fields["structured_outputs"])
        assert error["param"].removeprefix("structured_outputs.") in options
    for name in (error["param"], *params):
        assert name in error["message"]
    assert not engine.asked


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_closing_and_warnings(
    http: httpx.AsyncClient, engine: FakeEngine, path: str, stream: bool
) -> None:
    engine.warnings = ("'uniqueItems' is ignored", "so is 'not'")
    fields = {
        "response_format": _format(strict=False),
        "structured_outputs": {"close_within_max_tokens": True},
        "max_tokens": 200,
        "stream": stream,
        "n": 2,
    }
    answer = await http.post(path, json={**MINIMAL[path], **fields})
    assert engine.asked[0].close_grammar
    if not stream:
        assert answer.json()["warnings"] == list(engine.warnings)
        return
    chunks = [json.loads(event[6:]) for event in answer.text.split("\n\n")[:-2]]
    assert chunks[0]["warnings"] == list(engine.warnings)
    assert sum("warnings" in chunk for chunk in chunks) == 1  # of both choices
    text = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        text += piece if choice["index"] == 0 else ""
    assert text == ANSWER


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": _format()}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"guided_json": SCHEMA}, "guided_json"),
    ],
)
async def test_a_grammar_that_the_engine_refuses(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    param: str,
) -> None:
    engine.refuse_grammar = "'not' cannot be enforced at $.properties.a"
    answer = await http.post(path, json={**MINIMAL[path], **fields, "stream": stream, "n": 2})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["code"] == "invalid_grammar"
    assert error["type"] == "invalid_request_error"
    assert error["message"] == engine.refuse_grammar
    assert not engine.running


async def test_the_clients_own_parse(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    import pydantic

    class City(pydantic.BaseModel):
        name: str
        people: int

    engine.answer = '{"name": "Köln", "people": 1000000}'
    answer = await client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], response_format=City
    )
    assert answer.choices[0].message.parsed == City(name="Köln", people=1000000)
    grammar = engine.asked[0].grammar
    assert grammar is not None
    assert grammar["schema"]["required"] == ["name", "people"]
    assert grammar["unenforceable"] == "refuse"


@PATHS
async def test_there_must_be_something_to_close(
    http: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    asked = {"structured_outputs": {"close_within_max_tokens": True}}
    answer = await http.post(path, json={**MINIMAL[path], **asked})
    assert answer.status_code == 400
    param = answer.json()["error"]["param"]
    assert param == "structured_outputs.close_within_max_tokens"
    assert not engine.asked
    answer = await http.post(path, json={**MINIMAL[path], **asked, "regex": "a"})
    assert engine.asked[0].close_grammar
