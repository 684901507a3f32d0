"""Chat formats: how each family of models marks thinking, tool calls and ends of turns.

::

    description ──► grammar(tools, choice)   what the model may write
         └────────► parser(tools)            what it wrote, as events

A format is one description from which both are made, so that they cannot disagree.
"""

from pyengine.chat.formats.detect import FORMATS, detect, format_of
from pyengine.chat.formats.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pyengine.chat.formats.format import ChatFormat, Parser

__all__ = [
    "FORMATS",
    "ChatFormat",
    "ContentDelta",
    "Event",
    "Parser",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallStart",
    "detect",
    "format_of",
]
