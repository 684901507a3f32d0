"""Documents, extractions and trees."""

from tests.schemas.building import Schema, formatted, listed, one_of, pattern, record, whole, words

_POSITION = {
    "type": "array",
    "prefixItems": [
        {"type": "number", "minimum": -180, "maximum": 180},
        {"type": "number", "minimum": -90, "maximum": 90},
    ],
    "items": False,
    "minItems": 2,
}

DOCUMENTS: dict[str, Schema] = {
    "geojson": {
        "oneOf": [
            record({"type": {"const": "Point"}, "coordinates": {"$ref": "#/$defs/position"}}),
            record(
                {
                    "type": {"const": "LineString"},
                    "coordinates": listed({"$ref": "#/$defs/position"}, 3, 2),
                }
            ),
        ],
        "$defs": {"position": _POSITION},
    },
    "recipe": record(
        {
            "title": words(16),
            "servings": whole(1, 12),
            "ingredients": listed(
                record(
                    {
                        "name": words(8),
                        "amount": {"type": "number", "minimum": 0, "maximum": 100},
                        "unit": one_of("g", "ml", "tsp", "piece"),
                    },
                    optional=("unit",),
                ),
                2,
                1,
            ),
            "steps": listed(words(20, minLength=3), 2, 1),
        }
    ),
    "invoice": record(
        {
            "number": pattern("^INV-[0-9]{4}-[0-9]{3}$"),
            "issued": formatted("date"),
            "seller": {"$ref": "#/definitions/party"},
            "buyer": {"$ref": "#/definitions/party"},
            "lines": listed({"$ref": "#/definitions/line"}, 2, 1),
            "paid": {"type": "boolean", "default": False},
        },
        optional=("paid",),
        definitions={
            "party": record(
                {"name": words(10), "vat": pattern("^[A-Z]{2}[0-9]{9}$")}, optional=("vat",)
            ),
            "line": record({"text": words(10), "quantity": whole(1, 99), "cents": whole(0, 99999)}),
        },
    ),
    "package": record(
        {
            "name": pattern("^[a-z][a-z0-9-]{0,10}$"),
            "version": pattern("^(0|[1-9][0-9]?)\\.(0|[1-9][0-9]?)\\.(0|[1-9][0-9]?)$"),
            "private": {"const": True},
            "dependencies": {
                "type": "object",
                "patternProperties": {"^[a-z]{1,6}$": pattern("^\\^[0-9]\\.[0-9]$")},
                "additionalProperties": False,
            },
        },
        optional=("private",),
    ),
    "compose": record(
        {
            "version": one_of("3", "3.8"),
            "services": {
                "type": "object",
                "additionalProperties": record(
                    {"image": words(8), "ports": listed(pattern("^[0-9]{2,4}:[0-9]{2,4}$"), 1)},
                    optional=("ports",),
                ),
                "minProperties": 1,
                "maxProperties": 2,
            },
        }
    ),
    "classification": record(
        {
            "label": one_of("positive", "negative", "neutral"),
            "score": {"type": "number", "minimum": 0, "maximum": 1},
        }
    ),
    "entities": record(
        {
            "entities": listed(
                record(
                    {
                        "text": words(10),
                        "kind": one_of("person", "place", "organisation"),
                        "span": {
                            "type": "array",
                            "prefixItems": [whole(0, 99), whole(0, 99)],
                            "minItems": 2,
                            "maxItems": 2,
                        },
                    }
                ),
                3,
            )
        }
    ),
    "steps to an answer": record(
        {
            "steps": listed(record({"thought": words(24), "result": words(8)}), 2, 1),
            "answer": {"anyOf": [{"type": "integer"}, words(8)]},
        }
    ),
    "filter": {
        "$ref": "#/$defs/filter",
        "$defs": {
            "filter": {"anyOf": [{"$ref": "#/$defs/test"}, {"$ref": "#/$defs/junction"}]},
            "test": record(
                {
                    "field": one_of("name", "age", "city"),
                    "operator": one_of("=", "<", ">"),
                    "value": {"type": ["string", "integer"], "maxLength": 6},
                }
            ),
            "junction": record(
                {
                    "operator": one_of("and", "or"),
                    "operands": listed({"$ref": "#/$defs/filter"}, 2, 1),
                }
            ),
        },
    },
    "html": {
        "$ref": "#/$defs/element",
        "$defs": {
            "element": record(
                {
                    "tag": one_of("div", "p", "span"),
                    "children": listed({"anyOf": [words(8), {"$ref": "#/$defs/element"}]}, 2),
                }
            )
        },
    },
    "comments": record(
        {"author": words(8), "text": words(16), "replies": listed({"$ref": "#"}, 2)},
        optional=("replies",),
    ),
    "list": record({"value": whole(0, 9), "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "expression": {
        "anyOf": [
            whole(0, 99),
            {
                "type": "array",
                "prefixItems": [one_of("+", "-", "*"), {"$ref": "#"}, {"$ref": "#"}],
                "items": False,
                "minItems": 3,
            },
        ]
    },
    "readings": record(
        {
            "sensor": formatted("uuid"),
            "unit": one_of("C", "F", "K"),
            "values": listed({"type": "number", "minimum": -50, "maximum": 50}, 4, 2),
            "at": formatted("date-time"),
        }
    ),
    "quiz": record(
        {
            "question": words(20, minLength=5),
            "options": listed(words(6, minLength=1), 4, 4),
            "correct": whole(0, 3),
        }
    ),
}
