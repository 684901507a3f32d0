"""What schemas rarely say, and what reduces to other keywords."""

from tests.schemas.building import Schema, formatted, listed, one_of, pattern, record, whole, words

KEYWORDS: dict[str, Schema] = {
    "tuple": {
        "type": "array",
        "prefixItems": [words(6), whole(0, 9), {"type": "boolean"}],
        "items": {"type": "null"},
        "minItems": 3,
        "maxItems": 5,
    },
    "matrix": listed(listed(whole(0, 9), 3, 3), 2, 2),
    "ranges": record(
        {
            "byte": whole(0, 255),
            "signed": whole(-128, 127),
            "open": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20},
            "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "above": {"type": "integer", "minimum": 1_000_000},
            "price": {"type": "number", "minimum": 0.5, "maximum": 99.95},
        }
    ),
    "multiples": record(
        {
            "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 100},
            "dozens": {"type": "integer", "multipleOf": 12, "minimum": 0, "maximum": 1200},
            "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10},
        }
    ),
    "patterned properties": {
        "type": "object",
        "properties": {"id": whole()},
        "required": ["id"],
        "patternProperties": {"^x-[a-z]{1,4}$": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "map of counts": {
        "type": "object",
        "additionalProperties": whole(0, 99),
        "propertyNames": {"enum": ["red", "green", "blue"]},
    },
    "conditional": record(
        {"kind": one_of("card", "cash"), "card_number": pattern("^[0-9]{16}$"), "total": whole()},
        optional=("card_number",),
    )
    | {
        "if": {"properties": {"kind": {"const": "card"}}, "required": ["kind"]},
        "then": {"required": ["card_number"]},
        "else": {"properties": {"total": {"maximum": 100}}},
    },
    "dependent": record(
        {"name": words(8), "street": words(8), "city": words(8)}, optional=("street", "city")
    )
    | {"dependentRequired": {"street": ["city"]}},
    "discriminated": {
        "oneOf": [
            record({"shape": {"const": "circle"}, "radius": whole(1, 9)}),
            record({"shape": {"const": "square"}, "side": whole(1, 9)}),
            record({"shape": {"const": "box"}, "width": whole(1, 9), "height": whole(1, 9)}),
        ]
    },
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": whole(0, 9)}, "required": ["a"]},
            {"properties": {"b": words(6)}, "required": ["b"]},
        ],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    },
    "all but some": record(
        {"colour": {"enum": ["red", "green", "blue"], "not": {"const": "red"}}, "n": whole(0, 9)}
    ),
    "constants": listed({"enum": [1, "one", None, True, [1, 2], {"a": 1}]}, 3, 1),
    "nullable": record(
        {
            "a": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
            "b": {"type": ["string", "null"], "maxLength": 5},
            "c": {"anyOf": [listed(whole(0, 9)), {"type": "null"}]},
        }
    ),
    "times": record(
        {"date": formatted("date"), "time": formatted("time"), "moment": formatted("date-time")}
    ),
    "addresses": record(
        {"four": formatted("ipv4"), "id": formatted("uuid"), "mail": formatted("email")}
    ),
    "distinct": {
        "type": "array",
        "items": one_of("a", "b", "c"),
        "uniqueItems": True,
        "minItems": 1,
        "maxItems": 3,
    },
    "open object": {
        "type": "object",
        "properties": {"name": words(8), "age": whole(0, 150)},
        "required": ["name"],
    },
    "anything": {"type": "object", "properties": {"value": True}, "required": ["value"]},
}
