"""The Request actors.

::

    Frontend ── one per asyncio loop: reads the loop's mailbox, hands each delta to its request
       └── RequestActor ── one per request: prompt, tokens and text so far, the waiting reader
              └── Generation ── the caller's handle: iterate it, or await it; dropping it aborts

Everything runs on the asyncio loop of the service that asked; only ``Generation.abort`` and the
dropping of a ``Generation`` may come from another thread (``request/generation.py``).
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from pyengine._core import Timeline
from pyengine.completion import Completion, Outcome, Update, Usage
from pyengine.errors import (
    EngineDeadError,
    InvalidGrammarError,
    OverloadedError,
    PyengineError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
)
from pyengine.logprobs import Spelling, unspelled
from pyengine.messages import Delta, FinishReason, Submit, encode_extensions
from pyengine.request.features.feature import AnswerPart
from pyengine.request.features.registry import answer_parts, receive
from pyengine.request.growing_text import GrowingText
from pyengine.telemetry.timing import Timing


def _usage(delta: Delta, parts: Iterable[AnswerPart]) -> Usage:
    return Usage(
        delta.prompt_tokens,
        delta.cached_tokens,
        delta.completion_tokens,
        delta.accepted_drafts,
        delta.rejected_drafts,
        **(_merged(part.usage() for part in parts) if parts else _NO_FIELDS),
    )


def _lines(notices: list[str]) -> tuple[str, ...]:
    return tuple(line for notice in notices for line in notice.splitlines())


def _merged(fields: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for each in fields for name, value in each.items()}


Part = TypeVar("Part", bound=AnswerPart)
_NO_FIELDS: dict[str, Any] = {}
_NOTHING = Delta(0, "", (), None, None, None, 0, 0, 0, 0)


class RequestActor:
    """One request's state: what was asked, what came, and the reader that waits for more.

    The Frontend delivers to it on the same loop. The answer is kept as its text and token ids, a
    few bytes a token: for the whole answer, and to go on after a restart of the engine. An actor
    that dies answers its waiter: :meth:`fail`.
    """

    __slots__ = (
        "aborted",
        "committed_ns",
        "deaths",
        "deaths_alone",
        "delivered_ns",
        "end_ns",
        "error",
        "finished",
        "first_ns",
        "fresh",
        "in_updates",
        "last",
        "notices",
        "parts",
        "sent",
        "shown",
        "shown_notices",
        "sink",
        "submit",
        "taken_ns",
        "text",
        "timeline",
        "tokens",
        "unseen",
        "waiter",
    )  # fmt: skip

    def __init__(
        self, submit: Submit, spelling: Spelling = unspelled, timeline: Timeline | None = None
    ) -> None:
        """Nothing has come.

        Args:
            submit: The request.
            spelling: Gives the bytes of tokens, for log-probabilities.
            timeline: Takes the times from the commit of tokens until their reader is done.
        """
        self.submit = submit
        self.parts = answer_parts(submit, spelling)
        self.in_updates = any(part.in_updates for part in self.parts.values())
        self.sent = False  # whether the engine that runs now has the request
        self.aborted = False  # set from any thread
        self.deaths = 0  # engines that died while they had the request
        self.deaths_alone = 0  # those that died while it was on trial
        self.tokens = array("I")  # all tokens that came
        self.shown = 0  # how many of them an Update has shown
        self.text = GrowingText()  # the text that an Update has shown
        self.fresh: list[str] = []  # the text that none has shown
        self.notices: list[str] = []
        self.shown_notices = 0  # how many of them an Update has shown
        self.last = _NOTHING  # the last delta
        self.unseen = False  # whether a delta came since the last Update
        self.finished = False
        self.error: Exception | None = None
        self.timeline = timeline
        self.committed_ns = 0  # when the first of the tokens came that no Update has shown
        self.taken_ns = 0  # the same of the tokens that the reader has taken, and works on
        self.delivered_ns = 0  # when the reader was last done with tokens
        self.first_ns = 0  # when the first token was read
        self.end_ns = 0
        self.waiter: asyncio.Future[None] | None = None
        self.sink: Callable[[RequestActor], None] | None = None  # takes text that comes alone

    def deliver(self, delta: Delta) -> None:
        """Take in one delta; :meth:`show` tells the reader."""
        self.last = delta
        for part in self.parts.values():
            part.take(delta)
        for tag, body in delta.extras:
            receive(self.parts, tag, body)
        if delta.extras and not (delta.tokens or delta.text or delta.notice or delta.finish):
            return  # it came for a part alone
        self.unseen = True
        self.committed_ns = self.committed_ns or delta.committed_ns
        self.tokens.extend(delta.tokens)
        if delta.text:
            self.fresh.append(delta.text)
        if delta.notice:
            self.notices.append(delta.notice)
        if not self.first_ns and delta.tokens:
            self.first_ns = time.monotonic_ns()
        if delta.finish is not None:
            self.end_ns = time.monotonic_ns()
            if delta.finish in ("stop", "length"):
                self.finished = True
            else:
                self.error = self._failure(delta.finish)

    def show(self) -> None:
        """Tell the reader, if it waits, what was delivered: its sink of text alone, else the task.

        To wake a task for every token would cost more than all else that is done for the token.
        What the sink raises is raised.
        """
        if self.waiter is None or self.waiter.done():
            return
        more = self.ended or self.in_updates or self.shown_notices < len(self.notices)
        if self.sink is None or more:
            self._wake()
        elif self.fresh:
            self.sink(self)
            self._done_with()

    def _failure(self, finish: FinishReason) -> PyengineError:
        if finish == "refused":
            return InvalidGrammarError("".join(self.notices), param="grammar")
        if finish == "error":
            cause = "; ".join(self.notices[self.shown_notices :])  # those before were warnings
            if not cause:
                return EngineDeadError("the engine has stopped")
            return RequestFailedError(f"the engine failed on this request: {cause}")
        if finish == "overloaded" and self.notices:
            return OverloadedError("".join(self.notices))
        return _FAILURES[finish]()

    def continued(self) -> Submit:
        """The request for a new engine: the prompt, and all tokens that were generated before."""
        submit = self.submit
        tokens = submit.tokens + self.tokens.tobytes()
        changed = [body for part in self.parts.values() if (body := part.continued()) is not None]
        extensions = submit.extensions | encode_extensions(changed)
        return msgspec.structs.replace(submit, tokens=tokens, extensions=extensions)

    def part(self, kind: type[Part]) -> Part | None:
        """The part of this kind that the answer has, if its request asked for it."""
        return next((part for part in self.parts.values() if isinstance(part, kind)), None)

    def fail(self, error: Exception) -> None:
        """End with ``error``, unless it has ended already."""
        if not self.ended:
            self.error = error
            self.end_ns = time.monotonic_ns()
            self._wake()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finished or self.error is not None

    @property
    def outcome(self) -> Outcome:
        """How the request stands: reason of its end, counts and times."""
        last = self.last
        finish = last.finish
        if finish is None and self.error is not None:
            finish = "abort" if isinstance(self.error, RequestAbortedError) else "error"
        arrival = self.submit.arrival_ns
        admitted = arrival + 1000 * last.queued_us if self.first_ns else 0
        prompt_tokens = self.submit.prompt_length
        usage = msgspec.structs.replace(
            _usage(last, self.parts.values()), prompt_tokens=prompt_tokens
        )
        return Outcome(finish, usage, Timing(arrival, admitted, self.first_ns, self.end_ns))

    async def next_update(self) -> Update | None:
        """Everything since the last update as one, or None at the end.

        Raises:
            PyengineError: The request failed; raised after all that came before was shown.
            Exception: What the sink raised.
        """
        self._done_with()
        while not self.unseen and not self.ended:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        if self.unseen:
            update = self.take_update()
            if update.text or update.token_ids or update.warnings or self.error is None:
                return update
        if self.error is not None:
            raise self.error
        return None

    def coming(self) -> "tuple[str, array[int]]":
        """The text that came since the last update, and its tokens; both stay."""
        fresh = self.fresh
        text = fresh[0] if len(fresh) == 1 else "".join(fresh)
        return text, self.tokens[self.shown :]

    def take_text(self) -> str:
        """The text that came since the last update; its tokens are shown with it."""
        text = "".join(self.fresh)
        self.fresh.clear()
        self.text.add(text)
        self.shown = len(self.tokens)
        self.unseen = False
        self.taken_ns, self.committed_ns = self.taken_ns or self.committed_ns, 0
        return text

    def take_update(self) -> Update:
        """All that came since the last update."""
        last = self.last
        tokens = self.tokens[self.shown :].tolist()
        text = self.take_text()
        notices = self.notices[self.shown_notices :]
        self.shown_notices = len(self.notices)
        return Update(
            text,
            tokens,
            last.finish if last.finish in ("stop", "length") else None,
            last.stop_string,
            last.stop_token,
            _usage(last, self.parts.values()),
            () if last.finish in ("refused", "overloaded", "error") else _lines(notices),
            **(
                _merged(part.update(text) for part in self.parts.values())
                if self.parts
                else _NO_FIELDS
            ),
        )

    async def completion(self) -> Completion:
        """The whole answer, from the first token on, whatever was iterated before."""
        while await self.next_update() is not None:
            pass
        last = self.last
        assert last.finish == "stop" or last.finish == "length"
        return Completion(
            str(self.text),
            self.tokens.tolist(),
            last.finish,
            last.stop_string,
            last.stop_token,
            _usage(last, self.parts.values()),
            _lines(self.notices),
            **_merged(part.completion() for part in self.parts.values()),
        )

    def _done_with(self) -> None:
        """The reader is done with what it has taken: it was written, or handled."""
        if self.taken_ns:
            if self.timeline is not None:
                since, number = self.delivered_ns or self.submit.arrival_ns, self.submit.key.number
                self.delivered_ns = self.timeline.delivered(
                    self.taken_ns, since, not self.delivered_ns, number
                )
            self.taken_ns = 0

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


_FAILURES: dict[str, Callable[[], PyengineError]] = {
    "abort": lambda: RequestAbortedError("the request was aborted"),
    "timeout": lambda: RequestTimeoutError("the request's deadline passed before it was done"),
    "overloaded": lambda: OverloadedError("the waiting queue is full; try again in a moment"),
}
