"""``tools`` and ``tool_choice`` of a chat request."""

from typing import Any, Literal

import msgspec

from pyengine.grammar.algebra import KeyOrder


class FunctionParam(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call.

    Attributes:
        parameters: The JSON Schema of the arguments.
        strict: Whether arguments follow the schema to the letter, or it is refused.
        key_order: The order of their keys: ``schema``, or ``any``, as in ``structured_outputs``.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    key_order: KeyOrder | None = None


class TextGrammar(msgspec.Struct, forbid_unknown_fields=True):
    """The grammar of a custom tool's text: a regular expression, or Lark."""

    syntax: Literal["lark", "regex"]
    definition: str


class AnyText(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class GrammarText(msgspec.Struct, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    """A text of a grammar, as chats spell it."""

    grammar: TextGrammar


class CustomParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the model calls with a text."""

    name: str
    description: str | None = None
    format: AnyText | GrammarText | None = None


class ToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of ``tools``: a function, or a custom tool, which takes a text.

    Those that OpenAI's own servers run are left out with a warning.
    """

    type: str
    function: FunctionParam | None = None
    custom: CustomParam | None = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function, or a custom tool, by its name."""

    name: str


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """The tools that may be called."""

    mode: str
    tools: list["NamedToolParam"]


class NamedToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool by its name."""

    type: str
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class ToolChoiceParam(NamedToolParam, forbid_unknown_fields=True):
    """``tool_choice``: which tools may or must be called: one by its name, or those allowed."""

    allowed_tools: AllowedTools | None = None
