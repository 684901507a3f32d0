"""A training dialogue, and its text.

An :class:`Exchange` is one question with its answer, made by a skill.  A
:class:`Dialogue` is one or more exchanges under one system prompt.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tools.demo_model.template import TOOLS_INTRO, TOOLS_OUTRO, TURN_END, TURN_START

__all__ = ["Dialogue", "Exchange", "Tool", "Turn", "held_out", "segments"]

Tool = dict[str, Any]
"""A function signature: name, description and a JSON schema of parameters."""

Check = Literal["exact", "contains", "json", "call"]


@dataclass(frozen=True)
class Turn:
    """One message; an assistant's text holds its tool calls as written."""

    role: Literal["user", "assistant", "tool"]
    text: str


@dataclass(frozen=True)
class Exchange:
    """A question with its answer, and how an answer to it is judged.

    ``turns`` ends with the assistant's answer.  ``key`` is what is held out:
    an exchange whose key hashes into the held-out share is never trained on.
    ``expect`` belongs to ``check``: the whole answer for "exact", the JSON
    text for "json" and "call", a word of the answer for "contains".
    """

    skill: str
    key: str
    turns: tuple[Turn, ...]
    check: Check
    expect: str
    tools: tuple[Tool, ...] = ()
    system: str | None = None


@dataclass(frozen=True)
class Dialogue:
    """Turns under one optional system prompt and its tools."""

    turns: tuple[Turn, ...]
    system: str | None = None
    tools: tuple[Tool, ...] = ()


def held_out(key: str) -> bool:
    """Whether a key belongs to the sixteenth that only the evaluation sees."""
    return hashlib.sha256(key.strip().lower().encode()).digest()[0] < 16


def _system_text(dialogue: Dialogue) -> str:
    """The system turn's text, empty when there is none."""
    parts = [dialogue.system] if dialogue.system else []
    if dialogue.tools:
        lines = [json.dumps(tool, ensure_ascii=False) for tool in dialogue.tools]
        parts.append("\n".join([TOOLS_INTRO, *lines, TOOLS_OUTRO]))
    return "\n\n".join(parts)


def segments(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    """Yield the rendered text in pieces, each with whether it is trained on.

    Only what the assistant writes, with the token that ends its turn, is
    trained on.  Every piece begins at a token boundary, so the pieces may be
    tokenized one by one.
    """
    system = _system_text(dialogue)
    if system:
        yield f"{TURN_START}system\n{system}{TURN_END}\n", False
    turns = dialogue.turns
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            yield f"{TURN_START}assistant\n", False
            yield f"{turn.text}{TURN_END}", True
            yield "\n", False
        elif turn.role == "user":
            yield f"{TURN_START}user\n{turn.text}{TURN_END}\n", False
        else:
            first = index == 0 or turns[index - 1].role != "tool"
            last = index + 1 == len(turns) or turns[index + 1].role != "tool"
            head = f"{TURN_START}user\n" if first else "\n"
            tail = f"{TURN_END}\n" if last else ""
            yield f"{head}<tool_response>\n{turn.text}\n</tool_response>{tail}", False
