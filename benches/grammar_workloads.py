"""Workloads of the grammar bench: schemas as programs write them, choices, regexes; with texts."""

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["json_schema", "choice", "regex"]


@dataclass(frozen=True)
class Workload:
    """Something to be compiled, and an answer that fits; figures are of all of a group together."""

    name: str
    kind: Kind
    spec: Any
    text: str
    group: str


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


STRING = {"type": "string"}
NUMBER = {"type": "number"}
NULLABLE = {"anyOf": [STRING, {"type": "null"}]}
ADDRESS = _object({"street": STRING, "city": STRING, "zip": {"type": "string", "maxLength": 10}})
TREE = {
    "$defs": {
        "Node": _object(
            {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            }
        )
    },
    "$ref": "#/$defs/Node",
}
SCHEMAS: dict[str, tuple[Any, Any]] = {
    "person": (
        {
            "$defs": {"Address": ADDRESS},
            **_object(
                {
                    "name": {"type": "string", "minLength": 1},
                    "age": {"type": "integer", "minimum": 0, "maximum": 150},
                    "mail": NULLABLE,
                    "role": {"enum": ["admin", "user", "guest"]},
                    "addresses": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/Address"},
                        "maxItems": 8,
                    },
                }
            ),
        },
        {
            "name": "Zoë Müller",
            "age": 41,
            "mail": None,
            "role": "user",
            "addresses": [{"street": "Long Lane 1", "city": "Bern", "zip": "3011"}],
        },
    ),
    "steps": (
        _object(
            {
                "steps": {
                    "type": "array",
                    "items": _object({"explanation": STRING, "output": STRING}),
                },
                "final_answer": STRING,
            }
        ),
        {
            "steps": [{"explanation": 'Subtract "7" from both sides.\n', "output": "8x = -30"}],
            "final_answer": "x = -3.75",
        },
    ),
    "union": (
        {
            "oneOf": [
                _object({"kind": {"const": "circle"}, "radius": NUMBER}),
                _object(
                    {
                        "kind": {"const": "box"},
                        "width": {"type": "number"},
                        "height": {"type": "number"},
                    }
                ),
            ]
        },
        {"kind": "box", "width": 2.5, "height": 10},
    ),
    "tree": (
        TREE,
        {"value": 1, "children": [{"value": -2.5, "children": []}, {"value": 3, "children": []}]},
    ),
    "open": (
        {
            "type": "object",
            "properties": {"title": STRING, "year": {"type": "integer"}},
            "required": ["title"],
        },
        {"title": "On trees", "year": 1984, "note": [1, {"a": None}]},
    ),
    "wide": (
        _object({f"field_{at}": NULLABLE if at % 2 else {"type": "boolean"} for at in range(40)}),
        {f"field_{at}": None if at % 2 else True for at in range(40)},
    ),
}
CHOICES = {
    "yes or no": ["yes", "no", "maybe"],
    "cities": [
        f"{start}{middle}{end}"
        for start in ("New ", "Old ", "")
        for middle in "ABCDEFGHIJ"
        for end in ("ton", "ham", "by")
    ],
    "a thousand": [f"item number {at}: {at * 7919 % 1000}" for at in range(1000)],
}
REGEXES = {
    "date": (r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "2024-02-29"),
    "phone": (r"\+[1-9][0-9]{0,2}( [0-9]{2,4}){2,4}", "+41 44 123 45 67"),
    "mail": (r"[a-z0-9._]{1,32}@[a-z0-9]{1,32}\.(com|org|net)", "some.one@example.org"),
    "words": (r"([a-z]+ ){0,20}[a-z]+\.", "one line of small words."),
}


# Patterns of strings that almost any token continues: many states say something of all tokens.
UNANCHORED = {
    "date": (r"\d{4}-\d{2}-\d{2}", "the 2024-02-29 of the month, a rather long day"),
    "word": (r"\w+", "some words, and 3 more of these: Zoë Müller"),
    "ticket": (r"[a-z]+-[0-9]+", "See the ticket abc-123 for more of this"),
    "mail": (r"[^@ ]+@[^@ ]+\.[a-z]{2,}", "some.one@example.org is my address of old"),
    "address": (r"https?://", "see https://example.org/path?x=1 for all of it"),
}
SENTENCE = "The quick brown fox jumps over the lazy dog and then goes on to do it all over again."
WORD_COUNTS = {
    "at most 10": (r"^(?:\S+\s+){0,9}\S+$", "one line of small words that goes to ten"),
    "at most 50": (r"^\s*\S+(?:\s+\S+){0,49}\s*$", SENTENCE),
    "at most 200": (r"^(\w+\W+){1,200}$", SENTENCE),
}


def workloads() -> list[Workload]:
    """All of them, the schemas last."""
    choices = [
        Workload(name, "choice", spec, spec[len(spec) // 2], "choices")
        for name, spec in CHOICES.items()
    ]
    regexes = [
        Workload(name, "regex", spec, text, "regexes") for name, (spec, text) in REGEXES.items()
    ]
    patterns = [
        _schema(
            name, _object({"text": {"type": "string", "pattern": pattern}}), {"text": text}, group
        )
        for group, cases in (("unanchored patterns", UNANCHORED), ("word counts", WORD_COUNTS))
        for name, (pattern, text) in cases.items()
    ]
    schemas = [_schema(name, schema, value, "schemas") for name, (schema, value) in SCHEMAS.items()]
    return [*choices, *regexes, *patterns, *schemas]


def _schema(name: str, schema: Any, value: Any, group: str) -> Workload:
    return Workload(name, "json_schema", schema, json.dumps(value, ensure_ascii=False), group)
