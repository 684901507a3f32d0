"""Grammars made to hurt, of all kinds, and what becomes of a request with one.

:func:`hostile` makes the same two hundred each time.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidRequestError, OverloadedError, RequestFailedError
from pyengine.grammar import Grammar, choice, ebnf, json_schema, lark, regex

Schema = dict[str, Any]
INTEGER: Schema = {"type": "integer"}
ANSWER = SamplingParams(seed=1, max_tokens=24)


def properties(count: int, each: Any = INTEGER, **more: Any) -> Schema:
    names = {f"property {at}": each for at in range(count)}
    return {"type": "object", "properties": names, **more}


def half(size: int) -> Schema:
    """Half of the properties, whichever: as many cases as there are ways to choose them."""
    return properties(10 * size, minProperties=5 * size)


def optional(size: int) -> Schema:
    return properties(10 * size, additionalProperties=False)


def wide(size: int) -> Schema:
    each = {"type": "object", "properties": {"a": INTEGER, "b": {"$ref": "#"}}}
    return properties(10 * size, each, required=["property 0"])


def product(size: int) -> Schema:
    pairs = [
        {"anyOf": [{"properties": {f"p{at}": {"const": value}}} for value in range(2 + at % 4)]}
        for at in range(size)
    ]
    return {"type": "object", "allOf": pairs}


def conditions(size: int) -> Schema:
    rules = [
        {
            "if": {"properties": {f"p{at}": {"const": at}}, "required": [f"p{at}"]},
            "then": {"required": [f"p{at * 7 % size}"]},
            "else": {"minProperties": at % 9},
        }
        for at in range(size)
    ]
    return {"type": "object", "allOf": rules}


def exclusive(size: int) -> Schema:
    options = [{"properties": {f"k{at}": INTEGER}, "maxProperties": at + 1} for at in range(size)]
    return {"type": "object", "oneOf": options}


def chain(size: int) -> Schema:
    links = {f"d{at}": properties(3, {"$ref": f"#/$defs/d{at + 1}"}) for at in range(size)}
    return {"$defs": {**links, f"d{size}": {}}, "$ref": "#/$defs/d0"}


def nested(size: int, most: int = 100) -> Schema:
    schema: Schema = INTEGER
    for at in range(min(size, most)):
        schema = {"type": "array", "items": schema, "minItems": at % 3, "maxItems": 99}
    return schema


def words(size: int) -> Schema:
    return {"enum": [f"{at} of many words" for at in range(40 * size)]}


def constants(size: int) -> Schema:
    rows = [{"id": at, "rows": [[at] * 20, {"deep": [at, {"deeper": at}]}]} for at in range(size)]
    return {"enum": rows}


def patterns(size: int) -> Schema:
    parts = [{"pattern": f".*{letter}.{{{size // 20}}}$"} for letter in "abcdefgh"]
    return {"type": "string", "allOf": parts, "minLength": size, "maxLength": 9 * size}


def names(size: int) -> Schema:
    found = {f"[{chr(97 + at % 26)}-z]{{{at % 40}}}x": {"enum": [at]} for at in range(size // 8)}
    return {"type": "object", "patternProperties": found, "additionalProperties": False}


def unique(size: int) -> Schema:
    return {"type": "array", "items": {"enum": list(range(size))}, "uniqueItems": True}


def containing(size: int) -> Schema:
    item = {"type": "object", "properties": {"a": {"enum": list(range(size))}}}
    counted = [{"contains": {"const": at}, "maxContains": at} for at in range(size // 10)]
    return {"type": "array", "items": {"anyOf": [item, INTEGER]}, "allOf": counted}


def unevaluated(size: int) -> Schema:
    parts = [
        {"anyOf": [properties(at % 5 + 1), {"required": [f"x{at}"]}]} for at in range(size // 10)
    ]
    return {"type": "object", "allOf": parts, "unevaluatedProperties": False}


def denied(size: int) -> Schema:
    return {"not": {"anyOf": [properties(at % 7, {"minimum": at}) for at in range(size)]}}


def repeated(size: int) -> Schema:
    text = {"type": "string", "minLength": size, "maxLength": size * 1000}
    return {"type": "array", "items": text, "minItems": size * 1000}


def counted(size: int) -> Grammar:
    return regex(f"((.{{0,{size}}}x){{0,{size}}}y){{0,{size}}}")


def remembering(size: int) -> Grammar:
    return regex(f"(a|b)*a(a|b){{{size // 8}}}(c|d)*d(c|d){{{size // 9}}}")


def choices(size: int) -> Grammar:
    return choice(f"{at * 7919 % 104729} {at}" for at in range(50 * size))


def laughs(size: int) -> Grammar:
    depth = 6 + size // 20
    rules = [f"r{at} ::= r{at + 1} r{at + 1} | r{at + 1}" for at in range(depth)]
    return ebnf("\n".join(["root ::= r0", *rules, f'r{depth} ::= "ha "']))


def rules(size: int) -> Grammar:
    lines = [f'r{at}: "{at}" r{at + 1} | /[a-z]{{{at % 90}}}/ r{at + 1}' for at in range(8 * size)]
    return lark("\n".join(["start: r0", *lines, f'r{8 * size}: "end"']))


def ambiguous(size: int) -> Grammar:
    return ebnf(f'root ::= root root root | root "a"{{0,{size}}} | "a" | ""')


SCHEMAS: tuple[Callable[[int], Schema], ...] = (
    half,
    optional,
    wide,
    product,
    conditions,
    exclusive,
    chain,
    nested,
    words,
    constants,
    patterns,
    names,
    unique,
    containing,
    unevaluated,
    denied,
    repeated,
)
GRAMMARS: tuple[Callable[[int], Grammar], ...] = (
    counted,
    remembering,
    choices,
    laughs,
    rules,
    ambiguous,
)


async def outcome(engine: AsyncEngine, make: Callable[[], Grammar], close: bool = False) -> str:
    """What becomes of a request with a grammar: the refusal, or the finish reason.

    Where too many others are compiled, it is asked again.
    """
    while True:
        try:
            generation = engine.generate("Go on", ANSWER, grammar=make(), close_grammar=close)
            return (await generation).finish_reason
        except OverloadedError:
            await engine.report()
        except (InvalidRequestError, RequestFailedError) as error:
            return error.message


def hostile(count: int = 200) -> Iterator[tuple[str, Grammar]]:
    """So many grammars with their names; the first of each kind are the largest."""
    draw = random.Random(17)
    kinds = [*SCHEMAS, *GRAMMARS]
    made = 0
    while made < count:
        kind = kinds[made % len(kinds)]
        size = 1000 if made < len(kinds) else draw.choice((20, 100, 300, 1000)) + draw.randrange(20)
        made += 1
        try:
            grammar = kind(size)
            whole = grammar if isinstance(grammar, Grammar) else json_schema(grammar)
        except InvalidRequestError:
            continue  # Too long to be sent at all.
        yield f"{kind.__name__}({size})", whole
