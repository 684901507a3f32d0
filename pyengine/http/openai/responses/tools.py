"""The tools of a response: from its request, from namespaces, and from items of the input.

A function of a namespace is known to the model by both names; its calls name them apart again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pyengine.chat.tools import Tool
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.hosted_tools import is_hosted, left_out
from pyengine.http.limits import Limits, check_tools
from pyengine.http.openai.custom_tools import custom_tool
from pyengine.http.openai.schema.responses import (
    CustomToolParam,
    FunctionToolParam,
    GrammarFormat,
    NamespaceParam,
    ToolSearchParam,
)
from pyengine.http.openai.schema.tools import FunctionParam
from pyengine.http.openai.tools import ServedTool, function_tool, missing, unsupported

SEARCH = "tool_search"
_ANY = {"type": "object", "properties": {"query": {"type": "string"}}}


def full_name(name: str, namespace: str | None) -> str:
    """The name by which the model knows a tool of a namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


class ToolReader:
    """Reads tools of a request, each by its type."""

    def __init__(self, fields: FieldPolicy, warn: dict[str, None]) -> None:
        """Take what becomes of tools' fields, and where warnings go."""
        self._fields = fields
        self._warn = warn

    def read(
        self,
        given: Sequence[dict[str, Any]] | None,
        later: Iterable[dict[str, Any]],
        limits: Limits,
    ) -> tuple[ServedTool, ...]:
        """The tools of a request, and those that items of its input have brought.

        Raises:
            InvalidRequestError: There are too many, or one is malformed or not supported; named.
        """
        found = [
            tool
            for index, raw in enumerate(given or ())
            for tool in self._tools(raw, f"tools[{index}]", None)
        ]
        names = {each.tool.name for each in found}
        for raw in later:
            for tool in self._tools(raw, "input[].tools[]", None):
                if tool.tool.name not in names:  # a search may find what is known
                    names.add(tool.tool.name)
                    found.append(tool)
        check_tools(len(found), limits)
        return tuple(found)

    def _tools(
        self, raw: dict[str, Any], at: str, namespace: NamespaceParam | None
    ) -> Iterator[ServedTool]:
        kind = raw.get("type")
        within = None if namespace is None else namespace.name
        if kind == "function":
            yield self._function(raw, at, within)
        elif kind == "custom":
            given = self._fields.convert(dict(raw), CustomToolParam, self._warn, at)
            grammar = given.format if isinstance(given.format, GrammarFormat) else None
            name = full_name(given.name, within)
            tool = custom_tool(name, given.description, grammar, at, self._warn)
            yield ServedTool(tool, "custom", given.name, within)
        elif kind == "namespace" and namespace is None:
            space = self._fields.convert(dict(raw), NamespaceParam, self._warn, at)
            for index, inner in enumerate(space.tools):
                yield from self._tools(inner, f"{at}.tools[{index}]", space)
        elif kind == SEARCH:
            search = self._fields.convert(dict(raw), ToolSearchParam, self._warn, at)
            if search.execution == "client":
                tool = Tool(SEARCH, search.description or "", search.parameters or _ANY)
                yield ServedTool(tool, "tool_search", SEARCH)
        elif is_hosted(kind):
            self._warn[left_out(str(kind))] = None
        elif kind is None:
            raise missing(f"{at}.type")
        else:
            raise unsupported(kind, at)

    def _function(self, raw: dict[str, Any], at: str, within: str | None) -> ServedTool:
        given = self._fields.convert(dict(raw), FunctionToolParam, self._warn, at)
        if given.name is None:
            raise missing(f"{at}.name")
        told = given.description or ""
        if given.output_schema is not None:
            told += f"\n\nIt returns: {msgspec.json.encode(given.output_schema).decode()}"
        function = FunctionParam(
            full_name(given.name, within),
            told.strip(),
            given.parameters,
            given.strict,
            given.key_order,
        )
        return ServedTool(function_tool(function, at), name=given.name, namespace=within)


def echoed(
    given: Sequence[dict[str, Any]] | None, served: Mapping[str, ServedTool]
) -> list[dict[str, Any]]:
    """The tools as a response repeats them, with the defaults of what was left out of functions.

    Tools that the model is not told of are not among them.
    """
    made = []
    for raw in given or ():
        if raw["type"] == "function":
            made.append(_echo(raw, served[raw["name"]].tool))
        elif raw["type"] == "namespace":
            made.append({"description": "", **raw})
        elif not is_hosted(raw["type"]):
            made.append(raw)
    return made


def _echo(raw: dict[str, Any], tool: Tool) -> dict[str, Any]:
    made = {
        "type": "function",
        "name": tool.name,
        "description": raw.get("description") or "",
        "parameters": dict(tool.parameters),
        "strict": tool.strict,
    }
    if tool.key_order != "schema":
        made["key_order"] = tool.key_order
    if "output_schema" in raw:
        made["output_schema"] = raw["output_schema"]
    return made
