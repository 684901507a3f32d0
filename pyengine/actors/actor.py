"""The base of actors. An actor owns its state, has one mailbox and one loop; others hold its
ActorRef.

The loop may be a thread of its own (:class:`ThreadActor`), a Rust thread (the Detokenizer) or the
caller's asyncio loop (the Frontend and its Request actors).
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pyengine._core import Mailbox

logger = logging.getLogger("pyengine")

FailureHandler = Callable[[str, BaseException], None]
"""Called once, on the dying actor's thread, with its name and what killed it."""


@dataclass(frozen=True, slots=True)
class ActorRef:
    """A handle to an actor: where to send it messages. Any thread may use it, and copy it."""

    name: str
    mailbox: Mailbox

    def send(self, message: bytes) -> None:
        """Put ``message`` into the actor's mailbox.

        Raises:
            MailboxFull: There is no room now; the message was not sent.
            MailboxClosed: The actor has stopped.
        """
        self.mailbox.send(message)


class ThreadActor(ABC):
    """An actor whose loop is a thread of its own.

    The loop ends when the mailbox is closed and read. If it dies of an exception, the mailbox is
    closed, so that senders get an error, and the failure handler is called.

    Attributes:
        failure: The exception that ended the loop.
        stopping: Whether :meth:`stop` was called.
        on_crash: Called first if it dies, before anything is closed; may end the process.
    """

    def __init__(self, name: str, mailbox: Mailbox, on_failure: FailureHandler) -> None:
        self.ref = ActorRef(name, mailbox)
        self.failure: BaseException | None = None
        self.stopping = False
        self.on_crash: Callable[[BaseException], None] | None = None
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._main, name=f"pyengine-{name}", daemon=True)

    @abstractmethod
    def run(self) -> None:
        """The loop, on the actor's thread; returns when the mailbox is closed and read."""

    @abstractmethod
    def cleanup(self) -> None:
        """Hand back what the actor owns; on its thread, after :meth:`run`, however that ended."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Close the mailbox; the loop ends when it has read what is left. Any thread."""
        self.stopping = True
        self.ref.mailbox.close()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; False if ``timeout`` seconds passed first."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            try:
                self.run()
            except BaseException as error:
                if self.on_crash is not None:
                    self.on_crash(error)
                raise
            finally:
                self.ref.mailbox.close()
                self.cleanup()
        except BaseException as error:  # whatever killed the actor is handed on
            self.failure = error
            logger.exception("the %s actor died", self.ref.name)
            self._on_failure(self.ref.name, error)
