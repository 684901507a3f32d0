"""Messages that wait until a mailbox has room, in their order."""

import asyncio
from collections import deque
from collections.abc import Callable

from pyengine._core import MailboxClosed, MailboxFull
from pyengine.actors.actor import ActorRef

RETRY_S = 0.005


class Outbox:
    """Messages to one actor that must not be lost. Lives on one asyncio loop.

    Before :meth:`open`, a message that finds no room is tried again with the next message only.
    """

    def __init__(self, receiver: ActorRef, too_large: Callable[[int | None], None]) -> None:
        """Empty.

        Args:
            receiver: The actor that gets the messages.
            too_large: Called with the number that :meth:`send` got, for a message that was dropped
                because not even an empty mailbox has room for it.
        """
        self._receiver = receiver
        self._too_large = too_large
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retry: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """From here on, retry on the running loop."""
        self._loop = asyncio.get_running_loop()

    def send(self, message: bytes, number: int | None = None) -> None:
        """Send now, or as soon as there is room; ``number`` is the request's."""
        self._waiting.append((message, number))
        self._flush()

    def clear(self) -> None:
        """Drop the messages that wait."""
        self._waiting.clear()

    def close(self) -> None:
        """Stop retrying."""
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
