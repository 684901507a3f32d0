"""Descriptions of the texts that an answer may be, as requests and chat formats carry them.

A :class:`Grammar` is a description in JSON; Rust compiles it and keeps what it compiled by the
description's bytes, so equal descriptions are compiled once.
"""

from pyengine.grammar.algebra import (
    any_of,
    any_order,
    choice,
    ebnf,
    free_text,
    json_object,
    json_schema,
    json_value,
    lark,
    optional,
    regex,
    repeat,
    sequence,
    text,
)
from pyengine.grammar.description import Grammar
from pyengine.grammar.structural_tag import structural_tag
from pyengine.grammar.typed import parse_answer

__all__ = [
    "Grammar",
    "any_of",
    "any_order",
    "choice",
    "ebnf",
    "free_text",
    "json_object",
    "json_schema",
    "json_value",
    "lark",
    "optional",
    "parse_answer",
    "regex",
    "repeat",
    "sequence",
    "structural_tag",
    "text",
]
