"""Text that is surely the answer's passes the parser by, and nothing else changes by that."""

import json
import random
from dataclasses import dataclass, field

import pytest

from pyengine.chat.formats import FORMATS, ContentDelta, ReasoningDelta, ToolCallStart
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.tools import Tool

TOOL = Tool("look_up", parameters={"type": "object", "properties": {"a": {"type": "string"}}})
PIECES = ("Hello", " world", "\n", "<", "a < b", " [1, 2]", "{", '"x"', ".\n\n", "é", "`", "<|")


@dataclass
class Read:
    """What came of an answer; a call by its name and arguments."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    passed: int = 0


def read(form: ChatFormat, pieces: list[str], *, passes: bool) -> Read:
    parser, made = form.parser([TOOL]), Read()
    for piece in [*pieces, None]:
        if piece is not None and passes and parser.is_content(piece):
            made.text += piece
            made.passed += 1
            continue
        for event in parser.finish() if piece is None else parser.feed(piece):
            if isinstance(event, ContentDelta):
                made.text += event.text
                made.ends.append(event.end)
            elif isinstance(event, ReasoningDelta):
                made.reasoning += event.text
            elif isinstance(event, ToolCallStart):
                made.calls.append([event.name, ""])
            else:
                made.calls[-1][1] += event.fragment
    return made


def cut(text: str, chance: random.Random) -> list[str]:
    pieces = []
    while text:
        size = chance.randint(1, 6)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_answers_are_read_alike_whether_plain_text_passes_by_or_not(name: str) -> None:
    form, chance = FORMATS[name], random.Random(name)
    markers = sorted(form.layout.markers)
    passed = 0
    for _ in range(150):
        words = [chance.choice(PIECES) for _ in range(chance.randint(1, 12))]
        if markers and chance.random() < 0.6:
            words.insert(chance.randint(0, len(words)), chance.choice(markers))
        pieces = cut("".join(words), chance)
        wanted, got = (read(form, pieces, passes=passes) for passes in (False, True))
        assert (got.text, got.reasoning, got.calls) == (wanted.text, wanted.reasoning, wanted.calls)
        # Places behind what passed by are those of the whole text.
        assert set(got.ends) <= set(wanted.ends)
        passed += got.passed
    assert passed > 0


def test_call_behind_text_that_passed_by_is_found() -> None:
    call = json.dumps({"name": "look_up", "arguments": {"a": "b"}})
    text = "I look it up: " * 5 + f"<tool_call>\n{call}\n</tool_call>"
    made = read(FORMATS["hermes"], cut(text, random.Random(1)), passes=True)
    assert made.calls == [["look_up", '{"a": "b"}']]
    assert made.text == ("I look it up: " * 5).rstrip("\n")
    assert made.passed > 5
