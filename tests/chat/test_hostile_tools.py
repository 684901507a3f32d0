"""Tools whose schemas are large, run in circles, or are no schemas."""

from typing import Any

import pytest

from pyengine.chat.formats import FORMATS, ChatFormat
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError
from pyengine.grammar import json_schema, parameters, reading
from pyengine.grammar.description import MOST_BYTES
from tests.chat.test_formats import FORMAT, parse, told

ONE_BY_ONE = pytest.mark.parametrize(
    "name", ["qwen3_coder", "llama_pythonic", "llama4_pythonic", "gemma_tool_code", "gemma4"]
)


def made(form: ChatFormat, schema: Any, strict: bool = False) -> bytes:
    grammar = form.grammar([Tool("f", parameters=schema, strict=strict)], "required")
    assert grammar is not None
    return grammar.description()


def of(properties: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


@ONE_BY_ONE
def test_only_definitions_that_are_needed_are_written(name: str) -> None:
    schema = of(
        {f"p{number}": {"$ref": "#/$defs/a"} for number in range(100)},
        required=["p0"],
        **{
            "$defs": {
                "a": {"type": "array", "items": {"$ref": "#/$defs/b~1c"}},
                "b/c": {"enum": ["needed", 1]},
                "large": {"description": "x" * 500_000},
            }
        },
    )
    description = made(FORMATS[name], schema)
    assert len(description) < 50_000
    assert description.count(b"needed") == 100


@ONE_BY_ONE
def test_description_that_becomes_too_long_is_not_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counted(schema: Any, **options: Any) -> Any:
        grammar = json_schema(schema, **options)
        sizes.append(len(grammar.description()))
        return grammar

    monkeypatch.setattr(parameters, "json_schema", counted)
    schema = of(
        {f"p{number}": {"$ref": "#/$defs/a"} for number in range(100)},
        **{"$defs": {"a": {"type": "integer", "description": "x" * 500_000}}},
    )
    with pytest.raises(InvalidRequestError, match="longer than"):
        made(FORMATS[name], schema)
    assert sum(sizes) <= 2 * MOST_BYTES


@pytest.mark.parametrize("name", ["llama_pythonic", "gemma_tool_code"])
def test_optional_parameters_are_written_a_few_times_each(name: str) -> None:
    few, many = (
        len(made(FORMATS[name], of({f"p{i:04}": {"type": "integer"} for i in range(count)})))
        for count in (20, 400)
    )
    assert many < 40 * few


@FORMAT
def test_a_long_description_is_refused(form: ChatFormat) -> None:
    schema = of({"a": {"enum": ["x" * 700_000]}})
    tools = [Tool(f"f{number}", parameters=schema) for number in range(2)]
    with pytest.raises(InvalidRequestError, match="longer than"):
        form.grammar(tools, "auto")


@ONE_BY_ONE
@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf"])
def test_circles_are_walked_once(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counting(schema: Any) -> list[Any] | None:
        nonlocal looked
        looked += 1
        assert looked < 2000
        return reading_values(schema)

    reading_values = reading.values_of
    monkeypatch.setattr(reading, "values_of", counting)
    circle = {key: [{"$ref": "#/$defs/a"}] * 8 + [{"type": "integer"}]}
    chain = {f"c{i}": {key: [{"$ref": f"#/$defs/c{i + 1}"}] * 2} for i in range(30)}
    schema = of(
        {"p": {"$ref": "#/$defs/a"}, "q": {"$ref": "#/$defs/c0"}},
        **{"$defs": {"a": circle, **chain, "c30": {"type": "integer"}}},
    )
    assert made(FORMATS[name], schema)


@ONE_BY_ONE
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["a"]},
        {"properties": {"a": 5}},
        {"properties": {"a": {}}, "required": 5},
        {"properties": {"a": {}}, "required": [[]]},
        of({"a": {"type": [[1]]}}),
        of({"a": {"type": 5}}),
        of({"a": {"anyOf": {}}}),
        of({"a": {"allOf": [5]}}),
        of({"a": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}),
    ],
)
def test_parameters_that_are_no_schema_are_refused(name: str, schema: Any) -> None:
    with pytest.raises(InvalidRequestError):
        made(FORMATS[name], schema, strict=True)


@pytest.mark.parametrize("name", ["a>b", "a<b", "a\nb", ""])
def test_names_that_no_tag_can_hold(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="name of parameter"):
        made(FORMATS["qwen3_coder"], of({name: {"type": "string"}}))
    assert made(FORMATS["hermes"], of({name: {"type": "string"}}))


@pytest.mark.parametrize("values", [["a", "b</parameter>"], ["a", ["</parameter>"]]])
def test_values_that_would_end_early(values: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match="value of parameter 'a' holds"):
        made(FORMATS["qwen3_coder"], of({"a": {"enum": values}}))
    assert made(FORMATS["hermes"], of({"a": {"enum": values}}))


def test_first_of_two_values_of_a_parameter_counts() -> None:
    call = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in (("x", "1"), ("y", "2"), ("x", "3"))
    )
    text = f"<tool_call>\n<function=f>\n{call}</function>\n</tool_call>"
    parser = FORMATS["qwen3_coder"].parser([Tool("f", parameters={"type": "object"})])
    assert told(parse(parser, [text])) == ("", "", [("f", '{"x": 1, "y": 2}')])
