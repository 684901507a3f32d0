"""Constraints on an answer, in the several spellings of requests."""

from typing import Any

import msgspec

from pyengine.grammar.algebra import KeyOrder, Unenforceable, Whitespace
from pyengine.http.openai.schema.sampling import SamplingFields


class JsonSchemaObject(msgspec.Struct, forbid_unknown_fields=True):
    """``response_format.json_schema``: a JSON Schema, and what it is for.

    Attributes:
        name: What OpenAI's models read as its name; a grammar needs none.
        description: What OpenAI's models read as its purpose; a grammar needs none.
        strict: False ignores, with a warning, keywords of the schema that cannot be enforced; else
            they are refused.
    """

    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(
    msgspec.Struct,
    tag_field="type",
    tag="json_object",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Any JSON object; with ``schema``, as MLC and llama.cpp spell it, one that satisfies that."""

    schema: dict[str, Any] | bool | str | None = None


class JsonSchemaFormat(
    msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """JSON that satisfies a schema."""

    json_schema: JsonSchemaObject


class StructuralTagFormat(
    msgspec.Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True
):
    """Text with marked parts, as vLLM and SGLang take it in either of xgrammar's forms."""

    format: Any = None
    structures: Any = None
    triggers: Any = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """``structured_outputs``: a grammar that the answer follows, as vLLM spells it. Exactly one of
    json, regex, choice, grammar, json_object and structural_tag; and options, for others too.

    Attributes:
        json: A JSON Schema, or its text.
        grammar: EBNF in the manner of GBNF where it has a ``::=``, else Lark.
        structural_tag: As an object, or its text.
        whitespace: Between the tokens of JSON: ``single_line`` (as Python's json.dumps writes),
            ``compact`` (none) or ``flexible`` (a bounded amount).
        unenforceable: What to do with a keyword of a schema that cannot be enforced: ``refuse``, or
            ``ignore`` with a warning.
        key_order: Of the keys of a schema's objects: ``schema`` (as it names them, then others) or
            ``any``, with at most 64 properties an object.
        close_within_max_tokens: End what the grammar has begun before ``max_tokens`` are over, so
            that the answer parses.
        regex: A regular expression that the answer matches as a whole.
        choice: The texts of which the answer is one.
        json_object: The answer is a JSON object.
    """

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None

    whitespace: Whitespace | None = None
    unenforceable: Unenforceable | None = None
    key_order: KeyOrder | None = None
    close_within_max_tokens: bool | None = None


class StructuredFields(SamplingFields, kw_only=True):
    """The fields of a request that say what the answer must look like; at most one does.

    ``guided_*`` are vLLM's older names, regex, ebnf, json_schema and structural_tag SGLang's.

    Attributes:
        response_format: What the text must look like: a JSON Schema, a grammar, JSON, or any.
        ebnf: A grammar that the answer follows, in EBNF or GBNF.
        json_schema: A JSON Schema that the answer follows.
        structural_tag: Texts of a grammar each behind their triggers.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    structural_tag: dict[str, Any] | str | None = None
