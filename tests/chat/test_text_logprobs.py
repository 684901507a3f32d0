"""Tokens of an answer whose log-probabilities are reported with its text."""

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pyengine.chat.answer import ChatUpdate
from pyengine.chat.formats import FORMATS
from pyengine.chat.reader import Reader
from pyengine.chat.text_logprobs import TextLogprobs
from pyengine.completion import Update, Usage
from pyengine.logprobs import TokenLogprob
from tests.chat.test_formats import TOOLS

# What is written, and whether it is the answer's text; the newlines at marks are none.
PARTS = [
    ("<think>", False),
    ("Let me\nsee, I look.", False),
    ("</think>", False),
    ("\n\n", False),
    ("I look.\n<", True),
    ("3 times", True),
    ("\n", False),
    ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', False),
]
WRITTEN = "".join(text for text, _ in PARTS)
OF_TEXT = [is_text for text, is_text in PARTS for _ in text]


def entry(begin: int, end: int) -> TokenLogprob:
    text = WRITTEN[begin:end]
    return TokenLogprob(begin, text, text.encode(), -0.5, begin, ())


def updates(cuts: list[int], late: list[bool]) -> list[Update]:
    """What is written, cut at ``cuts`` into tokens; a late one comes with the update after its."""
    made: list[Update] = []
    held: tuple[TokenLogprob, ...] = ()
    for number, (begin, end) in enumerate(pairwise(cuts)):
        last = end == len(WRITTEN)
        entries, held = (*held, entry(begin, end)), ()
        if late[number % len(late)] and not last:
            entries, held = entries[:-1], entries[-1:]
        finish: Literal["stop"] | None = "stop" if last else None
        usage = Usage(1, 0, number + 1)
        text = WRITTEN[begin:end]
        made.append(Update(text, [begin], finish, None, None, usage, (), entries))
    return made


def read(given: list[Update]) -> list[ChatUpdate]:
    reader = Reader(FORMATS["qwen3"].parser(TOOLS))
    return [reader.read(update) for update in given]


@given(
    st.sets(st.integers(1, len(WRITTEN) - 1)),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_tokens_of_the_text(inner: set[int], late: list[bool]) -> None:
    cuts = sorted({0, len(WRITTEN), *inner})
    told = read(updates(cuts, late))
    assert "".join(update.text for update in told) == "I look.\n<3 times"
    entries = [each for update in told for each in update.text_logprobs or ()]
    wanted = [(begin, end) for begin, end in pairwise(cuts) if any(OF_TEXT[begin:end])]
    assert [(each.text_offset, each.text_offset + len(each.token)) for each in entries] == wanted
    everything = [each for update in told for each in update.logprobs or ()]
    assert len(everything) == len(cuts) - 1


def test_nothing_is_told_where_nothing_is_wanted() -> None:
    given = [replace(update, logprobs=None) for update in updates([0, 40, len(WRITTEN)], [False])]
    assert [update.text_logprobs for update in read(given)] == [None, None]


@pytest.mark.parametrize("before", [False, True])
def test_a_span_may_come_before_its_tokens_or_after(before: bool) -> None:
    tokens = [entry(begin, begin + 1) for begin in range(4)]
    spoken = TextLogprobs()
    told: list[TokenLogprob] = []
    if not before:
        told += spoken.known(tokens)
        assert not told
    spoken.add_span(1, 2, is_text=True)
    spoken.add_span(2, 3, is_text=True)
    told += spoken.known(tokens if before else ())
    assert told == tokens[1:3]
