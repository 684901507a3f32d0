"""The keywords of the engine's methods, for those that pass them on. Imports no torch."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from pyengine.chat.tools import Tool, ToolChoice
    from pyengine.grammar.description import Grammar


class RequestKeywords(TypedDict, total=False):
    """What :meth:`pyengine.AsyncEngine.generate` and ``chat`` both take."""

    priority: int
    tenant: str | None
    cache_salt: str | None
    timeout: float | None
    close_grammar: bool
    prediction: "str | Sequence[int] | None"


class GenerateKeywords(RequestKeywords, total=False):
    """What :meth:`pyengine.AsyncEngine.generate` takes."""

    grammar: "Grammar | None"


class ChatKeywords(RequestKeywords, total=False):
    """What :meth:`pyengine.AsyncEngine.chat` takes."""

    tools: "Sequence[Tool | dict[str, Any]]"
    tool_choice: "ToolChoice | dict[str, Any]"
    allowed_tools: Collection[str] | None
    parallel_tool_calls: bool
    grammar: "Grammar | None"
    reasoning: bool | None
    template_arguments: dict[str, Any] | None
