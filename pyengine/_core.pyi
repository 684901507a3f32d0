"""The Rust module: the engine's hot paths. Checked against the binary by stubtest.

Methods that may take long release the GIL. Mailbox methods that never block keep it, and so do the
Planner's, which take microseconds: a thread that releases the GIL may wait 5 ms for it.
A panic in Rust raises ``RuntimeError``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeAlias, final

from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = [
    "DEFAULT_PROPOSERS",
    "DRAFT_POSITIONS",
    "NO_SLOT",
    "NO_TOKEN",
    "PROPOSERS",
    "STEP_BOUNDS_NS",
    "Accountant",
    "ChatTemplate",
    "CompiledGrammar",
    "CpuAdapter",
    "CpuAdapters",
    "CpuExperts",
    "CpuKernels",
    "CpuLinear",
    "CpuPenalties",
    "CpuProgram",
    "CpuRules",
    "CpuStates",
    "CpuStep",
    "CpuTensor",
    "Detokenizer",
    "DraftPasses",
    "GrammarContext",
    "GrammarState",
    "KvAllocator",
    "Mailbox",
    "MailboxClosed",
    "MailboxFull",
    "Planner",
    "Recorder",
    "Stage",
    "StepLayout",
    "StreamDecoder",
    "TemplateError",
    "Timeline",
    "Track",
    "Vocabulary",
    "__version__",
    "compile_grammar",
    "declared_messages",
    "instruction_set",
    "machine_peaks",
    "match_prefix",
    "pick_allowed",
    "sampling_row",
    "step_numbers",
    "time_requests",
]

# numpy's arrays are buffers, but their types do not say so for Python 3.11.
_Buffer: TypeAlias = Buffer | NDArray[Any]

__version__: str

class TemplateError(Exception):
    """A chat template cannot be compiled or rendered: ``args`` are the reason's kind, its message
    and its line.

    The kinds are ``malformed``, ``refused``, ``slow``, ``long`` and ``failed``.
    """

@final
class ChatTemplate:
    """A compiled chat template. Any thread may render it.

    Raises:
        TemplateError: The template is malformed.
    """

    def __new__(cls, source: str) -> ChatTemplate: ...
    @property
    def message_keys(self) -> frozenset[str]:
        """The keys of a message that the template reads."""

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads, from outside of it."""

    @property
    def sought_texts(self) -> frozenset[str]:
        """The texts that the template compares with others, or gives to methods of texts."""

    def render(self, variables: dict[str, Any], seconds: float, max_characters: int) -> str:
        """Render the template. The GIL is released, but for reading the variables.

        Raises:
            TemplateError: It takes longer than it may, makes more, or refuses the variables.
            TypeError: A variable is of a type that templates do not take.
            ValueError: The variables are too deep, or a text is no Unicode.
        """

class MailboxFull(Exception):
    """The ring has no room for the message now."""

class MailboxClosed(Exception):
    """The other side has closed the mailbox, or died."""

@final
class Mailbox:
    """A lock-free ring of byte messages: many writers, one reader, bounded.

    Any thread of any process may send. One process receives (drain, wait, arm), with one thread at
    a time: the process that received first or, after its death, the next that tries. The memory is
    an anonymous shared mapping without a name in any file system, so the same type serves threads
    and processes. Linux only.
    """

    def __new__(cls, capacity: int = 1 << 20) -> Mailbox:
        """A ring of ``capacity`` bytes (rounded up to a power of two and at least a page).

        Raises:
            ValueError: ``capacity`` is 0 or over 1 GiB.
        """

    @staticmethod
    def attach(memory_fd: int, event_fd: int) -> Mailbox:
        """Open the ring of another process by the two descriptors inherited from it.

        The descriptors are duplicated: the caller may close its own afterwards.

        Raises:
            ValueError: The descriptors are not a mailbox's.
            OSError: A descriptor is not open, or could not be mapped.
        """

    def descriptors(self) -> tuple[int, int]:
        """(memory, event) descriptors to hand to a child process (``pass_fds``).

        The descriptors stay open while this object lives.
        """

    def send(self, message: _Buffer) -> None:
        """Append one message and wake the reader if it sleeps. Never blocks.

        A message takes its length, rounded up to 64 bytes, in the ring. The messages of one thread
        stay in order.

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

        Returns False, and does not arm, if there are messages already or the mailbox is closed. A
        reader with ``loop.add_reader`` drains and arms until arm returns True.

        Raises:
            ValueError: A living other process is the reader.
        """

    def fileno(self) -> int:
        """The descriptor that becomes readable when an armed ring gets a message or closes.

        It also becomes readable 300 ms after it was armed without a message: the reader then drains
        and arms again, and so gets past a writer that was killed in the middle of a message. The
        descriptor belongs to this process: an epoll over the shared eventfd and a timer, open while
        this object lives.
        """

    def close(self) -> None:
        """Refuse further sends; the reader gets what is left, then MailboxClosed.

        Idempotent; readers and writers may call it.
        """

    @property
    def closed(self) -> bool:
        """Whether the mailbox was closed. There may be messages left to read."""

    @property
    def used(self) -> int:
        """Bytes of the ring that unread messages take."""

@final
class KvAllocator:
    """Owner of all KV blocks: reference counts, the prefix tree, eviction. One thread at a time.

    The planner calls it in Rust.
    """

    def __new__(
        cls,
        num_blocks: int,
        block_size: int = 16,
        prefix_cache: bool = True,
        groups: Sequence[tuple[str, int, int]] | None = None,
    ) -> KvAllocator:
        """Make ``num_blocks`` free blocks of ``block_size`` tokens. ValueError out of range.

        With ``groups`` they are pages for the blocks of these: see
        :mod:`pyengine.model.cache_groups`. Each is (kind, page tables, size): ``"full"``;
        ``"window"``, whose size is its tokens; ``"latent"``; or ``"state"``, without tables, whose
        size is the pages of one state. The first keeps all tokens, and has no tables if no layer
        does; at most one is of states.
        """

    def counts(self) -> tuple[int, int, int]:
        """(free, cached, held); their sum is ``num_blocks``."""

    def num_snapshots(self) -> int:
        """Snapshots of states that there are, held or cached."""

    def check(self) -> None:
        """Check every invariant, in O(blocks). RuntimeError names the one that is broken."""

    def reset_prefix_cache(self) -> int:
        """Forget every cached block; returns how many. Held ones stay. O(cached blocks)."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...

NO_TOKEN: Final[int]
"""A token id that stands for no token, in the results of a step."""

NO_SLOT: Final[int]
"""A slot that stands for no slot of a state, in the fields of a step."""

@final
class StepLayout:
    """Where each field of a step and its results lie in the buffer of planner and runner.

    Fields begin at multiples of 64 bytes; ``header`` says how much of each counts in a step.
    ``rust/scheduler/src/step/buffers.rs`` declares the fields and their meanings.

    Rows that decode come first, rows that prefill follow. A sequence keeps its index until it ends
    or is preempted. Immutable; any thread.
    """

    def __new__(
        cls,
        max_tokens: int,
        max_rows: int,
        max_pages: int,
        *,
        max_draft: int = 0,
        vocab_size: int,
        tables: int = 1,
        hidden_size: int = 0,
        states: bool = False,
    ) -> StepLayout:
        """Lay out steps of at most these tokens, rows, pages, and ``1 + max_draft`` logits a row.

        Each of the page tables may have ``max_pages``. Rows pool vectors of ``hidden_size`` numbers
        if that is not 0. With ``states`` each row says where its layers have theirs. Raises
        ValueError for a bound of 0; ``max_draft`` may be 0.
        """

    @property
    def nbytes(self) -> int: ...
    @property
    def tables(self) -> int: ...
    @property
    def states(self) -> bool:
        """Whether rows say where their states are."""

    @property
    def mask_words(self) -> int:
        """Length of a mask in uint32 words: a bit for each of ``vocab_size`` tokens."""

    def pad(self, buffers: _Buffer, rows: int, tokens: int, logits: int) -> None:
        """Lengthen the step in ``buffers`` to the size of a CUDA graph.

        Padding changes no result: its tokens are 0, at position 0, and their keys and values are
        not stored (slot -1); its logits are those of token 0, without a mask. If every row of the
        step has one token and ``tokens == rows``, each added row has one token and sees the first
        slot of page 0; otherwise added rows have no tokens. Added rows have no state. The header
        keeps the step's own numbers.

        Raises:
            ValueError: The step is longer, or the layout shorter, than asked; nothing was written.
        """

    def fields(self) -> dict[str, tuple[Any, int, int]]:
        """Name -> (numpy dtype, byte offset, number of elements), in the order of the buffer.

        The type of ``sampling`` is :func:`sampling_row`.
        """

    def widths(self) -> dict[str, int]:
        """The width of each field that is a table."""

    def planned_ranges(self, buffers: _Buffer, padding: int = 0) -> list[tuple[int, int]]:
        """Bytes of a planned step that count, as [start, end), ascending; late fields apart.

        ``padding`` page indices count beside the step's own.
        """

    def late_ranges(self, buffers: _Buffer) -> list[tuple[int, int]]:
        """Bytes of a step's masks and penalties that count, once they are filled."""

    def result_ranges(self, buffers: _Buffer) -> list[tuple[int, int]]:
        """Bytes of a step's results that count."""

@final
class Planner:
    """The scheduler's state in Rust: requests, sequences, steps in flight. One thread at a time.

    Steps run on the device in the order of their plans; any number of them may be in flight. Every
    call may raise MailboxClosed after the detokenizer has ended; the planner's state stays sound.
    """

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
        prefill_beside_decodes: int = 0,
        short_context: int = 0,
        snapshot_interval: int = 0,
        timeline: Timeline | None = None,
    ) -> Planner:
        """Make a planner without requests.

        The least of ``max_sequences`` (the length of the device's ``last_token``), the layout's
        rows and ``max_tokens_per_step`` bounds how many sequences run at once. ``prefill_chunk`` 0
        is no cap, nor is ``prefill_beside_decodes`` 0. Sequences of more than ``short_context``
        tokens, unless that is 0, have their ``positions`` counted from there on, and share no
        prefixes with shorter ones; one that grows beyond is computed again. Layers with states
        leave a snapshot to begin from every ``snapshot_interval`` tokens, beside those at ends of
        prompts and where prompts part; 0: none for that. A sequence's KV must fit
        ``min(num_blocks, max_pages)`` blocks. ``timeline`` gets the spans of every call; the
        time between two calls is recorded as ``drain``.

        Raises:
            ValueError: A limit is out of its range, the layout does not hold
                ``max_tokens_per_step`` or is not for the allocator's groups, or
                ``snapshot_interval`` is no multiple of the block size.
        """

    def set_grammars(
        self,
        tokenizer_json: str,
        end_tokens: list[int],
        vocab_size: int,
        scheduler: Mailbox,
        *,
        timeout_s: float,
        cache_bytes: int,
    ) -> None:
        """Accept requests with grammars; without this call they are refused.

        Threads compile the grammars, each within ``timeout_s`` seconds, and keep them in a cache of
        ``cache_bytes``. A thread reads the tokenizer when the first grammar comes.

        Args:
            tokenizer_json: The content of tokenizer.json.
            end_tokens: Tokens that end an answer under a grammar.
            vocab_size: Logits of a row.
            scheduler: The mailbox that :meth:`drain` reads: woken when a grammar is ready.
            timeout_s: Seconds that compiling one grammar may take.
            cache_bytes: About how much memory compiled grammars may take.

        Raises:
            ValueError: An argument is out of its range.
        """

    def set_speculation(
        self,
        proposers: list[str],
        *,
        max_draft: int,
        adaptive: bool = True,
    ) -> None:
        """Let decoding rows carry drafts.

        Args:
            proposers: Names in :data:`PROPOSERS`.
            max_draft: Most draft tokens of a row.
            adaptive: Set draft lengths by measured time and acceptance; otherwise drafts are as
                long as possible.

        Raises:
            ValueError: A proposer is unknown.
        """

    def drain(self, mailbox: Mailbox) -> list[bytes]:
        """Handle the messages of the scheduler's mailbox, at most 4096; return the others.

        Returned are messages with a tag that the planner does not handle, malformed messages, and a
        Submit whose key is in use.
        """

    def plan(self, buffers: _Buffer) -> int:
        """Plan a step and write it into ``buffers``.

        ``buffers`` is writable, of ``StepLayout.nbytes`` bytes, 8-byte aligned. Returns the number
        of rows. It is 0 when there is nothing to run, or the detokenizer's mailbox is full: then no
        step was put in flight, and ``buffers`` is unchanged.
        """

    def fill_late(self, buffers: _Buffer) -> None:
        """Write what depends on the tokens of the step before: masks, penalties, tokens for logits
        processors.

        For the step that was planned last, once every earlier step is committed, if its header
        says that it has such rows. Equal masks are one: ``mask_row`` has the index of each logit's,
        ``num_masks`` their number. Releases the GIL, and uses several threads.

        Args:
            buffers: The step's buffers, as :meth:`plan` wrote them.

        Raises:
            ValueError: No step is in flight, or an earlier step is not committed.
        """

    def processed_rows(
        self,
    ) -> tuple[list[tuple[tuple[int, int], int, int, bytes | None, bytes]], list[tuple[int, int]]]:
        """The rows of the step that was planned last whose logits are changed before it samples.

        Call it after :meth:`fill_late`. Each row has its request (frontend and number),
        its logits row, the length of its prompt, what its Submit says of logits processors (the
        first time, else None) and its tokens since the last call: uint32, from the prompt on.
        Second, the requests with such rows that have left since the last call.
        """

    def wanted_adapters(self) -> list[tuple[bytes, str]]:
        """Digests and folders of the adapters that requests have begun to wait for since the last
        call: :meth:`set_adapter` or :meth:`refuse_adapter` lets these go on.
        """

    def idle_adapters(self) -> list[bytes]:
        """The digests of loaded adapters that no request has, the least recently used first."""

    def set_adapter(self, digest: bytes, slot: int) -> None:
        """The adapter is loaded into that slot: requests that wait for it go on with the next
        :meth:`drain`.
        """

    def refuse_adapter(self, digest: bytes, why: str) -> None:
        """The adapter cannot be loaded: requests that wait for it end with an error."""

    def forget_adapter(self, digest: bytes) -> None:
        """The adapter is loaded no more. ValueError if a request has it."""

    def commit(self, buffers: _Buffer, failed: list[tuple[int, str]] | None = None) -> int:
        """Append the sampled tokens of the oldest step in flight to its sequences.

        Returns how many requests ended. The tokens go to the detokenizer with :meth:`send`.

        Args:
            buffers: The step's buffers, as :meth:`plan` wrote them, with its results. Without
                ``device_times`` nothing is learned of whether drafts pay.
            failed: Logits rows whose logits processors failed, ascending, and why: their requests
                end with ``error``.

        Raises:
            ValueError: No step is in flight, or these are no results of the oldest.
        """

    def send(self) -> None:
        """Send the detokenizer what :meth:`plan` and :meth:`commit` have to tell it: one TokensOut.

        Once a step, when the next one is launched if it could be.

        Raises:
            MailboxClosed: The detokenizer's mailbox is closed.
        """

    def fail_step(self, why: str) -> int:
        """End every request of the oldest step in flight with finish ``error``; returns how many.

        Their clients are told ``why``.

        Raises:
            ValueError: No step is in flight.
        """

    def abort_all(self) -> int:
        """End every waiting and running request with finish ``error``; returns how many.

        Steps in flight are dropped: do not commit them.
        """

    def check(self) -> None:
        """Check the invariants of all parts, in O(requests + blocks).

        Raises RuntimeError, which names the broken one.
        """

    def stats(self) -> dict[str, int]:
        """Gauges and counters by name.

        Gauges: running, waiting, in_flight (steps), outbox (messages that the detokenizer's mailbox
        had no room for). Counters: preemptions, steps, prompt_tokens, cached_tokens,
        completion_tokens, certain_tokens (of those, tokens that were not sampled, as a grammar
        allowed no other), prefix_queries and prefix_hits (tokens looked up and found at admission,
        after a preemption too), snapshots_taken and snapshot_hits (of states: how often one was
        taken, and begun from), and finished_stop, _length, _abort, _timeout, _overloaded, _error
        (requests).
        """

    def histograms(self) -> dict[str, tuple[list[int], list[int], int]]:
        """Distributions since the start, by name: upper bounds, counts, sum of all values.

        Counts are not cumulative; the last of them, one more than the bounds, is of values above
        all bounds. The names: ``queue_time_ns`` (arrival to first admission),
        ``time_to_first_token_ns`` (arrival to the commit of the first token),
        ``inter_token_latency_ns`` (one commit to the next); and of requests that ended with
        ``stop`` or ``length``: ``duration_ns`` (from arrival), ``prompt_length`` and
        ``completion_length`` (tokens).
        """

    def take_recorded(self) -> bytes:
        """A :class:`pyengine.messages.Recorded` of what ended since the last call, in msgpack.

        The first call begins the recording.
        """

    @property
    def has_work(self) -> bool:
        """Whether there is a request, a step in flight or an unsent message."""

PROPOSERS: Final[dict[str, str]]
"""Draft token sources: name and description, in the order of the metrics."""

DEFAULT_PROPOSERS: Final[tuple[str, ...]]
"""Names of the draft token sources that are on by default."""

DRAFT_POSITIONS: Final[int]
"""Positions of a draft that the planner counts separately; the last counts all later ones too."""

@final
class DraftPasses:
    """Lays out the passes of a draft model within one step. One thread at a time.

    The draft model's keys and values lie in the same pages as the model's, and are computed only
    for sequences that get drafts. A step without such drafts only records its tokens; the next pass
    for a sequence computes the positions that the draft model's cache lacks.
    """

    def __new__(
        cls,
        step: StepLayout,
        passes: StepLayout,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        groups: Sequence[tuple[str, int, int]] | None = None,
        spare_blocks: int = 0,
    ) -> DraftPasses:
        """Passes of layout ``passes`` for steps of layout ``step``.

        Args:
            step: Layout of the steps.
            passes: Layout of the passes: at least as many rows and pages, and a token for every
                row.
            num_blocks: Pages of the KV cache.
            block_size: Tokens in a block.
            vocab_size: Token ids below this are known to both models; only they are read and
                drafted.
            groups: The groups that the pages are for, as of :class:`KvAllocator`; the first has
                page tables.
            spare_blocks: Blocks for which each page table behind the first has spare pages, from
                page ``num_blocks`` on, table after table: where the draft model keeps what
                it needs of pages that are no longer a sequence's.

        Raises:
            ValueError: The layouts do not fit each other.
        """

    def begin(self, step: _Buffer) -> bool:
        """Begin a step and record its tokens: those that the device feeds and
        drafts once they are learned.

        Returns whether a row wants drafts: then call :meth:`next_fed` until it
        returns False.

        Raises:
            ValueError: ``step`` is not a step of the layout.
        """

    def next_fed(self, step: _Buffer, buffers: _Buffer, places: _Buffer) -> bool:
        """Write the next pass for a device that copies drafts into the step and the next pass.

        Args:
            step: The step that was begun.
            buffers: A step of layout ``passes``; gets feed entries where a token is a draft.
            places: int64; gets, for each sampling row of the pass, the index in the step's
                ``token_ids`` of the draft that it samples. No other thread may use it meanwhile.

        Returns:
            Whether there is a pass to compute.

        Raises:
            TypeError: ``places`` is not a buffer of int64.
            ValueError: A buffer is too short.
        """

    def learn(self, step: _Buffer) -> None:
        """Record the tokens that a step sampled. Where the device feeds steps or passes, call it
        for every step once its results have arrived in ``step``.

        Raises:
            ValueError: The buffer is too short.
        """

    def fill(
        self,
        step: _Buffer,
        buffers: _Buffer,
        *,
        forward: CpuProgram,
        logits: CpuProgram,
        rules: CpuRules,
        logits_rows: CpuTensor,
        chosen: CpuTensor,
    ) -> None:
        """Begin a step, and lay out and compute all of its passes. Releases the GIL.

        Args:
            step: The step; gets its drafts.
            buffers: A step of layout ``passes``, as are the following arguments.
            forward: Program that computes the tokens of a pass.
            logits: Program that computes the logits of its sampling rows into ``logits_rows``.
            rules: Sampling rules of the pass.
            logits_rows: [rows, vocabulary]; its rows are how many are computed and sampled at once.
            chosen: int32, gets the sampled tokens.

        Raises:
            ValueError: A buffer is too short, or a kernel refused its arguments.
        """

@final
class Vocabulary:
    """The bytes of every token, from a tokenizer.json (byte-level or byte-fallback).

    Immutable; any thread.
    """

    @staticmethod
    def from_tokenizer_json(text: str) -> Vocabulary:
        """Read the contents of a ``tokenizer.json``.

        Raises:
            ValueError: ``text`` is not a tokenizer.json, or its decoder, which the message names,
                is not supported.
        """

    def __len__(self) -> int:
        """One more than the greatest token id."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token within a text; ``b""`` for an id without a token.

        Raises:
            IndexError: ``token`` is not below the length.
        """

    def containing(self, text: str) -> list[int]:
        """The tokens whose bytes contain those of ``text``, ascending.

        O(bytes of the vocabulary); releases the GIL.
        """

    def is_special(self, token: int) -> bool:
        """Whether ``skip_special_tokens`` leaves the token out."""

@final
class Detokenizer:
    """The Detokenizer actor: a Rust thread that never takes the GIL.

    The thread ends when its inbox is closed and read. If it fails, it closes all of its mailboxes.
    Any thread may call these methods.
    """

    def __new__(
        cls,
        vocabulary: Vocabulary,
        inbox: Mailbox,
        scheduler: Mailbox,
        frontends: Sequence[Mailbox],
        timeline: Timeline | None = None,
    ) -> Detokenizer:
        """Make the actor; :meth:`start` starts its thread.

        Args:
            vocabulary: The bytes of the tokens.
            inbox: Mailbox that the actor reads.
            scheduler: Mailbox of the Scheduler, which gets StopMatched and Abort.
            frontends: Mailbox of each frontend, by the frontend number in a request's key.
            timeline: Gets the spans of every message.
        """

    def start(self) -> None:
        """Start the thread. Raises ValueError the second time."""

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end. Returns whether it has ended.

        Raises:
            ValueError: The thread was never started.
        """

    @property
    def open_streams(self) -> int:
        """Requests that the detokenizer has state for."""

    @property
    def ignored(self) -> int:
        """Messages dropped because their frontend or request is unknown or has ended."""

    @property
    def failure(self) -> str | None:
        """The error that ended the thread, or None."""

@final
class CpuTensor:
    """A C-contiguous array for the CPU kernels: float32, uint8, int32, int64, uint32, uint64, or
    bfloat16 given as its bits in (u)int16. Shares the array's memory and keeps it alive.

    There may be room between the entries of the first dimension, as a KV cache has it.
    """

    def __new__(cls, array: NDArray[Any]) -> CpuTensor:
        """Raises ValueError or BufferError for an array of another dtype or layout."""

    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> str: ...

@final
class CpuStep:
    """The step buffers that attention reads; see :class:`pyengine.model.batch.StepBuffers`."""

    def __new__(
        cls,
        header: NDArray[Any],
        positions: NDArray[Any],
        slot_mapping: NDArray[Any],
        query_start: NDArray[Any],
        kv_length: NDArray[Any],
        page_indptr: NDArray[Any],
        page_indices: NDArray[Any],
    ) -> CpuStep: ...

@final
class CpuStates:
    """The states of a step's rows; see :class:`pyengine.model.batch.StepBuffers`.

    A row begins with the state in the slot ``state_source``, takes in the accepted drafts that are
    pending in its slot and then its own tokens, and leaves the state behind those that are no
    drafts in ``state_slot``. What its drafts would add stays pending there.
    """

    def __new__(
        cls,
        header: NDArray[Any],
        query_start: NDArray[Any],
        state_slot: NDArray[Any],
        state_source: NDArray[Any],
        state_accepted: NDArray[Any],
        state_drafts: NDArray[Any],
        snapshot_slot: NDArray[Any],
        snapshot_tokens: NDArray[Any],
        pool: NDArray[Any],
        max_draft: int,
    ) -> CpuStates:
        """Keep views of the arrays; every call reads them anew.

        A kernel that is given a step in which two rows write one slot, a row begins from a slot
        that another row writes, or a number is out of range, raises ValueError.

        Args:
            header: int64, see :func:`step_numbers`.
            query_start: int32 [rows + 1], where the tokens of each row begin.
            state_slot: int32 [rows]; :data:`NO_SLOT`: the row is passed over.
            state_source: int32 [rows]; :data:`NO_SLOT`: the row begins with zeros.
            state_accepted: int32 [rows], drafts pending in the row's slot that it takes in first.
            state_drafts: int32 [rows], how many of the row's last tokens are drafts.
            snapshot_slot: int32 [rows], gets a copy of the state; :data:`NO_SLOT`: none does.
            snapshot_tokens: int32 [rows], behind how many of the row's tokens.
            pool: float32 [slots, numbers].
            max_draft: Drafts that each slot has room for.
        """

@final
class CpuRules:
    """The sampling fields of a step; see :class:`pyengine.model.batch.StepBuffers`.

    A sampling row is a sequence that samples in the step. It has a logits row for its last known
    token and one more for each of its draft tokens.
    """

    def __new__(
        cls,
        sampling: NDArray[Any],
        sample_position: NDArray[Any],
        logit_start: NDArray[Any],
        logit_row: NDArray[Any],
        logit_token: NDArray[Any],
        mask_row: NDArray[Any],
        mask: NDArray[Any],
    ) -> CpuRules:
        """Keep views of the arrays; every call reads them anew.

        Args:
            sampling: uint32 [sampling rows * words], the bytes of each row's :func:`sampling_row`.
            sample_position: int64 [sampling rows], position of the row's first sampled token.
            logit_start: int32 [sampling rows + 1], where the logits rows of each begin.
            logit_row: int32 [logits rows], the logits row's sampling row.
            logit_token: int32 [logits rows], the token of the step that the logits follow. The
                token behind it is the draft in this place, unless this is its sampling row's last.
            mask_row: int32 [logits rows], row of ``mask``, or -1: every token may be sampled.
            mask: uint32 [masks, words]: bit t % 32 of word t / 32 allows token t.
        """

@final
class CpuPenalties:
    """The penalty fields of a step; see :class:`pyengine.model.batch.StepBuffers`."""

    def __new__(
        cls,
        start: NDArray[Any],
        token: NDArray[Any],
        factor: NDArray[Any],
        add: NDArray[Any],
        before: NDArray[Any],
    ) -> CpuPenalties:
        """Keep views of the arrays; every call reads them anew.

        Args:
            start: int32 [logits rows + 1], where the penalties of each logits row begin.
            token: int32 [penalties], the token; at most once in a logits row.
            factor: float32 [penalties], multiplies the token's logit: see
                :meth:`CpuKernels.apply_penalties`.
            add: float32 [penalties], added after that.
            before: float32 [penalties], gets the logits as they were before.
        """

@final
class CpuLinear:
    """The weights of a linear layer, packed for :meth:`CpuKernels.linear`."""

    @staticmethod
    def dense(weight: CpuTensor, bias: CpuTensor | None = None) -> CpuLinear:
        """Copy ``weight`` [outputs, inputs] and ``bias`` [outputs], each float32 or bfloat16.

        Raises:
            ValueError: ``weight`` or ``bias`` has another shape or dtype.
        """

    @staticmethod
    def packed(
        values: CpuTensor,
        scales: CpuTensor,
        zeros: CpuTensor | None,
        minimums: CpuTensor | None,
        bits: int,
        group: int,
        bias: CpuTensor | None = None,
    ) -> CpuLinear:
        """Copy quantized weights. A layer of them quantizes each row that goes in to 8 bits, by
        groups of as many inputs, at most 128.

        Args:
            values: uint8. 8 bits: [outputs, inputs], two's complement if there are neither zeros
                nor minimums. 4 bits: [outputs, inputs / 2], the even input in the low half.
            scales: float32 [outputs, groups].
            zeros: uint8 [outputs, groups]: weights are (value - zero) * scale.
            minimums: float32 [outputs, groups]: weights are value * scale - minimum. With neither,
                weights of 8 bits are value * scale, of 4 bits (value - 8) * scale.
            bits: 4 or 8.
            group: Inputs of a group: 16, 32, 64, 128 or all of them.
            bias: float32 or bfloat16 [outputs].

        Raises:
            ValueError: An array has another shape or dtype, or there is no kernel for ``bits`` or
                ``group``.
        """

    @staticmethod
    def microscaled(
        values: CpuTensor, exponents: CpuTensor, bias: CpuTensor | None = None
    ) -> CpuLinear:
        """Copy weights in MXFP4, which keep their 4 bits; rows are quantized as :meth:`packed` has
        it, in groups of 32.

        Args:
            values: uint8 [outputs, inputs / 2], codes of e2m1, the even input in the low half.
            exponents: uint8 [outputs, inputs / 32], powers of two moved up by 127, below 255.
            bias: float32 or bfloat16 [outputs].

        Raises:
            ValueError: An array has another shape, or an exponent is 255.
        """

    @staticmethod
    def stacked(layers: list[CpuLinear]) -> CpuLinear:
        """One layer of the outputs of ``layers``, in their order; shares their weights.

        Raises:
            ValueError: There is none, or they differ in their inputs.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales and biases, as packed."""

    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...

@final
class CpuAdapter:
    """An adapter's parts of a model's linear layers."""

    def __new__(
        cls,
        layers: Sequence[tuple[int, CpuLinear, Sequence[tuple[CpuLinear, int, int, float]]]],
    ) -> CpuAdapter:
        """Share the weights of the linear layers.

        Args:
            layers: Of each layer that it changes: its number; the product [ranks, inputs]; and by
                module the product [outputs, ranks of it], the first of these ranks, the first
                of these outputs, and what multiplies the ranks.
        """

    @property
    def nbytes(self) -> int: ...

@final
class CpuAdapters:
    """The adapters that are loaded, and which rows of a step have them; see
    :class:`pyengine.model.batch.StepBuffers`.
    """

    def __new__(
        cls,
        header: NDArray[Any],
        adapter_slot: NDArray[Any],
        adapter_first: NDArray[Any],
        adapter_count: NDArray[Any],
    ) -> CpuAdapters:
        """Keep views of the arrays; every call reads them anew. No adapter is there."""

    def set(self, slot: int, adapter: CpuAdapter | None) -> None:
        """Put an adapter, or none, into a slot."""

@final
class CpuExperts:
    """The experts of a layer and how tokens are sent to them, for :meth:`CpuKernels.experts`."""

    def __new__(
        cls,
        gate_up: Sequence[CpuLinear],
        down: Sequence[CpuLinear],
        activation: str,
        *,
        chosen: int,
        sigmoid: bool = False,
        normalized: bool = False,
        scale: float = 1.0,
        bias: Sequence[float] | None = None,
        groups: int = 1,
        chosen_groups: int = 1,
        group_best: int = 2,
        limit: float | None = None,
        scales: Sequence[float] | None = None,
        weighs_inputs: bool = False,
        first: int = 0,
        count: int | None = None,
    ) -> CpuExperts:
        """Experts of ``gate_up`` [2 * inner, hidden] and ``down`` [hidden, inner] each.

        Some of the experts may be elsewhere: what a token gets from those is left out.

        Args:
            gate_up: Gates, then ups, of each expert.
            down: Of each expert.
            activation: Of the gates, as :meth:`CpuKernels.gated` has it.
            chosen: Experts that a token goes to: those with the highest scores.
            sigmoid: Scores are sigmoids of the logits, not their softmax.
            normalized: The weights of the chosen are divided by their sum.
            scale: Multiplies the weights.
            bias: Is added to the scores, one for each expert, where experts are chosen.
            groups: Groups of neighbouring experts, judged by the sum of their best two scores.
            chosen_groups: Groups of which experts are chosen.
            group_best: Best experts of a group, by whose sum it is judged.
            limit: Of the clamped activation.
            scales: Multiply the weights of the chosen, one for each expert.
            weighs_inputs: Weights multiply what goes into an expert, not what comes out.
            first: The number of the first one here.
            count: Of all experts; None: all are here.

        Raises:
            ValueError: Shapes or numbers do not fit.
        """

    @property
    def routed(self) -> list[int]:
        """Tokens that were sent to each of all experts so far; any thread may ask."""

@final
class CpuKernels:
    """The kernels' thread pool, and the sampler. :class:`CpuProgram` runs the kernels of layers.

    A call works on float32 or on bfloat16 and checks dtypes, shapes and indices; its ValueError
    names the wrong argument. While a call runs, no other thread may write to its arguments.
    """

    def __new__(cls, threads: int) -> CpuKernels:
        """Start a pool of ``threads`` threads; the calling thread is one of them."""

    @property
    def threads(self) -> int: ...
    def sample(
        self, rules: CpuRules, logits: CpuTensor, out: CpuTensor, first: int, rows: int
    ) -> None:
        """Choose a token for each of the logits rows ``first`` to ``first + rows``.

        A token is a function of its logits, its mask, and its sampling row's rules, seed and
        position. Rules apply in this order: mask, temperature, top-k, top-p, min-p. If a mask
        allows one token, that token is chosen whatever its logit. Where no token is possible the
        result is -1.

        Args:
            rules: The sampling rules of the step.
            logits: [rows or more, vocabulary], beginning with logits row ``first``.
            out: int32 by logits row of the step; entries ``first`` to ``first + rows`` are written.
            first: First logits row.
            rows: Number of logits rows.
        """

    def apply_penalties(
        self, penalties: CpuPenalties, logits: CpuTensor, first: int, rows: int
    ) -> None:
        """Apply the penalties to logits rows ``first`` to ``first + rows`` of the step, in place.

        A logit l becomes ``(l / factor if l > 0 else l * factor) + add``. ``logits`` is [rows or
        more, vocabulary], beginning with logits row ``first``. ``penalties`` keeps the logits as
        they were.
        """

    def restore(self, penalties: CpuPenalties, logits: CpuTensor, first: int, rows: int) -> None:
        """Undo :meth:`apply_penalties`, with the same arguments."""

    def top_logprobs(
        self,
        wanted: CpuTensor,
        logits: CpuTensor,
        chosen: CpuTensor,
        tokens: CpuTensor,
        logprobs: CpuTensor,
        of_chosen: CpuTensor,
        first: int,
        rows: int,
    ) -> None:
        """Write the log-probabilities of logits rows ``first`` to ``first + rows``, where wanted.

        Args:
            wanted: int32 by logits row: for how many most likely tokens; -1 is none, and not for
                the chosen token either.
            logits: [rows or more, vocabulary], beginning with logits row ``first``.
            chosen: int32 by logits row of the step: the chosen token, or -1.
            tokens: int32 [logits rows of the step, most]: gets the most likely tokens in order (of
                equals the lower id first), then -1.
            logprobs: float32, of the same shape: gets the log-probabilities of ``tokens``.
            of_chosen: float32 by logits row: gets the log-probability of the chosen token.
            first: First logits row.
            rows: Number of logits rows.
        """

    def verify(
        self,
        rules: CpuRules,
        token_ids: CpuTensor,
        tokens: CpuTensor,
        counts: CpuTensor,
        sampled: int,
    ) -> None:
        """Count the sampled tokens that hold: for each sampling row one, and one more for each of
        its leading drafts that equals the token sampled in its place.

        Args:
            rules: The sampling rules of the step.
            token_ids: int32 [tokens], the tokens of the step with its drafts.
            tokens: int32 by logits row: the tokens that :meth:`sample` chose.
            counts: int32 by sampling row; the first ``sampled`` are written.
            sampled: Number of sampling rows.
        """

def sampling_row() -> dict[str, Any]:
    """The fields of a sampling row as ``numpy.dtype`` takes them.

    Declared in ``kernels/cpu/src/sampler/sampling_row.rs``, with the names of
    :class:`pyengine.SamplingParams`.
    """

def step_numbers() -> dict[str, int]:
    """The index of each number in a step's ``header``.

    ``rust/scheduler/src/step/buffers.rs`` declares the numbers and their meanings.
    """

def pick_allowed(
    mask: NDArray[Any],
    words: int,
    mask_rows: NDArray[Any],
    hashes: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Choose an allowed token by a hash: the sampler of devices without logits. Any thread.

    Args:
        mask: uint32 [masks * words]: bit t % 32 of word t / 32 allows token t. Bits beyond the
            vocabulary must be 0.
        words: Words of a mask.
        mask_rows: int32 [n], rows of ``mask``; where it is negative, ``out`` stays as it is.
        hashes: uint64 [n].
        out: int32 [n], becomes the (hash mod m)-th of the m tokens allowed; -1 where m is 0.

    Raises:
        ValueError: An array is of another type or too short, or there is no such mask.
    """

STEP_BOUNDS_NS: Final[tuple[int, ...]]
"""Upper bounds of the accountant's step-time histogram, in nanoseconds."""

@final
class CpuProgram:
    """Kernels that are recorded once and then run in order, in one call without the GIL.

    Every other method records a kernel; :meth:`run` gives the number of ``rows`` that it works on.
    Kernels work on float32 or on bfloat16. One thread at a time.
    """

    def __new__(cls, kernels: CpuKernels) -> CpuProgram:
        """An empty program for the thread pool of ``kernels``."""

    def add_rms_norm(
        self,
        residual: CpuTensor,
        branch: CpuTensor | None,
        weight: CpuTensor,
        epsilon: float,
        out: CpuTensor,
    ) -> None:
        """Add ``branch`` to ``residual``, in place, and write the normalized sum times ``weight``
        to ``out``; the first ``rows`` rows of all three, [rows, len(weight)].
        """

    def add_layer_norm(
        self,
        residual: CpuTensor,
        branch: CpuTensor | None,
        weight: CpuTensor,
        bias: CpuTensor | None,
        epsilon: float,
        out: CpuTensor,
    ) -> None:
        """As :meth:`add_rms_norm`, with the mean subtracted and ``bias`` [len(weight)] added."""

    def add(self, residual: CpuTensor, branch: CpuTensor | None, out: CpuTensor) -> None:
        """Add ``branch`` to ``residual``, in place, and copy the sum to ``out``; [rows, width]."""

    def rotate(
        self,
        qkv: CpuTensor,
        positions: CpuTensor,
        angles: CpuTensor,
        heads: int,
    ) -> None:
        """Rotate the first ``heads`` heads of each of the first ``rows`` rows, in place.

        ``positions`` are int32 [rows or more], ``angles`` float32 [positions, head_dim], cosines,
        then sines.
        """

    def head_rms_norm(
        self,
        qkv: CpuTensor,
        query_weight: CpuTensor,
        key_weight: CpuTensor,
        query_width: int,
        epsilon: float,
        value_weight: CpuTensor | None = None,
    ) -> None:
        """Normalize the queries and the keys of the first ``rows`` rows, in place.

        A row is ``query_width`` numbers of queries, then keys and as many values. Queries are
        normalized in pieces of len(query_weight) numbers, which are multiplied by
        ``query_weight``: single heads, or all of them; keys by ``key_weight``, and values by
        ``value_weight``; without one they stay.
        """

    def linear(self, weights: CpuLinear, x: CpuTensor, out: CpuTensor) -> None:
        """X W^T + b for the first ``rows`` rows: [rows, in] -> ``out`` [rows, out].

        ``x`` and ``out`` are float32 or bfloat16, each for itself; sums are float32. A row's
        results are the same bits whatever other rows there are, on any number of threads and with
        any instruction set (but for subnormal bfloat16 numbers, which AVX-512 BF16 takes for
        zero).
        """

    def linear_by_head(self, weights: CpuLinear, x: CpuTensor, out: CpuTensor, heads: int) -> None:
        """Each head's x W^T: [rows, heads * inputs], perhaps columns, -> ``out`` [rows, outputs].

        ``weights`` are those of ``heads`` heads of as many outputs, stacked head by head.
        """

    def adapt(self, adapters: CpuAdapters, site: int, x: CpuTensor, out: CpuTensor) -> None:
        """Add to ``out`` what adapters make of ``x`` in the layer ``site``, in the rows of the step
        that have one. Both are [tokens, width], of one type; it has as many tokens as the step.
        """

    def gather(self, table: CpuTensor, index: CpuTensor, out: CpuTensor) -> None:
        """``out[i] = table[index[first + i]]`` for i below ``rows``; ``index`` is int32."""

    def gather_weights(self, table: CpuLinear, index: CpuTensor, out: CpuTensor) -> None:
        """``out[i]`` becomes the weights of the output ``index[first + i]`` of ``table``.

        ``out`` is float32 or bfloat16 [rows, inputs]; quantized weights are computed in float32.

        Raises:
            ValueError: ``table`` has no such output.
        """

    def gated(
        self,
        activation: str,
        gate_up: CpuTensor,
        out: CpuTensor,
        limit: float | None = None,
    ) -> None:
        """activation(gate) * up: [rows, 2 * width] -> ``out`` [rows, width], gates first.

        ``activation`` is ``silu``, ``gelu``, ``gelu_tanh``, ``relu``, ``relu2`` or, with a
        ``limit``, ``clamped_swiglu``; see :mod:`pyengine.kernels.layers.activation`.
        """

    def activate(
        self,
        activation: str,
        x: CpuTensor,
        out: CpuTensor,
        weights: tuple[float, float, float] | None = None,
    ) -> None:
        """activation(x): [rows, width] -> ``out`` [rows, width]; only ``xielu`` has
        ``weights``.
        """

    def experts(self, experts: CpuExperts, logits: CpuTensor, x: CpuTensor, out: CpuTensor) -> None:
        """Each of the first ``rows`` rows of ``x`` through the experts that its logits choose.

        ``logits`` is [rows, experts], ``x`` and ``out`` are [rows, hidden], all of one type. A
        row's results are the same bits whatever other rows there are.
        """

    def scale(self, x: CpuTensor, factor: float) -> None:
        """Multiply the first ``rows`` rows of ``x`` by ``factor``, in place."""

    def soft_cap(self, x: CpuTensor, cap: float) -> None:
        """Cap * tanh(x / cap) of the first ``rows`` rows of ``x``, in place."""

    def multiply(self, x: CpuTensor, by: CpuTensor, column: int) -> None:
        """Multiply the first ``rows`` rows of ``x`` [rows, width] by as many columns of the rows of
        ``by``, from ``column`` on, in place.
        """

    def gate(self, x: CpuTensor, gates: CpuTensor) -> None:
        """Multiply the first ``rows`` rows of ``x`` [rows, width] by the sigmoids of ``gates``
        [rows, n], each of which is for width / n neighbours, in place.
        """

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
        *,
        window: int | None = None,
        chunk: int | None = None,
        soft_cap: float | None = None,
        sinks: CpuTensor | None = None,
        temperatures: CpuTensor | None = None,
        stores: bool = True,
    ) -> None:
        """Rotate queries and keys, store keys and values in the cache, attend causally.

        Args:
            step: The step's rows, pages and slots.
            qkv: [tokens, (num_heads + 2 * kv heads) * head_dim]: queries, keys, values; without
                ``stores`` queries alone.
            angles: float32 [context, head_dim]: cosines, then sines.
            keys: [blocks, kv heads, head_dim, block_size], perhaps with room between blocks.
            values: [blocks, kv heads, block_size, head_dim], with the same room.
            out: [tokens, num_heads * head_dim].
            num_heads: Query heads.
            scale: Multiplies the scores.
            window: Keys that a query sees, the last of them its own; None is all before it.
            chunk: A query sees the keys of its own chunk alone; a chunk has this many positions.
            soft_cap: Scores become ``soft_cap * tanh(score / soft_cap)``.
            sinks: float32 [num_heads], logits that take a share of the softmax and have no value.
            temperatures: float32 [context], what multiplies the scores of each position's query.
            stores: False where another layer stores the keys and values that this one attends to.
        """

    def attend_latents(
        self,
        step: CpuStep,
        absorbed: CpuTensor,
        rotating: CpuTensor,
        rows: CpuTensor,
        weight: CpuTensor,
        epsilon: float,
        angles: CpuTensor,
        latents: CpuTensor,
        out: CpuTensor,
        num_heads: int,
        scale: float,
        *,
        temperatures: CpuTensor | None = None,
    ) -> None:
        """Normalize latents, rotate the key that all heads share, store both in the cache, attend
        causally: the first ``rank`` numbers of a token in the cache are its value.

        Args:
            step: The step's rows, pages and slots.
            absorbed: [tokens, num_heads * rank], the part of queries that meets latents.
            rotating: [tokens, num_heads * rotated], the part that is rotated; perhaps columns.
            rows: [tokens, rank + rotated]: latents that are not normalized, and keys.
            weight: [rank], of the latents' norm.
            epsilon: Added to the mean of the squares.
            angles: float32 [context, rotated]: cosines, then sines.
            latents: [blocks, block_size, rank + rotated], perhaps with room between blocks.
            out: [tokens, num_heads * rank].
            num_heads: Query heads.
            scale: Multiplies the scores.
            temperatures: float32 [context], what multiplies the scores of each position's query.
        """

    def convolve(
        self,
        states: CpuStates,
        place: tuple[int, int],
        x: CpuTensor,
        weight: CpuTensor,
        bias: CpuTensor | None,
        out: CpuTensor,
        *,
        silu: bool,
    ) -> None:
        """Convolve each channel of the step's tokens with the last inputs of its sequence.

        Inputs of this and of the next three kernels may be columns of a wider buffer. A row's
        outputs and state are the same bits however the tokens of its sequence are cut into steps,
        whatever other rows there are, and on any number of threads.

        Args:
            states: Where the states of the step's rows are.
            place: Where in a slot the state begins, float32 [kernel - 1, channels], the oldest
                inputs first; and where the drafts' do, [max_draft, channels].
            x: [tokens, channels].
            weight: float32 or bfloat16 [channels, kernel], the newest input's last. Copied, as is
                ``bias``.
            bias: [channels], of the same type, or None.
            out: [tokens, channels].
            silu: Whether x * sigmoid(x) of the sum is the output.

        Raises:
            ValueError: The weight has no such shape or type.
        """

    def delta_rule(
        self,
        states: CpuStates,
        place: tuple[int, int],
        queries: CpuTensor,
        keys: CpuTensor,
        values: CpuTensor,
        gates: CpuTensor,
        betas: CpuTensor,
        rates: CpuTensor,
        bias: CpuTensor,
        out: CpuTensor,
        *,
        key_heads: int,
        scale: float,
        bound: float | None = None,
        strength: float = 1.0,
    ) -> None:
        """Read and advance the matrices of a layer by the gated delta rule.

        For each head, with key k and query q divided by their lengths::

            decay = exp(-rate * softplus(gate + bias))
            decay = exp(bound * sigmoid(rate * (gate + bias)))           with a bound
            S = decay * S;  S = S + strength * sigmoid(beta) * k (v - k S)^T;  out = scale * q S

        Args:
            states: Where the states of the step's rows are.
            place: Where in a slot the state begins, float32 [heads, key_dim, value_dim]; and where
                the drafts' keys, values, decays and weights do,
                [max_draft, heads, key_dim + value_dim + decays + 1].
            queries: [tokens, key_heads * key_dim].
            keys: [tokens, key_heads * key_dim].
            values: [tokens, heads * value_dim].
            gates: [tokens, heads * decays]; a head has 1 decay, or key_dim.
            betas: [tokens, heads].
            rates: float32 [heads].
            bias: float32 [heads * decays].
            out: [tokens, heads * value_dim].
            key_heads: Heads of queries and keys; neighbouring heads of values share one.
            scale: Multiplies the queries.
            bound: The least logarithm of a decay, below 0; None: there is none.
            strength: Multiplies what is taken in.
        """

    def decay_sum(
        self,
        states: CpuStates,
        place: tuple[int, int],
        queries: CpuTensor,
        keys: CpuTensor,
        values: CpuTensor,
        steps: CpuTensor | None,
        rates: CpuTensor,
        bias: CpuTensor | None,
        skip: CpuTensor | None,
        out: CpuTensor,
        *,
        key_heads: int,
        scale: float = 1.0,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """Read and advance the matrices of a layer by a decaying sum.

        For each head, with dt = softplus(step + bias) within ``limits``, or 1 without steps::

            S = exp(-rate * dt) * S + dt * k v^T;  out = scale * q S + skip * v

        Args:
            states: As in :meth:`delta_rule`.
            place: As there.
            queries: [tokens, key_heads * key_dim]; of Mamba-2 its C.
            keys: [tokens, key_heads * key_dim]; of Mamba-2 its B.
            values: [tokens, heads * value_dim].
            steps: [tokens, heads], or None.
            rates: float32 [heads]; with steps perhaps [heads * key_dim], one for each decay.
            bias: float32 [heads]; None is 0.
            skip: float32 [heads]; None is 0.
            out: [tokens, heads * value_dim].
            key_heads: Heads of queries and keys; neighbouring heads of values share one.
            scale: Multiplies the queries.
            limits: The smallest and the largest dt; None: 0 and no largest.
        """

    def gated_norm(
        self,
        x: CpuTensor,
        gates: CpuTensor,
        weight: CpuTensor,
        epsilon: float,
        *,
        group: int,
        function: str,
        gate_first: bool,
    ) -> None:
        """Normalize and gate the first ``rows`` rows of ``x`` [rows, width], in place.

        Each ``group`` neighbours are normalized together and multiplied by ``weight``, [width], or
        [group] for all groups. ``function``, ``silu`` or ``sigmoid``, of ``gates`` [rows, width]
        multiplies what is normalized, or else what comes of it.
        """

    def run(self, rows: int, first: int = 0) -> None:
        """Run all recorded kernels on the first ``rows`` rows; gathers begin at index ``first``.

        No kernel can be recorded afterwards.

        Raises:
            ValueError: A kernel refused its arguments; the kernels before it have run.
        """

@final
class Stage:
    """The kind of work in a span: a part of a request's way, or of a step."""

    HTTP_DECODE: ClassVar[Stage]
    TEMPLATE: ClassVar[Stage]
    TOKENIZE: ClassVar[Stage]
    QUEUE_WAIT: ClassVar[Stage]
    PREFILL: ClassVar[Stage]
    DECODE: ClassVar[Stage]
    DELIVER: ClassVar[Stage]
    FIRST_TOKEN: ClassVar[Stage]
    NEXT_TOKEN: ClassVar[Stage]
    DRAIN: ClassVar[Stage]
    ADMIT: ClassVar[Stage]
    MATCH: ClassVar[Stage]
    ALLOCATE: ClassVar[Stage]
    BUFFER_FILL: ClassVar[Stage]
    DRAFT: ClassVar[Stage]
    GRAMMAR: ClassVar[Stage]
    LAUNCH: ClassVar[Stage]
    DEVICE: ClassVar[Stage]
    SAMPLE: ClassVar[Stage]
    COPY_BACK: ClassVar[Stage]
    COMMIT: ClassVar[Stage]
    DETOKENIZE: ClassVar[Stage]
    STOP_MATCH: ClassVar[Stage]
    MESSAGE: ClassVar[Stage]
    SSE_ENCODE: ClassVar[Stage]
    SOCKET_WRITE: ClassVar[Stage]
    IDLE: ClassVar[Stage]
    LOOP_LAG: ClassVar[Stage]
    CORE_WAIT: ClassVar[Stage]
    GIL_WAIT: ClassVar[Stage]
    LOOP_HELD: ClassVar[Stage]

    def __int__(self) -> int: ...
    @property
    def label(self) -> str:
        """Its name in reports and metrics."""

    @property
    def meaning(self) -> str:
        """What it is, in a sentence."""

    @staticmethod
    def all() -> tuple[Stage, ...]:
        """All of them, in the order of their numbers."""

@final
class Track:
    """The actor, request or device that a span belongs to; one thread's spans do not overlap."""

    SCHEDULER: ClassVar[Track]
    DETOKENIZER: ClassVar[Track]
    FRONTEND: ClassVar[Track]
    REQUEST: ClassVar[Track]
    DEVICE: ClassVar[Track]
    LOOP: ClassVar[Track]

    def __int__(self) -> int: ...
    @property
    def label(self) -> str:
        """Its name in reports and metrics."""

    @property
    def meaning(self) -> str:
        """What it is, in a sentence."""

    @staticmethod
    def all() -> tuple[Track, ...]:
        """All of them, in the order of their numbers."""

@final
class Recorder:
    """A flight recorder: a ring of the latest spans in shared memory, without locks.

    Any thread of any process writes and reads. A writer that is killed costs its slot.
    """

    def __new__(cls, capacity: int = 1 << 16) -> Recorder:
        """Make room for ``capacity`` spans of 32 bytes, rounded up to a power of two.

        Raises:
            ValueError: ``capacity`` is 0 or over 2**24.
        """

    @staticmethod
    def attach(descriptor: int) -> Recorder:
        """Open the recorder of another process by its inherited descriptor, which is duplicated.

        Raises:
            ValueError: The descriptor is not a recorder's.
            OSError: The descriptor is not open, or could not be mapped.
        """

    def descriptor(self) -> int:
        """A descriptor for a child process (``pass_fds``); it is open while this object lives."""

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded; setting it counts for all processes."""

    @enabled.setter
    def enabled(self, value: bool) -> None: ...
    @property
    def recorded(self) -> int:
        """Spans offered so far, which is the number of the next one."""

    def timeline(self, track: Track) -> Timeline:
        """A new chain of spans in ``track``."""

    def read(self, start: int = 0) -> tuple[bytes, int]:
        """The spans from number ``start`` on that are not overwritten, and the next number.

        A span is 32 bytes: start, end (``time.monotonic_ns()``) and step as u64, stage and track as
        u8, six bytes of padding; see ``pyengine.telemetry.spans``.
        """

    @staticmethod
    def cost_ns() -> float:
        """Measure, in 0.2 ms, how many nanoseconds recording a span takes in Rust here."""

@final
class Timeline:
    """A chain of spans in a track: each begins where the one before it ended.

    One thread at a time. Records nothing while its recorder is disabled.
    """

    def begin(self) -> int:
        """Begin the next span now. Returns ``time.monotonic_ns()``, or 0 while nothing is
        recorded.
        """

    def end_span(self, stage: Stage) -> None:
        """End the current span now as ``stage``; the next one begins."""

    def span(self, stage: Stage, start: int) -> int:
        """Record a span from ``start`` to now beside the chain. Returns now.

        For work over an ``await``, during which other tasks record too. A ``start`` of 0 records
        nothing.
        """

    def now(self) -> int:
        """``time.monotonic_ns()``."""

    def delivered(self, committed: int, since: int, first: bool, request: int) -> int:
        """Record that a reader has taken tokens of a request, which came at ``committed``.

        ``since`` is the time of the delivery before; of the ``first``, of the request's arrival.
        Returns now.
        """

    def record(self, track: Track, stage: Stage, start: int, end: int, step: int) -> None:
        """Record a span that was measured by other means."""

@final
class Accountant:
    """Adds up a recorder's spans: time that the device waited for, and time that it did not.

    Any thread. Spans recorded before it was made do not count.
    """

    def __new__(cls, recorder: Recorder) -> Accountant: ...
    def start(self) -> None:
        """Sweep ten times a second, on a Rust thread, so that no span is overwritten unread."""

    def stop(self) -> None:
        """End the thread; dropping the accountant ends it too."""

    def totals(self) -> dict[str, Any]:
        """Sweep now and return the totals so far: see :class:`pyengine.telemetry.Totals`."""

# Only in builds with the feature `test-api`, as in a checkout: tests and benches call these.

@final
class StreamDecoder:
    """Detokenizes one sequence piece by piece and finds stop strings, as the Detokenizer actor does
    for each request.

    The texts of all pushes and of :meth:`finish`, joined, equal ``tokenizers``' decoding of all
    tokens, cut at the stop string that completes first. Of stop strings that complete together, the
    longest counts. Any thread; calls wait for each other.
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
        """Decode ``tokens``; return the new text and the stop string that ended it, if any.

        After a stop string there is no further text.
        """

    def finish(self) -> str:
        """End the stream; return text withheld because it might have begun a stop string."""

@final
class GrammarContext:
    """A tokenizer in the form that grammars need. Any thread."""

    @staticmethod
    def from_tokenizer_json(
        text: str, end_token_ids: Sequence[int], vocab_size: int
    ) -> GrammarContext:
        """Read a Hugging Face ``tokenizer.json``, which is loaded at the first use.

        The ``end_token_ids`` end an answer and, like the tokenizer's special tokens, never match
        text. ``vocab_size`` is the number of the model's logits; grammars never allow ids that the
        tokenizer lacks.

        Raises:
            ValueError: There is no end token, or one is not below ``vocab_size``. :meth:`load`
                raises for a mistake in the ``tokenizer.json``.
        """

    def load(self) -> None:
        """Load the tokenizer, which takes up to seconds.

        Raises:
            ValueError: The tokenizer is not supported.
        """

    @property
    def mask_words(self) -> int:
        """Length of a mask, in uint32 words."""

def compile_grammar(
    context: GrammarContext, description: bytes, timeout_s: float = 5.0
) -> CompiledGrammar:
    """Compile a description (JSON with a ``kind``) in at most ``timeout_s`` seconds once the
    tokenizer is loaded, without the GIL.

    Raises:
        ValueError: The description is malformed, cannot be enforced, or takes too long; the message
            names the keyword of a schema with its path.
    """

@final
class CompiledGrammar:
    """A grammar: immutable, for any number of texts. Any thread."""

    def start(self) -> GrammarState:
        """The state before the first token."""

    def prepare(self) -> None:
        """Make the masks that texts come to first, at most 512 and for 50 ms: what a thread of the
        engine's compiler does once the requests that wait for the grammar have it, unless another
        compilation waits.
        """

    @property
    def backend(self) -> str:
        """``index`` (a table: choices and regexes) or ``llguidance``."""

    @property
    def warnings(self) -> list[str]:
        """Keywords that are not enforced; the description allows leaving them out."""

@final
class GrammarState:
    """The state of one text in its grammar. Any thread; calls wait for each other."""

    def fill_mask(self, buffer: _Buffer) -> None:
        """Overwrite ``buffer`` with the tokens that may come next: bit ``t % 32`` of word
        ``t // 32``. Where the text may end, the end tokens are among them. Never all zeros.

        ``buffer`` is uint32 ``[mask_words]`` and contiguous; no other thread may use it meanwhile.

        Raises:
            TypeError: Not a buffer of uint32.
            BufferError: Not writable or not contiguous.
            ValueError: Of another length.
        """

    def advance(self, token: int) -> bool:
        """Append a token. Returns False, and changes nothing, if the grammar forbids it here."""

    def closing_tokens(self, limit: int | None = None) -> list[int] | None:
        """The tokens of the shortest text that completes this one; None if they are more than
        ``limit``, or no such text is found.
        """

    def closes_within(self, limit: int) -> bool:
        """Whether ``closing_tokens(limit)`` surely is not None, told without writing the tokens
        where that can be; it may not be None where this is False.
        """

    @property
    def is_terminated(self) -> bool:
        """Whether the text is complete: only an end token may come, or one has come."""

    @property
    def failure(self) -> str | None:
        """Which limit made the backend stop following the grammar, or None. Then only an end token
        may come, and the text may be incomplete.
        """

def match_prefix(kv: KvAllocator, tokens: _Buffer) -> list[int]:
    """Hold and return the blocks of the longest cached prefix of ``tokens``, a buffer of uint32."""

def time_requests(kv: KvAllocator, prompts: _Buffer, length: int) -> dict[str, list[int]]:
    """Time the planner's calls to the allocator for each prompt, measured in Rust.

    ``prompts`` is a buffer of uint32, prompts of ``length`` tokens one after the other. Returns the
    nanoseconds of ``match``, ``allocate``, ``insert`` and ``release``, one entry a prompt each.

    Raises:
        ValueError: The tokens are no whole number of prompts.
        MemoryError: A prompt does not fit.
    """

def declared_messages() -> dict[str, Any]:
    """The messages as Rust declares them, for a test that holds Python's to these.

    ``structs`` has the fields of each struct by its name, pairs of name and type as Python spells
    it; ``extensions`` and ``extras`` the struct of each tag; ``default_submit`` a Submit of default
    values.
    """

def instruction_set() -> str:
    """The instructions that kernels use on this machine: "Avx2", "Avx512Bf16" and others."""

def machine_peaks(threads: int) -> tuple[float | None, float | None, float | None, float]:
    """Measure what the machine can do with ``threads`` threads; takes half a second.

    Returns multiply-adds a second in float32, in bfloat16 and in bytes, None where there is no
    instruction for them, and bytes a second read from memory.
    """
