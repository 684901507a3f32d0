"""The Detokenizer actor: a Rust thread that turns tokens into text and never takes the GIL.

Bytes of tokens, UTF-8 assembly, stop strings and the deltas for each frontend are all in
``rust/detokenizer/src``; this file starts it and waits for its end.
"""

from collections.abc import Sequence

from pyengine._core import Detokenizer, Mailbox, Timeline, Vocabulary
from pyengine.actors.actor import ActorRef


class DetokenizerActor:
    """Owns the Rust thread. It ends when its mailbox is closed and read, and then closes the
    frontends' mailboxes, so that they see it.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        vocabulary: Vocabulary,
        scheduler: ActorRef,
        frontends: Sequence[ActorRef],
        timeline: Timeline,
    ) -> None:
        self.ref = ActorRef("detokenizer", mailbox)
        self._frontends = tuple(frontends)
        self._thread = Detokenizer(
            vocabulary,
            mailbox,
            scheduler.mailbox,
            [frontend.mailbox for frontend in frontends],
            timeline,
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; False if ``timeout`` seconds passed first."""
        return self._thread.join(timeout)

    @property
    def failure(self) -> str | None:
        """The error that ended the thread, if one did."""
        return self._thread.failure
