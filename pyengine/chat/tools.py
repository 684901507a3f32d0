"""The tools of a request, and the choice among them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from pyengine.chat.tool_schema import of_object, repaired
from pyengine.errors import InvalidRequestError
from pyengine.grammar.algebra import KeyOrder

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: The JSON Schema of its arguments, an object.
        strict: Refuse a schema that cannot be enforced to the letter; otherwise what cannot be is
            left out.
        key_order: The order of the arguments and of the objects in them; see
            :data:`~pyengine.grammar.algebra.KeyOrder`.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    strict: bool = False
    key_order: KeyOrder = "schema"

    @classmethod
    def from_openai(cls, given: Mapping[str, Any], at: str = "tools[0]") -> "Tool":
        """The tool of an entry of ``tools`` in OpenAI's chat completions.

        Raises:
            InvalidRequestError: It is malformed; names what.
        """
        function = given.get("function")
        if given.get("type", "function") != "function" or not isinstance(function, Mapping):
            raise InvalidRequestError(f"'{at}' must be a function", param=at)
        return cls.from_function(function, f"{at}.function")

    @classmethod
    def from_function(cls, function: Mapping[str, Any], at: str) -> "Tool":
        """The tool of an object with name, description, parameters, strict and key_order.

        Raises:
            InvalidRequestError: It is malformed; names what.
        """
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"'{at}.name' must be 1 to 128 letters, digits, '_', '-' or '.'",
                param=f"{at}.name",
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidRequestError(
                f"'{at}.parameters' must be a JSON Schema", param=f"{at}.parameters"
            )
        strict = function.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise InvalidRequestError(f"'{at}.strict' must be a boolean", param=f"{at}.strict")
        key_order = function.get("key_order")
        if key_order not in (None, *get_args(KeyOrder)):
            raise InvalidRequestError(
                f"'{at}.key_order' must be one of {', '.join(get_args(KeyOrder))}",
                param=f"{at}.key_order",
            )
        return cls(
            name,
            str(function.get("description") or ""),
            _NOTHING if parameters is None else parameters,
            bool(strict),
            key_order or "schema",
        )

    @cached_property
    def _made(self) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        if self.strict:
            return of_object(self.parameters), ()
        made, warnings = repaired(self.parameters)
        return of_object(made), warnings

    @property
    def schema(self) -> Mapping[str, Any]:
        """:attr:`parameters` as the schema of an object, whether it says so or not.

        What is malformed in a tool that is not strict is left out; see :attr:`warnings`.

        Raises:
            InvalidRequestError: It allows no object.
        """
        return self._made[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What :attr:`schema` leaves out of :attr:`parameters` as malformed; raises as it."""
        return self._made[1]


@dataclass(frozen=True)
class Named:
    """``tool_choice``: exactly this tool, once."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | Named
"""No call, as the model likes, at least one, or a named one."""


def check_tools(tools: Iterable[Tool], choice: ToolChoice) -> None:
    """Refuse tools of one name, and a choice that no tool can meet.

    Raises:
        InvalidRequestError: Naming the parameter.
    """
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(
                f"there are two tools named '{name}'", param=f"tools[{index}]"
            )
    if isinstance(choice, Named) and choice.name not in names:
        raise InvalidRequestError(
            f"'tool_choice' names '{choice.name}', which is not among the tools",
            param="tool_choice",
        )
    if choice == "required" and not names:
        raise InvalidRequestError(
            "'tool_choice' is required, but there are no tools", param="tool_choice"
        )
