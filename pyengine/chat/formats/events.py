"""What a parser of answers tells."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins: ``index`` counts the answer's calls from 0, ``id`` names this one."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments; the fragments of one call put together are JSON."""

    index: int
    fragment: str


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments
