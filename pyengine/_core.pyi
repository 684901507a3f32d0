"""The Rust module: the engine's hot paths. Checked against the binary by stubtest.

Every method that may take long releases the GIL; those of Mailbox that never block keep it.
Rust panics arrive as ``RuntimeError``.
"""

from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

__version__: str

class MailboxFull(Exception):
    """The ring has no room for the message now."""

class MailboxClosed(Exception):
    """The other side has closed the mailbox, or died."""

@final
class Mailbox:
    """A lock-free ring of byte messages: many writers, one reader, bounded.

    Any thread of any process may send; one thread at a time may receive (drain, wait, arm), of the
    process that received first or, once that one has died, of the next that tries. The memory is an
    anonymous shared mapping, so that the same type serves threads and processes; no name is left in
    any file system. Linux only.
    """

    def __new__(cls, capacity: int = 1 << 20) -> Mailbox:
        """A ring of ``capacity`` bytes (rounded up to a power of two and at least a page).

        Raises:
            ValueError: ``capacity`` is 0 or over 1 GiB.
        """

    @staticmethod
    def attach(memory_fd: int, event_fd: int) -> Mailbox:
        """The ring that another process made, by the two descriptors inherited from it.

        They are duplicated: the caller may close its own afterwards.

        Raises:
            ValueError: They are not a mailbox's.
            OSError: They are not open, or could not be mapped.
        """

    def descriptors(self) -> tuple[int, int]:
        """(memory, event) descriptors to hand to a child process (``pass_fds``).

        They stay open while this object lives.
        """

    def send(self, message: Buffer) -> None:
        """Append one message and wake the reader if it sleeps. Never blocks.

        In the ring it takes its length rounded up to 64 bytes. A thread's messages stay in order.

        Raises:
            MailboxFull: No room now; the message was not sent.
            MailboxClosed: The mailbox is closed, or it is full and its reader has died.
            ValueError: The message is longer than half of the capacity.
        """

    def drain(self, limit: int = 1024) -> list[bytes]:
        """Up to ``limit`` messages, in order; [] when there are none.

        Raises:
            MailboxClosed: Closed, and everything was read.
            ValueError: Another thread, or a living other process, is receiving.
        """

    def wait(self, timeout: float | None = None, spin_us: int = 0) -> bool:
        """Spin ``spin_us`` microseconds, then sleep; True if there is a message.

        Sleeps until there is a message, the mailbox closes or ``timeout`` seconds pass. Releases
        the GIL unless there is a message already; signal handlers run.

        Raises:
            ValueError: ``timeout`` is negative or NaN, or a living other process is the reader.
        """

    def arm(self) -> bool:
        """Ask for the next send to make :meth:`fileno` readable.

        False, and not armed, if there are messages already or the mailbox is closed. For
        ``loop.add_reader``: drain, then arm, until arm is True.

        Raises:
            ValueError: A living other process is the reader.
        """

    def fileno(self) -> int:
        """The descriptor that becomes readable when an armed ring gets a message or closes.

        Also 300 ms after it was armed in vain: the reader drains and arms again, and so gets past a
        writer that was killed in the middle of a message. It is this process's own, an epoll over
        the shared eventfd and a timer; open while this object lives.
        """

    def close(self) -> None:
        """Refuse further sends; the reader gets what is left, then MailboxClosed.

        Idempotent, from any side.
        """

    def reader_alive(self) -> bool:
        """False if the process that received last has died. True before anybody has received."""

    @property
    def closed(self) -> bool:
        """Whether somebody closed it. There may be messages left."""

    @property
    def capacity(self) -> int:
        """Bytes."""

    @property
    def used(self) -> int:
        """Bytes taken by messages that are not read yet."""

@final
class KvAllocator:
    """Owner of all KV blocks: reference counts, the prefix tree, eviction. One thread at a time."""

    def __new__(cls, num_blocks: int, block_size: int = 16, prefix_cache: bool = True) -> KvAllocator: ...
    def counts(self) -> tuple[int, int, int]:
        """(free, cached, held); their sum is ``num_blocks``."""

    def check(self) -> None:
        """Check every invariant, in O(blocks). Raises RuntimeError naming the one that is broken."""

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes nobody holds; returns how many blocks became free."""

    # The direct interface that tests and benches use; the planner asks in Rust.
    def match_prefix(self, tokens: Buffer, salt: int = 0) -> list[int]:
        """Hold and return the blocks of the longest cached prefix of ``tokens`` (u32), whole blocks only."""

    def insert(self, tokens: Buffer, blocks: Sequence[int], salt: int = 0) -> int:
        """Remember the full blocks of ``tokens``; returns how many were new."""

    def allocate(self, count: int) -> list[int]:
        """Hold ``count`` fresh blocks, evicting what nobody holds. Raises MemoryError."""

    def fork(self, blocks: Sequence[int]) -> None:
        """Hold ``blocks`` once more."""

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of ``blocks``, each once."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...

@final
class StepLayout:
    """Where each field of a step lies in the one buffer that planner and runner share."""

    def __new__(cls, max_tokens: int, max_rows: int, max_pages: int) -> StepLayout: ...
    @property
    def nbytes(self) -> int: ...
    def fields(self) -> dict[str, tuple[str, int, int]]:
        """name -> (numpy dtype, byte offset, number of elements)."""

@final
class Planner:
    """The scheduler's state and its two calls. One thread at a time."""

    def __new__(
        cls,
        allocator: KvAllocator,
        layout: StepLayout,
        detokenizer: Mailbox,
        *,
        max_sequences: int,
        max_tokens_per_step: int,
        max_context: int,
        max_waiting: int,
        prefill_chunk: int = 0,
    ) -> Planner: ...
    def drain(self, mailbox: Mailbox) -> list[bytes]:
        """Take in every message of the scheduler's mailbox; returns those that are not for the planner."""

    def plan(self, buffers: Buffer) -> int:
        """Plan a step and write it into ``buffers`` (writable, ``StepLayout.nbytes``).

        Returns the number of rows; 0 when there is nothing to run now.
        """

    def commit(self, sampled: Buffer) -> int:
        """Take the tokens (int32, one per sampling row) of the oldest step in flight.

        Sends one TokensOut to the detokenizer. Returns how many sequences ended.
        """

    def fail_step(self) -> int:
        """End every request of the oldest step in flight with finish ``error``; returns how many."""

    def abort_all(self) -> int:
        """End everything, waiting or running, with finish ``error``; returns how many."""

    def stats(self) -> dict[str, int]:
        """running, waiting, in_flight, preemptions, prompt_tokens, cached_tokens, completion_tokens, steps."""

    @property
    def has_work(self) -> bool:
        """Whether plan() could find something to run, or a step is in flight."""

@final
class Vocabulary:
    """The bytes of every token, from a Hugging Face tokenizer.json (byte-level or byte-fallback)."""

    @staticmethod
    def from_tokenizer_json(text: str) -> Vocabulary: ...
    def __len__(self) -> int: ...
    def token_bytes(self, token: int) -> bytes: ...
    def is_special(self, token: int) -> bool: ...

@final
class StreamDecoder:
    """Incremental detokenization of one sequence, with stop strings; what the Detokenizer runs per request."""

    def __new__(
        cls,
        vocabulary: Vocabulary,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> StreamDecoder: ...
    def push(self, tokens: Sequence[int]) -> tuple[str, str | None]:
        """New text, and the stop string that ended it, if one did."""

    def finish(self) -> str:
        """The text that was withheld, now that nothing follows."""

@final
class Detokenizer:
    """The Detokenizer actor: a Rust thread that never takes the GIL."""

    def __new__(
        cls, vocabulary: Vocabulary, inbox: Mailbox, scheduler: Mailbox, frontends: Sequence[Mailbox]
    ) -> Detokenizer: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end (its inbox was closed and read). True if it has."""

    @property
    def open_streams(self) -> int:
        """Requests that the detokenizer has state for."""

    @property
    def failure(self) -> str | None:
        """Why the thread died, if it did."""
