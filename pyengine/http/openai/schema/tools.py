"""``tools`` and ``tool_choice`` of a chat request."""

from typing import Any

import msgspec

from pyengine.grammar.algebra import KeyOrder


class FunctionParam(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call; ``parameters`` is the JSON Schema of its arguments.

    ``key_order`` says in which order their keys come: ``schema`` or ``any``, as in
    ``structured_outputs``.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    key_order: KeyOrder | None = None


class ToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of ``tools``; only functions are supported, others are refused by name."""

    type: str
    function: FunctionParam | None = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """The tools that may be called; ``mode`` is auto or required."""

    mode: str
    tools: list["NamedToolParam"]


class NamedToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool by its name."""

    type: str
    function: NamedFunction | None = None


class ToolChoiceParam(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` as an object: a named function, or those that are allowed."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: Any = None
