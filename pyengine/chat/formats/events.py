"""The events of a parser of answers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer itself; ``end`` is where it ends in all that the model wrote."""

    text: str
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning before the answer; ``end`` as of :class:`ContentDelta`."""

    text: str
    end: int = field(default=0, compare=False)


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
