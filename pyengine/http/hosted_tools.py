"""Tools that their API's own servers run: this one has none of them.

A request may bring them among others, as coding agents do. They are left out with a warning, so
that the model does not hear of them; a choice that demands one is refused.
"""

import re

# Of OpenAI's API and of Anthropic's, whose types end in a date. Some have the client's machine do
# the work, but only OpenAI's own models know their calls.
_TYPES = re.compile(
    r"(web_search|web_fetch|image_generation|code_interpreter|code_execution|file_search|computer|"
    r"mcp|mcp_toolset|local_shell|shell|apply_patch|programmatic_tool_calling|advisor|"
    r"tool_search_tool_(regex|bm25))(_use)?(_preview)?(_\d[\d_]*)?"
)


def is_hosted(kind: object) -> bool:
    """Whether tools of this type are run by another server than this one."""
    return isinstance(kind, str) and _TYPES.fullmatch(kind) is not None


def left_out(kind: str) -> str:
    """The warning about a tool that is left out."""
    return (
        f"'tools': '{kind}' is left out: this server runs no tools, and the model is told of none."
    )
