"""From the fields of a request to the grammar of its answer."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyengine.errors import InvalidRequestError
from pyengine.grammar import (
    Grammar,
    choice,
    ebnf,
    json_object,
    json_schema,
    lark,
    regex,
    structural_tag,
)
from pyengine.grammar.algebra import Unenforceable
from pyengine.http.openai.schema.structured import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredFields,
    StructuredOutputs,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_EBNF_RULE = re.compile(r"^\s*[\w.-]+\s*::=", re.MULTILINE)
CLOSE = "structured_outputs.close_within_max_tokens"
# Options of grammars that are JSON.
_JSON_OPTIONS = ("whitespace", "unenforceable", "key_order")
_NO_OPTIONS = StructuredOutputs()


@dataclass(frozen=True)
class Constraint:
    """The grammar of an answer's text, as the request gives it.

    Attributes:
        grammar: None is any text.
        field: The request's field that describes it.
        close: Whether what the grammar has begun is ended within ``max_tokens``.
    """

    grammar: Grammar | None = None
    field: str = "grammar"
    close: bool = False


def constraint(request: StructuredFields) -> Constraint:
    """The constraint that a request puts on the text of its answer.

    Raises:
        InvalidRequestError: It says so twice, or what it says is malformed; names the field.
    """
    options = request.structured_outputs or _NO_OPTIONS
    close = bool(options.close_within_max_tokens)
    given = list(_given(request, options))
    if not given:
        for name in _JSON_OPTIONS:
            if getattr(options, name) is not None:
                at = f"structured_outputs.{name}"
                own = "; a tool has its own" if name == "key_order" else ""
                raise InvalidRequestError(f"'{at}' needs a JSON Schema to go with{own}.", param=at)
        return Constraint(close=close)
    field, make = given[0]
    if len(given) > 1:
        other = given[1][0]
        raise InvalidRequestError(
            f"'{field}' and '{other}' both say what the answer must look like; give one.",
            param=other,
        )
    return Constraint(_made(field, make), field, close)


def _made(field: str, make: Callable[[], Grammar]) -> Grammar:
    try:
        return make()
    except InvalidRequestError as error:
        if error.param is not None:
            raise
        raise type(error)(f"'{field}': {error.message}", param=field) from None


def _given(
    request: StructuredFields, options: StructuredOutputs
) -> Iterator[tuple[str, Callable[[], Grammar]]]:
    """Every field that says something, and how its grammar is made."""
    if request.response_format is not None:
        found = _response_format(request.response_format, options, "response_format")
        if found is not None:
            yield found
    spellings: dict[str, tuple[Callable[..., Grammar], Any]] = {
        "structured_outputs.json": (_schema, options.json),
        "structured_outputs.regex": (regex, options.regex),
        "structured_outputs.choice": (choice, options.choice),
        "structured_outputs.grammar": (_grammar, options.grammar),
        "structured_outputs.json_object": (_any_object, options.json_object or None),
        "structured_outputs.structural_tag": (structural_tag, options.structural_tag),
        "guided_json": (_schema, request.guided_json),
        "guided_regex": (regex, request.guided_regex),
        "guided_choice": (choice, request.guided_choice),
        "guided_grammar": (_grammar, request.guided_grammar),
        "guided_json_object": (_any_object, request.guided_json_object or None),
        "regex": (regex, request.regex),
        "ebnf": (ebnf, request.ebnf),
        "json_schema": (_schema, request.json_schema),
        "structural_tag": (structural_tag, request.structural_tag),
    }
    for field, (make, value) in spellings.items():
        if value is not None:
            yield field, _with_options(field, make, value, options)


def _with_options(
    field: str, make: Callable[..., Grammar], value: Any, options: StructuredOutputs
) -> Callable[[], Grammar]:
    """The maker of a grammar; options that it cannot take are refused by name."""
    if make is _schema or make is _any_object:
        return lambda: make(value, options)
    for name in _JSON_OPTIONS:
        if getattr(options, name) is not None:
            at = f"structured_outputs.{name}"
            raise InvalidRequestError(f"'{at}' does not go with '{field}'.", param=at)
    return lambda: make(value)


def _response_format(
    given: ResponseFormat, options: StructuredOutputs, at: str
) -> tuple[str, Callable[[], Grammar]] | None:
    if isinstance(given, JsonObjectFormat):
        return at, lambda: object_grammar(given, options)
    if isinstance(given, JsonSchemaFormat):
        asked = given.json_schema
        return at, lambda: named_schema(
            asked.name, asked.schema, asked.strict, options, f"{at}.json_schema"
        )
    if isinstance(given, StructuralTagFormat):
        parts = {"structures": given.structures, "triggers": given.triggers, "format": given.format}
        tag: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
        if "format" in tag:
            tag["type"] = "structural_tag"
        return at, _with_options(at, structural_tag, tag, options)
    return None


def object_grammar(given: JsonObjectFormat, options: StructuredOutputs = _NO_OPTIONS) -> Grammar:
    """The grammar of any JSON object, or of the objects that satisfy the request's schema."""
    if given.schema in (None, {}):
        return _any_object(True, options)
    return _schema(given.schema, options)


def named_schema(
    name: str,
    schema: dict[str, Any] | bool | None,
    strict: bool | None,
    options: StructuredOutputs,
    at: str,
) -> Grammar:
    """The grammar of a schema as OpenAI's requests name it.

    Raises:
        InvalidRequestError: Naming what is wrong with it.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"'{at}.name' must be 1 to 64 letters, digits, '_' or '-'.", param=f"{at}.name"
        )
    if schema is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{at}.schema'.",
            param=f"{at}.schema",
            code="missing_required_parameter",
        )
    if strict and options.unenforceable == "ignore":
        raise InvalidRequestError(
            f"'{at}.strict' and 'structured_outputs.unenforceable' contradict each other.",
            param="structured_outputs.unenforceable",
        )
    return _schema(schema, options, "ignore" if strict is False else "refuse")


def _schema(
    schema: Any,
    options: StructuredOutputs,
    unenforceable: Unenforceable = "refuse",
) -> Grammar:
    return json_schema(
        schema,
        whitespace=options.whitespace or "single_line",
        unenforceable=options.unenforceable or unenforceable,
        key_order=options.key_order or "schema",
    )


def _any_object(_: bool, options: StructuredOutputs) -> Grammar:
    for name in _JSON_OPTIONS[1:]:
        if getattr(options, name) is not None:
            at = f"structured_outputs.{name}"
            raise InvalidRequestError(f"'{at}' needs a JSON Schema to go with.", param=at)
    return json_object(whitespace=options.whitespace or "single_line")


def _grammar(source: str) -> Grammar:
    """EBNF where a line defines a rule as EBNF does, else Lark: vLLM takes both in one field."""
    return ebnf(source) if _EBNF_RULE.search(source) else lark(source)
