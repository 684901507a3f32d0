"""Reading answers as they come: counted, hidden and joined parts."""

import re
import tracemalloc
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Literal

import pytest

from pyengine.chat.answer import ToolCall
from pyengine.chat.formats import FORMATS
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.reader import Reader, ReasoningTokens
from pyengine.chat.tools import Tool
from pyengine.completion import Completion, Update, Usage
from pyengine.errors import RequestAbortedError

OPEN, CLOSE, WORD = 7, 8, 20
MARKERS = ReasoningTokens(OPEN, CLOSE)
QWEN3 = FORMATS["qwen3"]


def _update(
    text: str, tokens: list[int] | None = None, finish: Literal["stop", "length"] | None = None
) -> Update:
    return Update(text, tokens or [], finish, None, None, Usage(1, 0, 1))


class _Generation:
    """Updates that are there already; then perhaps an error."""

    def __init__(self, updates: list[Update], error: Exception | None = None) -> None:
        self._all = updates
        self._updates: Iterator[Update] = iter(updates)
        self._error = error
        self.prompt_token_ids = [1]
        self.aborted = False

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        for update in self._updates:
            return update
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def __await__(self) -> Generator[object, None, Completion]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        last, finish = self._all[-1], self._all[-1].finish_reason
        assert finish is not None
        tokens = [token for update in self._all for token in update.token_ids]
        text = "".join(update.text for update in self._all)
        return Completion(text, tokens, finish, None, None, last.usage)

    def abort(self) -> None:
        self.aborted = True


def _answer(updates: list[Update], error: Exception | None = None, **options: Any) -> Any:
    parser = QWEN3.parser([Tool("now")], reasoning_open=bool(options.get("reasoning_open")))
    generation: Any = _Generation(updates, error)
    return ChatGeneration(generation, lambda: (Reader(parser, **options), ()))


@pytest.mark.parametrize(
    ("pieces", "is_open", "count"),
    [
        ([("<think>", [OPEN]), ("a", [WORD]), ("</think>", [CLOSE]), ("b", [WORD])], False, 3),
        ([("<think>a</think>b", [OPEN, WORD, CLOSE, WORD])], False, 3),
        ([("\n<think>a", [WORD, OPEN, WORD]), ("b", [WORD])], False, 3),
        ([("a", [WORD, WORD]), ("</think>b", [CLOSE, WORD])], True, 3),
        ([("b", [WORD]), ("<think>", [OPEN]), ("a", [WORD])], False, 0),
        ([("b<think>", [WORD, OPEN]), ("a", [WORD])], False, 0),
        ([("b", [WORD])], False, 0),
    ],
)
async def test_the_tokens_of_the_reasoning(
    pieces: list[tuple[str, list[int]]], is_open: bool, count: int
) -> None:
    updates = [_update(text, tokens) for text, tokens in pieces]
    updates.append(_update("", [], "stop"))
    answer = await _answer(updates, markers=MARKERS, reasoning_open=is_open)
    assert answer.usage.reasoning_tokens == count
    uncounted = await _answer(updates, reasoning_open=is_open)
    assert uncounted.usage.reasoning_tokens is None
    of_text = await _answer(updates, count=len, reasoning_open=is_open)
    assert of_text.usage.reasoning_tokens == len(answer.reasoning)
    assert uncounted.text == answer.text
    assert (answer.reasoning != "") == (count > 0)


async def test_special_tokens_are_left_out_of_text_but_not_of_arguments() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"a": "<|x|>"}}\n</tool_call>'
    updates = [_update(text) for text in ("<think>a<|x|>b</think>", "c<|x|>d\n", call)]
    answer = await _answer([*updates, _update("", [], "stop")], hidden=re.compile(r"<\|x\|>"))
    assert (answer.reasoning, answer.text) == ("ab", "cd")
    assert answer.tool_calls[0].arguments == '{"a": "<|x|>"}'
    assert answer.finish_reason == "tool_calls"


async def test_iterated_first_and_awaited_then() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    answer = _answer([_update("Now.\n"), _update(call), _update("", [], "stop")])
    first = await anext(answer)
    assert first.text == "Now."
    whole = await answer
    assert whole.text == "Now."
    assert whole.message == {
        "role": "assistant",
        "content": "Now.",
        "tool_calls": [
            {
                "id": whole.tool_calls[0].id,
                "type": "function",
                "function": {"name": "now", "arguments": "{}"},
            }
        ],
    }
    assert whole.tool_calls == (ToolCall(whole.tool_calls[0].id, "now", "{}"),)
    assert await answer == whole


async def test_text_that_looked_like_a_call_is_not_lost() -> None:
    answer = await _answer([_update("a\n<tool_"), _update("", [], "length")])
    assert (answer.text, answer.finish_reason) == ("a\n<tool_", "length")


async def test_an_error_is_raised_and_leaving_aborts() -> None:
    answer = _answer([_update("a")], RequestAbortedError("gone"))
    with pytest.raises(RequestAbortedError):
        await answer
    async with _answer([_update("a")]) as answer:
        pass
    assert answer.generation.aborted


async def test_warnings_come_with_the_first_update() -> None:
    generation: Any = _Generation([_update("a"), _update("b", [], "stop")])
    answer = ChatGeneration(generation, lambda: (None, ("careful",)))
    assert [update.warnings async for update in answer] == [("careful",), ()]
    assert (await answer).warnings == ("careful",)
    assert (await answer).message == {"role": "assistant", "content": "ab"}


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_call_that_is_not_whole_is_no_reason_to_finish(
    finish: Literal["stop", "length"],
) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
    cut = await _answer([_update(call[:-25]), _update("", [], finish)])
    assert cut.finish_reason == finish
    assert len(cut.tool_calls) == 1
    second = await _answer([_update(call + call[:-25]), _update("", [], finish)])
    assert second.finish_reason == finish
    whole = await _answer([_update(call), _update("", [], finish)])
    assert whole.finish_reason == ("tool_calls" if finish == "stop" else "length")
    head = await _answer([_update(call + call[:20]), _update("", [], finish)])
    assert (head.text, len(head.tool_calls)) == ("", 1)
    assert head.finish_reason == whole.finish_reason


class _Endless(_Generation):
    """A word after the other, of which it keeps none."""

    async def __anext__(self) -> Update:
        return _update("word ", [WORD])


async def test_a_long_answer_is_a_few_bytes_a_token() -> None:
    generation: Any = _Endless([])
    answer = ChatGeneration(generation, lambda: (Reader(QWEN3.parser([Tool("now")])), ()))
    await anext(answer)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5000):
            await anext(answer)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 5000 < 32
