"""Messages that wait until a mailbox has room, in their order."""

import asyncio
from collections import deque
from collections.abc import Callable

from pyengine._core import MailboxClosed, MailboxFull
from pyengine.actors.actor import ActorRef

RETRY_S = 0.005


class Outbox:
    """What is to be sent to one actor and must not be lost. Lives on one asyncio loop.

    What :meth:`open` has not been called for is tried once, and again at the next message.
    """

    def __init__(self, receiver: ActorRef, too_large: Callable[[int | None], None]) -> None:
        """Empty.

        Args:
            receiver: Whom the messages go to.
            too_large: Told whose message it was (see :meth:`send`) that no mailbox has room for,
                not even an empty one; it was dropped.
        """
        self._receiver = receiver
        self._too_large = too_large
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retry: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Try again by itself from here on, on the running loop."""
        self._loop = asyncio.get_running_loop()

    def send(self, message: bytes, number: int | None = None) -> None:
        """Send now, or as soon as there is room; ``number``: whose request it is."""
        self._waiting.append((message, number))
        self._flush()

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def close(self) -> None:
        """Try no more."""
        self._loop = None

    def _flush(self) -> None:
        try:
            while self._waiting:
                message, number = self._waiting[0]
                try:
                    self._receiver.send(message)
                except ValueError:  # the mailbox will never have room for it
                    self._waiting.popleft()
                    self._too_large(number)
                else:
                    self._waiting.popleft()
        except MailboxFull:
            if self._loop is not None and self._retry is None:
                self._retry = self._loop.call_later(RETRY_S, self._flush_again)
        except MailboxClosed:
            self._waiting.clear()

    def _flush_again(self) -> None:
        self._retry = None
        self._flush()
