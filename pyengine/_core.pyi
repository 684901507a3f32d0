"""The Rust module: the engine's hot paths. Checked against the binary by stubtest.

Every method that may take long releases the GIL; those of Mailbox that never block keep it, and so
do the Planner's, which take microseconds: the GIL may take 5 ms to come back.
Rust panics arrive as ``RuntimeError``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeAlias, final

from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = [
    "DEFAULT_PROPOSERS",
    "DRAFT_POSITIONS",
    "PROPOSERS",
    "STEP_BOUNDS_NS",
    "Accountant",
    "CompiledGrammar",
    "CpuKernels",
    "CpuLinear",
    "CpuPenalties",
    "CpuProgram",
    "CpuRules",
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
    "Speculator",
    "Stage",
    "StepHeader",
    "StepLayout",
    "StreamDecoder",
    "Timeline",
    "Track",
    "Vocabulary",
    "__version__",
    "compile_grammar",
    "pick_allowed",
    "sampling_row",
]

# numpy's arrays are buffers, but their types do not say so for Python 3.11.
_Buffer: TypeAlias = Buffer | NDArray[Any]

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

    def send(self, message: _Buffer) -> None:
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
    """Owner of all KV blocks: reference counts, the prefix tree, eviction. One thread at a time.

    Tokens are a buffer of u32 (``array("I")``, numpy uint32) or bytes that hold u32 in the
    machine's order. A call that cannot be right (releasing a block that is not held, inserting a
    block for other tokens) raises RuntimeError. Unless said otherwise a call is O(1) a block.
    """

    def __new__(
        cls, num_blocks: int, block_size: int = 16, prefix_cache: bool = True
    ) -> KvAllocator:
        """``num_blocks`` blocks of ``block_size`` tokens, all free. ValueError out of range."""

    def counts(self) -> tuple[int, int, int]:
        """(free, cached, held); their sum is ``num_blocks``."""

    def check(self) -> None:
        """Check every invariant, in O(blocks). RuntimeError names the one that is broken."""

    # The direct interface, which benches use; the planner calls the allocator in Rust.
    def match_prefix(self, tokens: _Buffer, salt: int = 0) -> list[int]:
        """Hold and return the blocks of the longest cached prefix of ``tokens``, whole blocks only.

        O(depth). Prefixes are shared only under the same ``salt`` (u64).
        """

    def insert(self, tokens: _Buffer, blocks: Sequence[int], salt: int = 0) -> int:
        """Remember the full blocks of ``tokens``; returns how many were new. O(depth).

        ``blocks`` are the ids of the blocks that hold the tokens, in order, all held by the caller;
        ids beyond the full blocks are ignored. Where other blocks are known for the same tokens,
        the caller's stay private. Raises ValueError if there are fewer blocks than full ones.
        """

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of ``blocks``, each once, last first: a path is evicted from its end."""

    def time_requests(self, prompts: _Buffer, length: int) -> dict[str, list[int]]:
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
class StepHeader:
    """Which element of a step's ``header`` is which number.

    What they mean is said where they are declared: ``rust/engine/src/scheduler/buffers.rs``.
    """

    NUM_ROWS: Final[int]
    NUM_TOKENS: Final[int]
    NUM_SAMPLED: Final[int]
    NUM_PAGES: Final[int]
    NUM_FEEDS: Final[int]
    MAX_QUERY_LENGTH: Final[int]
    MAX_KV_LENGTH: Final[int]
    STEP_ID: Final[int]
    NUM_GREEDY: Final[int]
    NUM_LOGITS: Final[int]
    NUM_MASKS: Final[int]
    MAX_DEVICE_DRAFTS: Final[int]
    NUM_DECODE_ROWS: Final[int]
    NUM_PENALIZED_ROWS: Final[int]
    NUM_PENALTIES: Final[int]
    NUM_LOGPROBS_ROWS: Final[int]
    MAX_LOGPROBS: Final[int]

@final
class StepLayout:
    """Where each field of a step lies in the one buffer that planner and runner share.

    Fields begin at multiples of 64 bytes; ``header`` says how much of each counts in a step. They
    are declared in ``rust/engine/src/scheduler/buffers.rs``; :meth:`meanings` tells what each is.

    Rows that decode come first, then those that prefill. A sequence keeps its index until it ends
    or is preempted.
    """

    def __new__(
        cls,
        max_tokens: int,
        max_rows: int,
        max_pages: int,
        *,
        max_draft: int = 0,
        vocab_size: int,
    ) -> StepLayout:
        """Steps have at most so many tokens, rows and pages, rows at most ``1 + max_draft`` logits.

        Raises ValueError for a bound of 0 (``max_draft`` may be).
        """

    @property
    def nbytes(self) -> int: ...
    @property
    def mask_words(self) -> int:
        """Words of a mask: a bit for each of ``vocab_size`` tokens."""

    def pad(self, buffers: _Buffer, rows: int, tokens: int, logits: int) -> None:
        """Make the step in ``buffers`` so long, for a graph that computes no shorter one.

        What is added changes nothing: tokens 0 at position 0 whose keys and values go nowhere
        (slot -1), logits of token 0 without a mask. Rows that are added have one token each and see
        the first slot of page 0 if every row of the step has one token and ``tokens == rows``; else
        they have no tokens. The header keeps the step's own numbers.

        Raises:
            ValueError: The step is longer, or the layout shorter; nothing was written.
        """

    def fields(self) -> dict[str, tuple[Any, int, int]]:
        """Name -> (numpy dtype, byte offset, number of elements), in the order of the buffer.

        The type of ``sampling`` is :func:`sampling_row`.
        """

    def meanings(self) -> dict[str, str]:
        """What each field is, by its name."""

@final
class Planner:
    """The scheduler's state and its two calls. One thread at a time.

    Steps run on the device in the order in which they were planned; any number of them may be in
    flight. Any call may raise MailboxClosed when the detokenizer is gone; the state is whole then.
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
        timeline: Timeline | None = None,
    ) -> Planner:
        """Nothing waits and nothing runs.

        The least of ``max_sequences`` (the length of the device's ``last_token``), the layout's
        rows and ``max_tokens_per_step`` bounds how many sequences run at once. ``prefill_chunk`` 0
        is no cap. The cache bounds a sequence too: its KV must fit ``min(num_blocks, max_pages)``
        blocks. ``timeline`` gets the spans of every call, the time between two as ``drain``.

        Raises:
            ValueError: A limit is out of its range, or the layout does not hold
                ``max_tokens_per_step``.
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
        """Take requests with grammars from now on; without this call they are refused.

        They are compiled on threads, each within ``timeout_s`` seconds, and what was compiled is
        kept in ``cache_bytes``. Reads the tokenizer on a thread, when the first one comes.

        Args:
            tokenizer_json: The content of tokenizer.json.
            end_tokens: Tokens that end an answer under a grammar.
            vocab_size: Logits of a row.
            scheduler: The mailbox that :meth:`drain` reads: woken when a grammar is ready.
            timeout_s: Seconds that one may take.
            cache_bytes: About how much memory compiled grammars may take.

        Raises:
            ValueError: An argument is out of its range.
        """

    def set_speculation(
        self,
        proposers: list[str],
        *,
        max_draft: int,
        history_tokens: int,
        adaptive: bool = True,
    ) -> None:
        """Let decoding rows have drafts from now on.

        Args:
            proposers: Names in :data:`PROPOSERS`.
            max_draft: Most draft tokens of a row.
            history_tokens: Tokens of recent answers that ``suffix`` remembers.
            adaptive: Decide lengths by measured time and acceptance; otherwise always the most.

        Raises:
            ValueError: There is no such proposer.
        """

    def drain(self, mailbox: Mailbox) -> list[bytes]:
        """Take in every message of the scheduler's mailbox; returns those not for the planner.

        Those are messages with another tag, what cannot be read, and a Submit whose key is there
        already. At most 4096 messages a call.
        """

    def plan(self, buffers: _Buffer) -> int:
        """Plan a step and write it into ``buffers``.

        ``buffers`` is writable, of ``StepLayout.nbytes`` bytes, 8-byte aligned. Returns the number
        of rows; 0 when there is nothing to run now, or the detokenizer's mailbox is full: then no
        step is in flight for it, and ``buffers`` is as it was.
        """

    def fill_masks(self, masks: _Buffer) -> int:
        """Fill the grammar masks of the step that was planned last; returns how many.

        To be called when every step before it is committed. Releases the GIL, and works on several
        threads.

        Args:
            masks: uint32, the field ``mask`` of the step's buffer.

        Raises:
            ValueError: No step is in flight, or one before it.
        """

    def fill_penalties(self, buffers: _Buffer) -> int:
        """Fill the penalties of the step that was planned last, and their number; returns that.

        To be called when every step before it is committed.

        Args:
            buffers: The step's buffers, as :meth:`plan` wrote them.

        Raises:
            ValueError: No step is in flight, or one before it.
        """

    def commit(
        self,
        sampled: _Buffer,
        counts: _Buffer,
        logprobs: tuple[_Buffer, _Buffer, _Buffer] | None = None,
    ) -> int:
        """Take the tokens (int32, one for each of its logits) of the oldest step in flight.

        ``counts`` (int32, one per sampling row) says how many of each row's count: those up to and
        with the first that differs from its draft. A negative token says that the sampler found
        none: that request ends with ``error``. Sends one TokensOut to the detokenizer. Returns how
        many requests ended.

        Where the step wants log-probabilities, ``logprobs`` has by logits the most likely tokens
        (int32, as many for each, -1 where there are no more), theirs, and those of the chosen
        tokens (both float32).

        Raises:
            ValueError: No step is in flight, or the numbers are not those of the step.
        """

    def fail_step(self) -> int:
        """End every request of the oldest step in flight with finish ``error``; returns how many.

        Raises:
            ValueError: No step is in flight.
        """

    def abort_all(self) -> int:
        """End everything, waiting or running, with finish ``error``; returns how many.

        Steps in flight are forgotten: do not commit them.
        """

    def check(self) -> None:
        """Check that all parts agree, in O(all). Raises RuntimeError naming what does not."""

    def stats(self) -> dict[str, int]:
        """Figures by name.

        Now: running, waiting, in_flight (steps), outbox (messages that the detokenizer's mailbox
        had no room for). Since the beginning: preemptions, steps, prompt_tokens, cached_tokens,
        completion_tokens, prefix_queries and prefix_hits (tokens looked up and found at admission,
        after a preemption too), and finished_stop, _length, _abort, _timeout, _overloaded, _error
        (requests).
        """

    def histograms(self) -> dict[str, tuple[list[int], list[int], int]]:
        """Distributions since the beginning, by name: upper bounds, counts, sum of all values.

        There is one count more than bounds, for what is above them all; counts are not cumulated.
        ``queue_time_ns`` (arrival to first admission), ``time_to_first_token_ns`` (arrival to the
        commit of the first token), ``inter_token_latency_ns`` (one commit to the next), and of
        requests that ended with ``stop`` or ``length``: ``duration_ns`` (from arrival),
        ``prompt_length`` and ``completion_length`` (tokens).
        """

    @property
    def has_work(self) -> bool:
        """Whether there is a request, a step in flight or a message that must go out."""

PROPOSERS: Final[dict[str, str]]
"""Names of draft token sources, in the order of the metrics, and what each drafts."""

DEFAULT_PROPOSERS: Final[tuple[str, ...]]
"""Those that draft unless settings say otherwise."""

DRAFT_POSITIONS: Final[int]
"""Positions of a draft that the planner counts apart; the last stands for all beyond."""

@final
class Speculator:
    """Drafts of the ``suffix`` proposer outside of a planner, for ``benches/bench_suffix.py``.

    Tokens are a buffer of u32. Any thread may call; calls wait for each other and keep the GIL.
    """

    def __new__(cls, history_tokens: int) -> Speculator:
        """The history holds at most ``history_tokens``."""

    def remember(self, output: _Buffer) -> None:
        """Take an output into the history; ``tend`` adds what does not fit at once."""

    def tend(self, budget: int) -> None:
        """Do work that was put off: index at most ``budget`` tokens."""

    def replay(self, output: _Buffer, propose: bool) -> tuple[int, int]:
        """Follow a new output token by token; before each token draft, if ``propose``.

        Returns how many tokens all drafts had together, and how many of them were right up to the
        first wrong one.
        """

    def memory(self) -> tuple[int, int]:
        """Tokens held now, and the bytes of memory that they take."""

@final
class DraftPasses:
    """Lays out the passes of a draft model within one step. One thread at a time.

    The draft model's keys and values lie in the same blocks as the model's. They are computed when
    a sequence is drafted for: a step without such drafts costs a note of its tokens, and what the
    draft model lacks of a sequence is computed in its next pass.
    """

    def __new__(
        cls,
        step: StepLayout,
        passes: StepLayout,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
    ) -> DraftPasses:
        """Passes of layout ``passes`` for steps of layout ``step``.

        Args:
            step: Of the steps.
            passes: Of the passes: at least as many rows and pages, and a token for every row.
            num_blocks: Blocks of the KV cache.
            block_size: Tokens in a block.
            vocab_size: Tokens that both models know: those below are read and drafted.

        Raises:
            ValueError: The layouts do not go together.
        """

    def begin(self, step: _Buffer) -> bool:
        """Take note of the tokens of a step, all of which are known but for drafts.

        Returns whether a row is to be drafted for: then call :meth:`next` until it is false.

        Raises:
            ValueError: ``step`` is no step of the layout.
        """

    def next(self, step: _Buffer, buffers: _Buffer, chosen: _Buffer) -> bool:
        """Write the next pass of the step that was begun into ``buffers``.

        Args:
            step: The step; gets the drafts that the pass before chose.
            buffers: A step of layout ``passes``.
            chosen: int32, begins with what the pass before sampled, by its sampling rows.

        Returns:
            Whether there is a pass to compute; if not, all drafts are in ``step``.

        Raises:
            ValueError: A buffer is too short.
        """

    def next_fed(self, step: _Buffer, buffers: _Buffer, places: _Buffer) -> bool:
        """The same on a device that feeds what a pass chooses to the next one, and to the step.

        Args:
            step: The step that was begun.
            buffers: A step of layout ``passes``, with feed entries where a token is a draft.
            places: int64, gets of each sampling row of the pass the place in the step's
                ``token_ids`` of what it chooses; in nobody else's hands meanwhile.

        Returns:
            Whether there is a pass to compute.

        Raises:
            TypeError: ``places`` is no buffer of int64.
            ValueError: A buffer is too short.
        """

    def learn(self, step: _Buffer, tokens: _Buffer, counts: _Buffer) -> None:
        """Take note of what a step chose: where the device feeds steps or passes, of every step
        once it is there.

        Args:
            step: The step, as it was planned.
            tokens: int32 [num_logits], what was sampled.
            counts: int32 [num_sampled], how many of each row's tokens count.

        Raises:
            ValueError: A buffer is too short.
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
            buffers: A step of layout ``passes``, which all of the following are made for.
            forward: Computes the tokens of a pass.
            logits: Computes the logits of its sampling rows, into ``logits_rows``.
            rules: By which they are sampled.
            logits_rows: [rows, vocabulary], as many as are computed and sampled at once.
            chosen: int32, gets what is sampled.

        Raises:
            ValueError: As :meth:`next`, and as the kernels.
        """

@final
class Vocabulary:
    """The bytes of every token, from a tokenizer.json (byte-level or byte-fallback)."""

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
    """Incremental detokenization of one sequence, with stop strings: what the Detokenizer actor
    does for each request. For benches and tests; the engine does not use it.

    The texts of all pushes and of :meth:`finish`, joined, are ``tokenizers``' own decoding of all
    tokens, cut at the stop string that completes first (of those that complete together, the
    longest). Any thread; calls wait for each other.
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
        """New text, and the stop string that ended it, if one did; no text after the end."""

    def finish(self) -> str:
        """The text that was withheld because it might have begun a stop string. Ends the stream."""

@final
class GrammarContext:
    """A tokenizer as grammars need it, for benches and tests; the engine does not use it.

    Any thread.
    """

    @staticmethod
    def from_tokenizer_json(
        text: str, end_token_ids: Sequence[int], vocab_size: int
    ) -> GrammarContext:
        """Read a Hugging Face ``tokenizer.json``, which is loaded at the first use.

        The ``end_token_ids`` end an answer and, like the tokenizer's special tokens, never match
        text. ``vocab_size`` is the number of the model's logits; ids that the tokenizer lacks are
        never allowed.

        Raises:
            ValueError: No end token, or one beyond ``vocab_size``. :meth:`load` raises for a
                mistake in the ``tokenizer.json``.
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
    tokenizer is loaded; for benches and tests. The engine compiles on its own threads.

    Blocks without the GIL.

    Raises:
        ValueError: The description is malformed, asks for what cannot be enforced, or takes too
            long; the message names the keyword of a schema with its path.
    """

@final
class CompiledGrammar:
    """A grammar: immutable, for any number of texts. Any thread. For benches and tests."""

    def start(self) -> GrammarState:
        """The state before the first token."""

    @property
    def backend(self) -> str:
        """``index`` (a table: choices and regexes) or ``llguidance``."""

    @property
    def warnings(self) -> list[str]:
        """Keywords that are not enforced, where the description allows that."""

@final
class GrammarState:
    """The state of one text in its grammar. Any thread; calls wait for each other. For benches and
    tests.
    """

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
        """Append a token. False, and nothing has changed, if it may not come here."""

    @property
    def is_terminated(self) -> bool:
        """Whether the text is complete: only an end token may come, or one has come."""

    @property
    def failure(self) -> str | None:
        """Why the backend gave up (its limits for one mask), if it did: only an end may come then,
        and the text may be incomplete.
        """

@final
class Detokenizer:
    """The Detokenizer actor: a Rust thread that never takes the GIL.

    It ends when its inbox is closed and read. If it fails, it closes all of its mailboxes.
    """

    def __new__(
        cls,
        vocabulary: Vocabulary,
        inbox: Mailbox,
        scheduler: Mailbox,
        frontends: Sequence[Mailbox],
        timeline: Timeline | None = None,
    ) -> Detokenizer:
        """The answers to frontend ``i`` of a request's key go to ``frontends[i]``.

        ``timeline`` gets the spans of every message.
        """

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
    """A C-contiguous array as the CPU kernels see it: float32, int32, int64, uint32, uint64, or
    bfloat16 given as its bits in (u)int16. Shares the array's memory and keeps it alive.
    """

    def __new__(cls, array: NDArray[Any]) -> CpuTensor:
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
        header: NDArray[Any],
        positions: NDArray[Any],
        slot_mapping: NDArray[Any],
        query_start: NDArray[Any],
        kv_length: NDArray[Any],
        page_indptr: NDArray[Any],
        page_indices: NDArray[Any],
    ) -> CpuStep: ...

@final
class CpuRules:
    """What is sampled by which rules; see :class:`pyengine.model.batch.StepBuffers`.

    A sampling row is a sequence that samples in the step; a logits row is one position of it: one,
    and one more for each of its draft tokens.
    """

    def __new__(
        cls,
        *,
        sampling: NDArray[Any],
        sample_position: NDArray[Any],
        logit_start: NDArray[Any],
        logit_row: NDArray[Any],
        logit_token: NDArray[Any],
        mask_row: NDArray[Any],
        mask: NDArray[Any],
        mask_words: int,
    ) -> CpuRules:
        """Views of the arrays, which are read anew at every call.

        Args:
            sampling: by sampling row, like the one that follows: its rules, of numpy's type for
                :func:`sampling_row`.
            sample_position: int64, position of the row's first sampled token.
            logit_start: int32, one more than sampling rows: where the logits rows of each begin.
            logit_row: int32 by logits row, like the two that follow: its sampling row.
            logit_token: int32, the token of the step whose logits these are. The token after it
                is the draft of what is sampled here, unless this is its sampling row's last.
            mask_row: int32, row of ``mask``, or -1: every token may be sampled.
            mask: uint32, rows of ``mask_words`` words: bit t % 32 of word t / 32 allows token t.
            mask_words: Words of a mask row: one bit for each token of the vocabulary.
        """

@final
class CpuPenalties:
    """Which logits are penalized, and how; see :class:`pyengine.model.batch.StepBuffers`."""

    def __new__(
        cls,
        *,
        start: NDArray[Any],
        token: NDArray[Any],
        factor: NDArray[Any],
        add: NDArray[Any],
        before: NDArray[Any],
    ) -> CpuPenalties:
        """Views of the arrays, which are read anew at every call.

        Args:
            start: int32, one more than logits rows: where the penalties of each begin.
            token: int32 by penalty, like the three that follow; none twice in a row.
            factor: float32, divides the token's logit if it is positive, else multiplies it.
            add: float32, is added then.
            before: float32, where the logits go that were there.
        """

@final
class CpuLinear:
    """The weights of a linear layer in float32, laid out for :meth:`CpuKernels.linear`."""

    def __new__(cls, weight: CpuTensor, bias: CpuTensor | None) -> CpuLinear:
        """Copy ``weight`` [outputs, inputs] and ``bias`` [outputs].

        Raises:
            ValueError: They are of another shape or type.
        """

    @staticmethod
    def supported() -> bool:
        """Whether the processor has what the kernel needs: x86-64 with AVX2, or with AVX-512."""

@final
class CpuKernels:
    """The kernels of the CPU runner, with their threads.

    They work on float32 or bfloat16 (one of them per call) and check data types, shapes and
    indices: ValueError names what is wrong. While a call runs, nobody else may write to its
    arguments.
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
        """Add ``branch`` to ``residual``, in place, and write the normalized sum times ``weight``
        to ``out``; the first ``rows`` rows of all three, [rows, len(weight)].
        """

    def head_rms_norm(
        self,
        qkv: CpuTensor,
        query_weight: CpuTensor,
        key_weight: CpuTensor,
        num_heads: int,
        epsilon: float,
        rows: int,
    ) -> None:
        """Normalize each query head and each key head of the first ``rows`` rows, in place.

        A row is ``num_heads`` query heads, key heads and as many value heads, of len(query_weight)
        numbers each; every query head is multiplied by ``query_weight``, every key head by
        ``key_weight``, and values stay.
        """

    def linear(self, weights: CpuLinear, x: CpuTensor, out: CpuTensor, rows: int) -> None:
        """X W^T + b for the first ``rows`` rows, float32: [rows, in] -> ``out`` [rows, out].

        A row's results are the same bits whatever other rows there are. Only where
        :meth:`CpuLinear.supported`.
        """

    def gather(
        self, table: CpuTensor, index: CpuTensor, out: CpuTensor, rows: int, first: int = 0
    ) -> None:
        """``out[i] = table[index[first + i]]`` for i below ``rows``; ``index`` is int32."""

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
        """Choose a token for each of the logits rows ``first`` to ``first + rows``.

        A token depends on its logits, its mask, and its sampling row's rules, seed and position
        alone. Rules apply in this order: mask, temperature, top-k, top-p, min-p. A mask that
        allows one token chooses it without a look at the logits. Where nothing is possible the
        token is -1.

        Args:
            rules: Of the step.
            logits: [rows or more, vocabulary], those of logits row ``first`` first.
            out: int32 by logits row of the step; entries ``first`` to ``first + rows`` are written.
            first: First logits row.
            rows: Number of logits rows.
        """

    def apply_penalties(
        self, penalties: CpuPenalties, logits: CpuTensor, first: int, rows: int
    ) -> None:
        """Apply the penalties to logits rows ``first`` to ``first + rows`` of the step, in place.

        ``logits`` is [rows or more, vocabulary], that of logits row ``first`` first. What was
        there is kept in ``penalties``.
        """

    def restore(self, penalties: CpuPenalties, logits: CpuTensor, first: int, rows: int) -> None:
        """Undo :meth:`apply_penalties`, with the same arguments."""

    def top_logprobs(
        self,
        rules: CpuRules,
        wanted: CpuTensor,
        logits: CpuTensor,
        chosen: CpuTensor,
        tokens: CpuTensor,
        logprobs: CpuTensor,
        of_chosen: CpuTensor,
        first: int,
        rows: int,
    ) -> None:
        """The log-softmax of the logits rows ``first`` to ``first + rows``, where it is wanted.

        Args:
            rules: Of the step.
            wanted: int32 by sampling row: how many most likely tokens; -1 is nothing at all.
            logits: [rows or more, vocabulary], those of logits row ``first`` first.
            chosen: int32 by logits row of the step: what was chosen; -1 is no token.
            tokens: int32 [logits rows of the step, most]: becomes the most likely, in order (of
                equals the lower id first), then -1.
            logprobs: float32, of the same shape: theirs.
            of_chosen: float32 by logits row: that of the chosen token.
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
        its leading drafts that equals what was sampled in its place.

        Args:
            rules: Of the step.
            token_ids: int32 [tokens], the tokens of the step, drafts among them.
            tokens: int32 by logits row: what :meth:`sample` chose.
            counts: int32 by sampling row; the first ``sampled`` are written.
            sampled: Number of sampling rows.
        """

def sampling_row() -> dict[str, Any]:
    """The fields of a sampling row as ``numpy.dtype`` takes them.

    Declared in ``kernels/cpu/src/sampler/sampling_row.rs``, with the names of
    :class:`pyengine.SamplingParams`.
    """

def pick_allowed(
    mask: NDArray[Any],
    words: int,
    mask_rows: NDArray[Any],
    hashes: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Choose among the tokens that masks allow by hashes: a sampler without logits. Any thread.

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
    """Kernels that are recorded once and run one after the other, in one call without the GIL.

    The methods of :class:`CpuKernels` by the same names record; what they say of rows is left to
    :meth:`run`. One thread at a time.
    """

    def __new__(cls, kernels: CpuKernels) -> CpuProgram:
        """A program of nothing yet, to be run by ``kernels``."""

    def add_rms_norm(
        self,
        residual: CpuTensor,
        branch: CpuTensor | None,
        weight: CpuTensor,
        epsilon: float,
        out: CpuTensor,
        rows: int = 0,
    ) -> None: ...
    def head_rms_norm(
        self,
        qkv: CpuTensor,
        query_weight: CpuTensor,
        key_weight: CpuTensor,
        num_heads: int,
        epsilon: float,
        rows: int = 0,
    ) -> None: ...
    def linear(self, weights: CpuLinear, x: CpuTensor, out: CpuTensor, rows: int = 0) -> None: ...
    def gather(
        self, table: CpuTensor, index: CpuTensor, out: CpuTensor, rows: int = 0, first: int = 0
    ) -> None: ...
    def silu_mul(self, gate_up: CpuTensor, out: CpuTensor, rows: int = 0) -> None: ...
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
    ) -> None: ...
    def run(self, rows: int, first: int = 0) -> None:
        """Run everything on the first ``rows`` rows; the indices of gathers begin at ``first``.

        Nothing can be recorded after that.

        Raises:
            ValueError: As the kernels; what ran before has been done.
        """

@final
class Stage:
    """What a span is: a part of a request's way, or of a step's."""

    HTTP_DECODE: ClassVar[Stage]
    TEMPLATE: ClassVar[Stage]
    TOKENIZE: ClassVar[Stage]
    QUEUE_WAIT: ClassVar[Stage]
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

    def __int__(self) -> int: ...
    @property
    def label(self) -> str:
        """Its name in reports and metrics."""

    @staticmethod
    def all() -> tuple[Stage, ...]:
        """All of them, in the order of their numbers."""

@final
class Track:
    """Whose time a span is; the track of one thread is a timeline without overlaps."""

    SCHEDULER: ClassVar[Track]
    DETOKENIZER: ClassVar[Track]
    FRONTEND: ClassVar[Track]
    REQUEST: ClassVar[Track]
    DEVICE: ClassVar[Track]

    def __int__(self) -> int: ...
    @property
    def label(self) -> str:
        """Its name in reports and metrics."""

    @staticmethod
    def all() -> tuple[Track, ...]:
        """All of them, in the order of their numbers."""

@final
class Recorder:
    """A flight recorder: a ring of the latest spans in shared memory, without locks.

    Any thread of any process writes and reads. A writer that is killed costs its slot.
    """

    def __new__(cls, capacity: int = 1 << 16) -> Recorder:
        """Room for ``capacity`` spans of 32 bytes, rounded up to a power of two.

        Raises:
            ValueError: ``capacity`` is 0 or over 2**24.
        """

    @staticmethod
    def attach(descriptor: int) -> Recorder:
        """The recorder of another process, by its inherited descriptor, which is duplicated.

        Raises:
            ValueError: It is not a recorder's.
            OSError: It is not open, or could not be mapped.
        """

    def descriptor(self) -> int:
        """To hand to a child process (``pass_fds``). Open while this object lives."""

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded; setting it counts for all processes."""

    @enabled.setter
    def enabled(self, value: bool) -> None: ...
    @property
    def recorded(self) -> int:
        """Spans that were offered so far: the number of the next one."""

    @property
    def refused(self) -> int:
        """Those of them that found their slot taken by a writer that was slow, or died."""

    @property
    def capacity(self) -> int:
        """Spans that it holds."""

    def timeline(self, track: Track) -> Timeline:
        """A new chain of spans in ``track``."""

    def read(self, start: int = 0) -> tuple[bytes, int]:
        """The spans from number ``start`` on, as far as they are still there; and the next number.

        Each is 32 bytes: start, end (``time.monotonic_ns()``) and step as u64, stage and track as
        u8, six bytes of padding; see ``pyengine.telemetry.spans``.
        """

    @staticmethod
    def cost_ns() -> float:
        """Nanoseconds that a span takes in Rust on this machine: measured now, in 0.2 ms."""

@final
class Timeline:
    """A chain of spans in a track: each begins where the one before it ended.

    One thread at a time. Where its recorder is switched off, nothing is recorded.
    """

    def begin(self) -> int:
        """The next span begins now. Returns ``time.monotonic_ns()``; 0 while nothing is
        recorded.
        """

    def end_span(self, stage: Stage) -> None:
        """A span ends now, and was ``stage``."""

    def span(self, stage: Stage, start: int) -> int:
        """A span from ``start`` to now, beside the chain. Returns now.

        For what goes on over an ``await``, where other tasks record too. A ``start`` of 0 records
        nothing.
        """

    def now(self) -> int:
        """``time.monotonic_ns()``."""

    def record(self, track: Track, stage: Stage, start: int, end: int, step: int) -> None:
        """A span that is known from elsewhere."""

@final
class Accountant:
    """Adds up a recorder's spans: what of them the device waited for, and what it did not.

    Any thread. Begins when made; what was recorded before does not count.
    """

    def __new__(cls, recorder: Recorder) -> Accountant: ...
    def start(self) -> None:
        """Sweep ten times a second, on a Rust thread, so that no span is overwritten unread."""

    def stop(self) -> None:
        """End the thread; so does dropping this."""

    def totals(self) -> dict[str, Any]:
        """Sweep now; everything so far: see :class:`pyengine.telemetry.Totals`."""
