"""The handle of an answer in a conversation that is being written."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from pyengine.chat.answer import ChatAnswer, ChatUpdate, ToolCall
from pyengine.chat.reader import Reader
from pyengine.completion import Outcome, Update
from pyengine.logprobs import TokenLogprob
from pyengine.request.generation import Generation, missing
from pyengine.request.growing_text import GrowingText

Entries = tuple[TokenLogprob, ...]
Reading = Callable[[], tuple[Reader | None, tuple[str, ...]]]
"""Makes the reader of an answer, None where all of it is text; and the warnings."""


class _SoFar:
    """The updates of an answer put together: a few bytes a token.

    Log-probabilities are more than that; the generation behind the answer keeps them packed.
    """

    __slots__ = ("calls", "last", "reasoning", "text", "tokens", "warnings")

    def __init__(self) -> None:
        self.text = GrowingText()
        self.reasoning = GrowingText()
        self.tokens = array("I")
        self.calls: list[tuple[str, str, GrowingText]] = []
        self.warnings: tuple[str, ...] = ()
        self.last: ChatUpdate | None = None

    def add(self, update: ChatUpdate) -> None:
        self.text.add(update.text)
        self.reasoning.add(update.reasoning)
        self.tokens.extend(update.token_ids)
        self.warnings += update.warnings
        for delta in update.tool_calls:
            if delta.id is not None and delta.name is not None:
                self.calls.append((delta.id, delta.name, GrowingText()))
            self.calls[delta.index][2].add(delta.arguments)
        self.last = update

    def whole(self, logprobs: Entries | None, text_logprobs: Entries | None) -> ChatAnswer:
        last = self.last
        assert last is not None
        assert last.finish_reason is not None
        return ChatAnswer(
            str(self.text),
            self.tokens.tolist(),
            last.finish_reason,
            last.stop_string,
            last.stop_token,
            last.usage,
            self.warnings,
            str(self.reasoning),
            tuple(
                ToolCall(name_of, name, str(arguments)) for name_of, name, arguments in self.calls
            ),
            logprobs,
            text_logprobs,
        )


class ChatGeneration:
    """An answer that is being written: ``async for update in answer`` streams, ``await answer``
    gives the whole; both may be used, and the answer is kept.

    A handle that is dropped before its end aborts the request, and so does cancelling an
    ``await``. One task at a time may read it.

    Attributes:
        generation: The request behind it, whose text is as the model wrote it.
        prompt_token_ids: The prompt as the model sees it.
    """

    def __init__(
        self,
        generation: Generation,
        reading: Reading = lambda: (None, ()),
    ) -> None:
        """Read ``generation`` by ``reading``, which is called once the request has begun."""
        self.generation = generation
        self._reading: Reading | None = reading
        self._reader: Reader | None = None
        self._warnings: tuple[str, ...] = ()
        self._so_far = _SoFar()

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model sees it."""
        return self.generation.prompt_token_ids

    @property
    def outcome(self) -> Outcome:
        """How the request stands, or how it ended: reason, counts and times."""
        return self.generation.outcome

    def __aiter__(self) -> AsyncIterator[ChatUpdate]:
        return self

    async def __anext__(self) -> ChatUpdate:
        return self._read(await anext(self.generation))

    def pass_text(self, sink: Callable[[str], None], others: Callable[[ChatUpdate], None]) -> None:
        """Give what is text of the answer for sure to ``sink``, and other updates to ``others``.

        See :meth:`Generation.pass_text`; the first update must have been read.
        """
        reader, so_far = self._reader, self._so_far
        if reader is None:
            self.pass_updates(others)
            return

        def reads(text: str, token_ids: "array[int]") -> bool:
            if not reader.is_content(text):
                return False
            so_far.text.add(text)
            so_far.tokens.extend(token_ids)
            sink(text)
            return True

        self.generation.pass_read(reads, lambda update: others(self._read(update)))

    def pass_updates(self, sink: Callable[[ChatUpdate], None]) -> None:
        """Give updates of text that comes alone to ``sink``; see :meth:`Generation.pass_updates`.

        The text of the model, that is: it may be reasoning or a part of a call.
        """
        self.generation.pass_updates(lambda update: sink(self._read(update)))

    def take_back(self) -> None:
        """Take the sink back; see :meth:`Generation.take_back`."""
        self.generation.take_back()

    def _read(self, update: Update) -> ChatUpdate:
        """The update of the answer that one of the generation makes."""
        if self._reading is not None:
            (self._reader, self._warnings), self._reading = self._reading(), None
        if self._reader is None:
            made = ChatUpdate(
                update.text,
                update.token_ids,
                update.finish_reason,
                update.stop_string,
                update.stop_token,
                update.usage,
                update.warnings,
                logprobs=update.logprobs,
                text_logprobs=update.logprobs,
            )
        else:
            made = self._reader.read(update)
        if self._warnings:
            made = replace(made, warnings=self._warnings + made.warnings)
            self._warnings = ()
        self._so_far.add(made)
        return made

    if not TYPE_CHECKING:  # where it would make every misspelt name right

        def __getattr__(self, name: str) -> object:
            raise missing(self, name, ChatAnswer)

    def __await__(self) -> Generator[object, None, ChatAnswer]:
        return self._whole().__await__()

    async def _whole(self) -> ChatAnswer:
        fresh = self._so_far.last is None
        try:
            # Kept where this reads the answer from its start: unpacking them again takes longer.
            updates = [update async for update in self if fresh and update.logprobs is not None]
        except asyncio.CancelledError:
            self.abort()
            raise
        last = self._so_far.last
        if last is None or last.logprobs is None:
            return self._so_far.whole(None, None)
        if updates:
            entries = tuple(entry for update in updates for entry in update.logprobs or ())
            of_text = tuple(entry for update in updates for entry in update.text_logprobs or ())
            return self._so_far.whole(entries, of_text)
        entries = of_text = (await self.generation).logprobs or ()
        if self._reader is not None:
            of_text = self._reader.text_logprobs(entries)
        return self._so_far.whole(entries, of_text)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Stop and free the blocks; a reader gets RequestAbortedError. Any thread."""
        self.generation.abort()
