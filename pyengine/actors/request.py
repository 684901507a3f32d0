"""The Request actors and their handle.

::

    Frontend ── one per asyncio loop: reads the loop's mailbox, hands each delta to its request
       └── RequestActor ── one per request: prompt, tokens and text so far, who waits for more
              └── Generation ── the caller's handle: iterate it, or await it; dropping it aborts

All of it runs on the asyncio loop of the service that asked; only ``Generation.abort`` and the
dropping of a ``Generation`` may come from another thread.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, replace
from typing import Literal, Self

import msgspec

from pyengine.errors import (
    EngineDeadError,
    InvalidGrammarError,
    OverloadedError,
    PyengineError,
    RequestAbortedError,
    RequestTimeoutError,
)
from pyengine.messages import Delta, FinishReason, RequestKey, Submit
from pyengine.telemetry.timing import Timing


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them from the prefix cache.
        completion_tokens: Tokens generated.
        accepted_drafts: Those of them that were drafted, by whatever proposer, and found right.
        rejected_drafts: Tokens that were drafted and found wrong.
        reasoning_tokens: Tokens of the reasoning before the answer; None where nobody counts them.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What a request got since the last update.

    Attributes:
        text: New text: whole characters, never a part of a stop string. Updates concatenate to the
            completion's text.
        token_ids: The tokens behind it, also those whose text is still withheld.
        finish_reason: ``stop`` or ``length`` in the last update, else None.
        stop_string: The stop string that ended the request, if one did.
        stop_token: The stop token that ended the request, if one did.
        usage: Counts up to here.
        warnings: What of the request's grammar is not enforced, as it allowed; told once.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer; the fields are those of :class:`Update`, over the whole request."""

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request stands, or how it ended.

    Attributes:
        finish: Why it ended; None while it runs.
        usage: Counts up to here.
        timing: Its moments up to here.
    """

    finish: FinishReason | None
    usage: Usage
    timing: Timing


def _usage(delta: Delta) -> Usage:
    return Usage(
        delta.prompt_tokens,
        delta.cached_tokens,
        delta.completion_tokens,
        delta.accepted_drafts,
        delta.rejected_drafts,
    )


def _warnings(deltas: list[Delta]) -> tuple[str, ...]:
    return tuple(line for delta in deltas if delta.notice for line in delta.notice.splitlines())


def _merge(deltas: list[Delta]) -> Update:
    """One update of all ``deltas`` (at least one), in their order."""
    last = deltas[-1]
    return Update(
        text="".join(delta.text for delta in deltas),
        token_ids=[token for delta in deltas for token in delta.tokens],
        finish_reason=last.finish if last.finish in ("stop", "length") else None,
        stop_string=last.stop_string,
        stop_token=last.stop_token,
        usage=_usage(last),
        warnings=() if last.finish == "refused" else _warnings(deltas),
    )


class RequestActor:
    """One request's state: what was asked, what came, and who waits for more.

    Its mailbox is ``deltas``, filled by the Frontend on the same loop. An actor that dies answers
    its waiter: :meth:`fail`.
    """

    __slots__ = (
        "aborted", "deaths", "deltas", "end_ns", "error", "finished", "first_ns", "seen", "sent",
        "submit", "waiter",
    )  # fmt: skip

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.sent = False  # whether the engine that runs now has it
        self.aborted = False  # nobody wants it any more; set from any thread
        self.deaths = 0  # engines that died while they had it
        self.seen = 0  # deltas that an Update has shown already
        self.deltas: list[Delta] = []
        self.finished = False
        self.error: PyengineError | None = None
        self.first_ns = 0  # when the first token was read
        self.end_ns = 0
        self.waiter: asyncio.Future[None] | None = None

    def deliver(self, delta: Delta) -> None:
        """Take in one delta."""
        self.deltas.append(delta)
        if not self.first_ns and delta.tokens:
            self.first_ns = time.monotonic_ns()
        if delta.finish is not None:
            self.end_ns = time.monotonic_ns()
            if delta.finish in ("stop", "length"):
                self.finished = True
            else:
                self.error = self._failure(delta.finish)
        self._wake()

    def _failure(self, finish: FinishReason) -> PyengineError:
        if finish == "refused":
            notices = [delta.notice for delta in self.deltas if delta.notice]
            return InvalidGrammarError("".join(notices), param="grammar")
        return _FAILURES[finish]()

    def continued(self) -> Submit:
        """What to submit to a new engine: the prompt, and what was generated before."""
        generated = array("I", [token for delta in self.deltas for token in delta.tokens])
        if not generated:
            return self.submit
        return msgspec.structs.replace(self.submit, tokens=self.submit.tokens + generated.tobytes())

    def fail(self, error: PyengineError) -> None:
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
        """How it stands."""
        last = self.deltas[-1] if self.deltas else _NOTHING
        finish = last.finish
        if finish is None and self.error is not None:
            finish = "abort" if isinstance(self.error, RequestAbortedError) else "error"
        arrival = self.submit.arrival_ns
        admitted = arrival + 1000 * last.queued_us if self.first_ns else 0
        prompt_tokens = self.submit.prompt_length
        usage = replace(_usage(last), prompt_tokens=prompt_tokens)
        return Outcome(finish, usage, Timing(arrival, admitted, self.first_ns, self.end_ns))

    async def next_update(self) -> Update | None:
        """Everything since the last update as one, or None at the end.

        Raises:
            PyengineError: The request did not end well; after what came before was shown.
        """
        while self.seen == len(self.deltas) and not self.ended:
            if self.waiter is None:
                self.waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.waiter)
        if self.seen < len(self.deltas):
            fresh = self.deltas[self.seen :]
            self.seen = len(self.deltas)
            update = _merge(fresh)
            if update.text or update.token_ids or update.warnings or self.error is None:
                return update
        if self.error is not None:
            raise self.error
        return None

    async def completion(self) -> Completion:
        """The whole answer, from the first token on, whatever was iterated before."""
        while await self.next_update() is not None:
            pass
        whole = _merge(self.deltas)
        assert whole.finish_reason is not None
        return Completion(
            whole.text,
            whole.token_ids,
            whole.finish_reason,
            whole.stop_string,
            whole.stop_token,
            whole.usage,
            whole.warnings,
        )

    def _wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


_NOTHING = Delta(0, "", (), None, None, None, 0, 0, 0, 0)

_FAILURES: dict[str, Callable[[], PyengineError]] = {
    "abort": lambda: RequestAbortedError("the request was aborted"),
    "timeout": lambda: RequestTimeoutError("the request's deadline passed before it was done"),
    "overloaded": lambda: OverloadedError("the waiting queue is full; try again in a moment"),
    "error": lambda: EngineDeadError("the engine failed on this request"),
}


class Generation:
    """A running request: ``async for update in generation`` streams, ``await generation`` gives the
    whole answer; both may be used, and the answer is kept.

    A handle that is dropped before its end aborts the request, and so does cancelling an
    ``await``. One task at a time may read it.

    Attributes:
        prompt_token_ids: The prompt as the model sees it.
    """

    def __init__(
        self,
        actor: RequestActor,
        prompt_token_ids: list[int],
        abort: Callable[[RequestKey], None],
    ) -> None:
        self.prompt_token_ids = prompt_token_ids
        self._actor = actor
        self._abort = abort

    @property
    def outcome(self) -> Outcome:
        """How it stands, or how it ended: reason, counts and times."""
        return self._actor.outcome

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        update = await self._actor.next_update()
        if update is None:
            raise StopAsyncIteration
        return update

    def __await__(self) -> Generator[object, None, Completion]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        try:
            return await self._actor.completion()
        except asyncio.CancelledError:
            self.abort()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Stop and free the blocks; whoever reads gets RequestAbortedError. Any thread."""
        if not self._actor.ended:
            self._abort(self._actor.submit.key)

    def __del__(self) -> None:
        if not self._actor.ended:
            self._abort(self._actor.submit.key)
