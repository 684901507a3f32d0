"""Queues between an engine and its frontends, and the facts that frontends need.

Processes that serve HTTP import this and none of the engine's parts.
"""

from dataclasses import dataclass, field
from typing import Self

from pyengine._core import Mailbox, Recorder
from pyengine.actors.heartbeat import Heartbeat

SCHEDULER_MAILBOX_BYTES = 1 << 24
FRONTEND_MAILBOX_BYTES = 1 << 22


@dataclass(frozen=True)
class Queues:
    """The mailboxes that join frontends and engine, the recorder of what all of them do, and the
    engine's signs of life.

    Made before either.
    """

    scheduler: Mailbox
    frontends: tuple[Mailbox, ...]
    recorder: Recorder
    heartbeat: Heartbeat

    @classmethod
    def make(cls, frontends: int = 1, recorder: Recorder | None = None) -> Self:
        """Fresh queues for ``frontends`` frontends, and a recorder unless one is given."""
        return cls(
            Mailbox(SCHEDULER_MAILBOX_BYTES),
            tuple(Mailbox(FRONTEND_MAILBOX_BYTES) for _ in range(frontends)),
            recorder or Recorder(),
            Heartbeat.make(frontends),
        )

    def close(self) -> None:
        """Close them all; their readers and writers get MailboxClosed."""
        self.scheduler.close()
        for frontend in self.frontends:
            frontend.close()


@dataclass(frozen=True)
class EngineInfo:
    """The facts about an engine that its frontends need.

    Attributes:
        max_context: Longest prompt and answer together, in tokens.
        vocab_size: Token ids are below this.
        num_blocks: Blocks of the KV cache.
        device: The device in words: its kind (``2 x cpu`` of several ranks), a comma, the rest.
        max_sequences: Most sequences in one step.
        max_tokens_per_step: Most tokens in one step.
        notes: Further facts about the started engine for the user, by name.
        logits_processors: What requests call its logits processors by.
        token_bytes: Bytes of the KV cache that a token takes.
        block_size: Tokens of a block.
        overlap: Steps that are planned while one runs.
    """

    max_context: int
    vocab_size: int
    num_blocks: int
    device: str
    max_sequences: int
    max_tokens_per_step: int
    notes: dict[str, str] = field(default_factory=dict)
    logits_processors: tuple[str, ...] = ()
    token_bytes: int = 0
    block_size: int = 16
    overlap: int = 0
