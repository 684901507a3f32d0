"""Schemas of tools as the world writes them: what is taken, what is left out, what is refused."""

import json
from typing import Any

import pytest

from pyengine.chat.formats.bodies import arguments_of
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError
from tests.answers import matches

CITY = {"city": {"type": "string"}}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", **fields}


@pytest.mark.parametrize(
    ("given", "made", "left_out"),
    [
        (_object(properties=None, required=None), _object(), ["'properties' at #", "'required'"]),
        (
            _object(properties={"a": {"type": "any", "description": "x"}}),
            _object(properties={"a": {"description": "x"}}),
            ["'type' at #/properties/a"],
        ),
        (
            _object(properties={"n": {"minimum": 1, "exclusiveMinimum": True}}),
            _object(properties={"n": {"minimum": 1, "exclusiveMinimum": 1}}),
            [],
        ),
        (
            _object(properties={"n": {"maximum": 1, "exclusiveMaximum": False}}),
            _object(properties={"n": {"maximum": 1}}),
            [],
        ),
        (_object(properties=["a"]), _object(), ["'properties'"]),
        (_object(required=5, anyOf=[]), _object(), ["'required'", "'anyOf'"]),
        ({"type": [[1]]}, _object(), ["'type' at #"]),
        ({"type": ["object", "null"], "properties": CITY}, _object(properties=CITY), []),
        # A property may have the name of a keyword.
        (_object(properties={"type": {"type": "any"}}), None, ["'type' at #/properties/type"]),
    ],
)
def test_malformed_parts_are_left_out(given: Any, made: Any, left_out: list[str]) -> None:
    tool = Tool("f", parameters=given)
    if made is not None:
        assert tool.schema == made
    assert len(tool.warnings) == len(left_out)
    for warning, expected in zip(tool.warnings, left_out, strict=True):
        assert expected in warning
    assert matches(arguments_of(tool), "{}")
    assert not matches(arguments_of(tool), "[]")


def test_a_strict_tool_is_taken_by_the_letter() -> None:
    tool = Tool("f", parameters=_object(properties=None), strict=True)
    assert (tool.schema, tool.warnings) == (_object(properties=None), ())


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["array", "null"]}])
@pytest.mark.parametrize("strict", [False, True])
def test_arguments_that_are_no_object(parameters: Any, strict: bool) -> None:
    with pytest.raises(InvalidRequestError, match="object"):
        Tool("f", parameters=parameters, strict=strict).schema  # noqa: B018


@pytest.mark.parametrize(
    "parameters",
    [
        {"anyOf": [_object(properties=CITY, required=["city"]), {"type": "string"}]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": ["object", "string"], "properties": CITY}}},
        {"allOf": [{"properties": CITY}]},
    ],
)
def test_only_objects_are_arguments(parameters: Any) -> None:
    grammar = arguments_of(Tool("f", parameters=parameters))
    assert matches(grammar, json.dumps({"city": "Paris"}))
    assert not matches(grammar, '"Paris"')


@pytest.mark.parametrize("draft", ["04", "06", "07"])
def test_arguments_are_objects_beside_a_ref_of_old_drafts(draft: str) -> None:
    """These drafts ignore what stands beside ``$ref``, ``type`` included."""
    parameters = {
        "$schema": f"http://json-schema.org/draft-{draft}/schema#",
        "$ref": "#/definitions/A",
        "definitions": {
            "A": {"properties": {"x": {"type": "integer"}, "y": {"$ref": "#/definitions/A"}}}
        },
    }
    for given in (parameters, {**parameters, "type": "object", "required": ["z"]}):
        grammar = arguments_of(Tool("f", parameters=given, strict=True))
        assert matches(grammar, '{"x": 1, "y": {"x": 2}}')
        assert matches(grammar, "{}")
        for wrong in ('"text"', "12", "[1]", '{"x": "a"}'):
            assert not matches(grammar, wrong)


def test_a_ref_of_an_old_draft_must_allow_objects() -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/A",
        "definitions": {"A": {"type": "string"}},
    }
    with pytest.raises(InvalidRequestError, match="object"):
        Tool("f", parameters=parameters).schema  # noqa: B018


def test_many_warnings_are_counted() -> None:
    tool = Tool("f", parameters=_object(properties={f"p{i}": {"type": "any"} for i in range(20)}))
    assert len(tool.warnings) == 9
    assert tool.warnings[-1].startswith("12 more")
