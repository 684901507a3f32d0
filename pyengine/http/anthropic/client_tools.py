"""Anthropic's tools that the client runs, by their types: the schemas that its own models know.

A request names them by type alone; the model that is served here is told what they take.
"""

import re
from collections.abc import Mapping
from typing import Any

from pyengine.chat.tools import Tool

_DATED = re.compile(r"(bash|text_editor|memory)_\d{8}")
_TEXT = {"type": "string"}
_RANGE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_EDITS: dict[str, Any] = {
    "path": {"type": "string", "description": "Absolute path of a file or folder."},
    "file_text": {"type": "string", "description": "For create: the content of the file."},
    "old_str": {"type": "string", "description": "For str_replace: the text that is replaced."},
    "new_str": {"type": "string", "description": "For str_replace: the text in its place."},
    "insert_line": {"type": "integer", "description": "For insert: the line to insert after."},
    "insert_text": {"type": "string", "description": "For insert: the text."},
    "view_range": {**_RANGE, "description": "For view: the first line and the last."},
}


def _commands(names: str, others: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    command = {"type": "string", "enum": names.split()}
    return {
        "type": "object",
        "properties": {"command": command, **others},
        "required": ["command", *required],
        "additionalProperties": False,
    }


_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Run a command in a bash session that goes on between calls.",
        {
            "type": "object",
            "properties": {"command": _TEXT, "restart": {"type": "boolean"}},
            "additionalProperties": False,
        },
    ),
    "text_editor": (
        "View, create and edit files.",
        _commands("view create str_replace insert", _EDITS, ["path"]),
    ),
    "memory": (
        "Keep notes in files below /memories, and read them in later conversations.",
        _commands(
            "view create str_replace insert delete rename",
            {**_EDITS, "old_path": _TEXT, "new_path": _TEXT},
            [],
        ),
    ),
}


def client_tool(kind: str, name: str) -> Tool | None:
    """The tool of a type such as ``bash_20250124``; None: there is no such type."""
    found = _DATED.fullmatch(kind)
    if found is None:
        return None
    description, schema = _KNOWN[found[1]]
    return Tool(name, description, schema)
