"""The caller's handle of a request: iterate it, or await it; dropping it aborts."""

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Self

from pyengine.completion import Completion, Outcome, Update, Usage
from pyengine.errors import RequestAbortedError
from pyengine.logprobs import TokenLogprob
from pyengine.messages import RequestKey
from pyengine.request.features.logprobs import LogProbs
from pyengine.request.features.pooling import Vector
from pyengine.request.features.prompt_logprobs import PromptLogProbs
from pyengine.request.request import RequestActor
from pyengine.telemetry.timing import Timing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Generation:
    """A running request: ``async for update in generation`` streams, ``await generation`` gives the
    whole answer; both may be used, and the answer is kept.

    A handle that is dropped before its end aborts the request, and so does cancelling an
    ``await``. One task at a time may read it.

    A long prompt is prepared on a thread, and the request begins when that is done. Until then the
    handle can be awaited, iterated, aborted and dropped; an error of the preparation is raised
    where the handle is awaited.
    """

    def __init__(
        self,
        actor: "RequestActor | asyncio.Task[RequestActor]",
        abort: Callable[[RequestKey], None],
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Read ``actor``, once ``ready`` has been awaited; a task prepares the request first."""
        self._ready = ready
        self._task: asyncio.Task[RequestActor] | None = None
        self._actor: RequestActor
        if isinstance(actor, asyncio.Task):
            self._task = actor
        else:
            self._actor = actor
        self._abort = abort

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model sees it; made anew at each call."""
        return array("I", self._begun().submit.tokens).tolist()

    @property
    def outcome(self) -> Outcome:
        """How the request stands, or how it ended: reason, counts and times."""
        if self._task is not None and not _has_begun(self._task):
            return Outcome(None, Usage(0, 0, 0), Timing(0, 0, 0, 0))
        return self._begun().outcome

    @property
    def vector(self) -> "NDArray[np.float32]":
        """The vector of a request that pools, float32 [hidden_size], once it was awaited."""
        import numpy as np  # of embeddings alone; half of the time until the port listens

        vector = self._begun().part(Vector)
        return np.frombuffer(b"" if vector is None else vector.states, np.float32)

    def pass_text(self, sink: Callable[[str], None], others: object = None) -> None:
        """Give text that comes alone to ``sink``, on the loop, while a task waits for an update.

        Whatever else comes, and the end, is an :class:`Update` as before. What the sink raises ends
        the request, and is raised where the task waits. ``others`` is for answers that are
        read, see :meth:`pass_read`.
        """
        self._begun().sink = lambda actor: sink(actor.take_text())

    def pass_updates(self, sink: Callable[[Update], None]) -> None:
        """As :meth:`pass_text`, with the update that the text makes."""
        self._begun().sink = lambda actor: sink(actor.take_update())

    def pass_read(
        self, reads: "Callable[[str, array[int]], bool]", others: Callable[[Update], None]
    ) -> None:
        """Give text that comes alone, and its token ids, to ``reads``.

        Where that is false, it has not taken them, and the update goes to ``others``.
        """

        def sink(actor: RequestActor) -> None:
            if reads(*actor.coming()):
                actor.take_text()
            else:
                others(actor.take_update())

        self._begun().sink = sink

    def take_back(self) -> None:
        """Take the sink back: all is an update for the task that waits again."""
        self._begun().sink = None

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        await self._prepare()
        update = await self._actor.next_update()
        if update is None:
            raise StopAsyncIteration
        return update

    def __await__(self) -> Generator[object, None, Completion]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        try:
            await self._prepare()
            return await self._actor.completion()
        except asyncio.CancelledError:
            self.abort()
            raise

    def _begun(self) -> RequestActor:
        """The request, which must have begun."""
        if self._task is not None:
            if not _has_begun(self._task):
                raise RuntimeError("the request is still being prepared: await or iterate it first")
            self._actor, self._task = self._task.result(), None
        return self._actor

    async def _prepare(self) -> None:
        if self._task is not None:
            try:
                await asyncio.shield(self._task)
            except asyncio.CancelledError:
                if self._task.cancelled():
                    raise RequestAbortedError("the request was aborted") from None
                raise
            self._begun()
        if self._ready is not None:
            await self._ready()
            self._ready = None

    def token_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of all tokens so far, of those without text too; () if unwanted."""
        logprobs = self._begun().part(LogProbs)
        return () if logprobs is None else logprobs.records.every()

    def prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """The log-probabilities of the prompt, whole once its first update is there; see
        :attr:`pyengine.completion.Completion.prompt_logprobs`.
        """
        scored = self._begun().part(PromptLogProbs)
        return None if scored is None else scored.entries()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Stop and free the blocks; a reader gets RequestAbortedError. Any thread."""
        if self._task is not None:
            # Cancelling is for the loop's thread; a loop that is closed has no request to end.
            with contextlib.suppress(RuntimeError):
                abandon = partial(_abandon, self._task, self._abort)
                self._task.get_loop().call_soon_threadsafe(abandon)
        elif not self._actor.ended:
            self._abort(self._actor.submit.key)

    def __del__(self) -> None:
        self.abort()

    if not TYPE_CHECKING:  # where it would make every misspelt name right

        def __getattr__(self, name: str) -> object:
            raise missing(self, name, Completion)


def missing(handle: object, name: str, answer: type) -> AttributeError:
    """The error of a handle that has no attribute ``name``, which its ``answer`` may have."""
    text = f"{type(handle).__name__!r} object has no attribute {name!r}"
    if hasattr(answer, name):
        text += f"; its answer has, and is not there yet: answer = await it, then answer.{name}"
    return AttributeError(text, name=name, obj=handle)


def _has_begun(task: "asyncio.Task[RequestActor]") -> bool:
    """Whether the preparation is over and gave a request."""
    return task.done() and not task.cancelled() and task.exception() is None


def _abandon(task: "asyncio.Task[RequestActor]", abort: Callable[[RequestKey], None]) -> None:
    """End a preparation, or the request that it has begun meanwhile."""
    if not task.done():
        task.cancel()
    elif _has_begun(task) and not task.result().ended:
        abort(task.result().submit.key)
