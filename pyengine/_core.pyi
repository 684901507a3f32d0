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

        Also when a writer dies in the middle of the message that the reader waits for. It is this
        process's own, an epoll over the shared eventfd; open while this object lives.
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
    """Owner of all KV blocks: reference counts, the prefix tree, eviction. One thread at a time.

    Tokens are a buffer of u32 (``array("I")``, numpy uint32) or bytes that hold u32 in the
    machine's order. A call that cannot be right (releasing or forking a block that nobody holds,
    inserting a block for other tokens) raises RuntimeError. Unless said otherwise a call is O(1) a
    block.
    """

    def __new__(
        cls, num_blocks: int, block_size: int = 16, prefix_cache: bool = True
    ) -> KvAllocator:
        """``num_blocks`` blocks of ``block_size`` tokens, all free. ValueError out of range."""

    def counts(self) -> tuple[int, int, int]:
        """(free, cached, held); their sum is ``num_blocks``."""

    def check(self) -> None:
        """Check every invariant, in O(blocks). RuntimeError names the one that is broken."""

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes nobody holds; returns how many blocks became free."""

    # The direct interface that tests and benches use; the planner asks in Rust.
    def match_prefix(self, tokens: Buffer, salt: int = 0) -> list[int]:
        """Hold and return the blocks of the longest cached prefix of ``tokens``, whole blocks only.

        O(depth). Prefixes are shared only under the same ``salt`` (u64).
        """

    def insert(self, tokens: Buffer, blocks: Sequence[int], salt: int = 0) -> int:
        """Remember the full blocks of ``tokens``; returns how many were new. O(depth).

        ``blocks`` are the ids of the blocks that hold the tokens, in order, all held by the caller;
        ids beyond the full blocks are ignored. Where other blocks are known for the same tokens,
        the caller's stay private. Raises ValueError if there are fewer blocks than full ones.
        """

    def allocate(self, count: int) -> list[int]:
        """Hold ``count`` fresh blocks, evicting what nobody holds; all, or none and MemoryError."""

    def fork(self, blocks: Sequence[int]) -> None:
        """Hold ``blocks`` once more."""

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of ``blocks``, each once, last first: a path is evicted from its end."""

    def time_requests(self, prompts: Buffer, length: int) -> dict[str, list[int]]:
        """Take prompts of ``length`` tokens (u32, one after the other) through a request's life.

        Returns the nanoseconds of each ``match``, ``allocate``, ``insert`` and ``release``, one of
        each a prompt, as the planner pays them: measured in Rust, without this binding.
        Raises MemoryError if a prompt does not fit.
        """

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
    def from_tokenizer_json(text: str) -> Vocabulary:
        """Read the contents of a ``tokenizer.json``.

        Raises:
            ValueError: No tokenizer.json, or one whose decoder is not understood, by name.
        """

    def __len__(self) -> int:
        """One more than the greatest token id."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for within a text; ``b""`` for an id that no token has.

        Raises:
            IndexError: ``token`` is beyond the end.
        """

    def is_special(self, token: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out."""

@final
class StreamDecoder:
    """Incremental detokenization of one sequence, with stop strings; what the Detokenizer runs per request.

    The texts of all pushes and of :meth:`finish`, joined, are ``tokenizers``' own decoding of all
    tokens, cut at the stop string that completes first (of those that complete together, the
    longest). Any thread may call it; calls wait for each other.
    """

    def __new__(
        cls,
        vocabulary: Vocabulary,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> StreamDecoder:
        """``include_stop`` leaves the stop string in the text.

        Raises:
            ValueError: A stop string is empty.
        """

    def push(self, tokens: Sequence[int]) -> tuple[str, str | None]:
        """New text, and the stop string that ended it, if one did. After the end nothing comes any more."""

    def finish(self) -> str:
        """The text that was withheld, now that nothing follows. Ends the stream."""

@final
class Detokenizer:
    """The Detokenizer actor: a Rust thread that never takes the GIL.

    It ends when its inbox is closed and read. If it fails, it closes all of its mailboxes.
    """

    def __new__(
        cls, vocabulary: Vocabulary, inbox: Mailbox, scheduler: Mailbox, frontends: Sequence[Mailbox]
    ) -> Detokenizer:
        """The answers to frontend ``i`` of a request's key go to ``frontends[i]``."""

    def start(self) -> None:
        """Start the thread. Raises ValueError the second time."""

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end. True if it has.

        Raises:
            ValueError: It was never started.
        """

    @property
    def open_streams(self) -> int:
        """Requests that the detokenizer has state for."""

    @property
    def ignored(self) -> int:
        """Openings and tokens that were for a frontend or a request it does not know (any more)."""

    @property
    def failure(self) -> str | None:
        """Why the thread died, if it did."""

@final
class CpuTensor:
    """A C-contiguous array as the CPU kernels see it: float32, int32, int64, uint64, or bfloat16
    given as its bits in (u)int16. Shares the array's memory and keeps it alive."""

    def __new__(cls, array: Buffer) -> CpuTensor:
        """Raises ValueError or BufferError where the array is not of that kind."""

    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...

@final
class CpuStep:
    """The step buffers that attention reads; see :class:`pyengine.model.batch.StepBuffers`."""

    def __new__(
        cls,
        header: Buffer,
        positions: Buffer,
        slot_mapping: Buffer,
        query_start: Buffer,
        kv_length: Buffer,
        page_indptr: Buffer,
        page_indices: Buffer,
    ) -> CpuStep: ...

@final
class CpuRules:
    """The sampling rules in the step buffers."""

    def __new__(
        cls,
        temperature: Buffer,
        top_k: Buffer,
        top_p: Buffer,
        min_p: Buffer,
        seed: Buffer,
        position: Buffer,
    ) -> CpuRules: ...

@final
class CpuKernels:
    """The kernels of the CPU runner, with their threads.

    They work on float32 or bfloat16 (one of them per call) and check data types, shapes and
    indices: ValueError names what is wrong. While a call runs, nobody else may write to its arguments.
    """

    def __new__(cls, threads: int) -> CpuKernels:
        """``threads`` threads, the caller's among them."""

    @property
    def threads(self) -> int: ...
    def add_rms_norm(
        self,
        residual: CpuTensor,
        branch: CpuTensor | None,
        weight: CpuTensor,
        epsilon: float,
        out: CpuTensor,
        rows: int,
    ) -> None:
        """Add ``branch`` to ``residual``, in place, and write the normalized sum times ``weight`` to
        ``out``; the first ``rows`` rows of all three, [rows, len(weight)]."""

    def silu_mul(self, gate_up: CpuTensor, out: CpuTensor, rows: int) -> None:
        """silu(gate) * up: [rows, 2 * width] -> ``out`` [rows, width], gates first."""

    def attend(
        self,
        step: CpuStep,
        qkv: CpuTensor,
        angles: CpuTensor,
        keys: CpuTensor,
        values: CpuTensor,
        out: CpuTensor,
        num_heads: int,
        scale: float,
    ) -> None:
        """Rotate queries and keys, store keys and values in the cache, attend causally.

        Args:
            step: Rows, pages and slots.
            qkv: [tokens, (num_heads + 2 * kv heads) * head_dim]: queries, keys, values.
            angles: float32 [context, head_dim]: cosines, then sines.
            keys: [blocks, kv heads, head_dim, block_size].
            values: [blocks, kv heads, block_size, head_dim].
            out: [tokens, num_heads * head_dim].
            num_heads: Query heads.
            scale: Multiplies the scores.
        """

    def sample(
        self, rules: CpuRules, logits: CpuTensor, out: CpuTensor, first: int, rows: int
    ) -> None:
        """Choose a token for each of the first ``rows`` rows of ``logits`` [rows, vocabulary], by
        rules ``first`` and on, into the same places of ``out`` (int32)."""
