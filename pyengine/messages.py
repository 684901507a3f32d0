"""Every message between actors.

::

               Submit, Abort,               OpenStream,
               ReportRequest, ...           TokensOut                   Deltas
    frontend ────────────────► scheduler ──────────────► detokenizer ───────────► frontend
        ▲                       │    ▲                        │
        └───── Report, ... ─────┘    └───── StopMatched ──────┘

On a ring a message is msgpack ``[tag, body]``; a body is the array of its fields, in the order of
``rust/messages/src/lib.rs``. Messages between Scheduler and Detokenizer are Rust only; this file
has the messages that Python writes or reads.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeVar, cast

import msgspec

from pyengine.telemetry.experts import ExpertLoad
from pyengine.telemetry.histogram import HistogramTotal
from pyengine.telemetry.totals import Totals

FinishReason = Literal["stop", "length", "abort", "timeout", "overloaded", "error", "refused"]


class RequestKey(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Names one request: its frontend, and that frontend's number for it."""

    frontend: int
    request: int

    @property
    def number(self) -> int:
        """A number that no other request has: the step of its spans."""
        return self.frontend << 48 | self.request


class Extension(msgspec.Struct, array_like=True, gc=False):
    """The part of a message that belongs to one feature, under a tag of its own: of a Submit what
    is asked for, of a Delta what is given back.

    Declared beside its feature, here in :mod:`pyengine.request.features` and in Rust under
    ``rust/scheduler/src/features/``.

    Attributes:
        ANSWER_TOKENS: Tokens that the request's answer has, whatever its parameters say.
    """

    TAG: ClassVar[str]
    ANSWER_TOKENS: ClassVar[int | None] = None


class Submit(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """A new request, or one that goes on after a restart; frontend to scheduler.

    Attributes:
        tokens: Token ids as u32 little-endian: the prompt, then what was generated before a
            restart.
        prompt_length: How many of ``tokens`` are the prompt.
        max_tokens: Most tokens to generate, including tokens from before a restart; 0 computes the
            prompt alone.
        sampling: How tokens are chosen; see :func:`pyengine.sampling.pack_sampling`.
        priority: Lower runs first.
        tenant: The tenant that the request is charged to; 0 where the client named none.
        cache_salt: Requests share cached prefixes only under the same salt.
        arrival_ns: ``time.monotonic_ns()`` at arrival.
        deadline_ns: ``time.monotonic_ns()`` at which to give up; 0 is never.
        extensions: What features are asked for, by tag; see :class:`Extension`.
    """

    key: RequestKey
    tokens: bytes
    prompt_length: int
    max_tokens: int
    min_tokens: int = 0
    sampling: bytes
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool
    priority: int = 0
    tenant: int = 0
    cache_salt: int = 0
    arrival_ns: int
    deadline_ns: int = 0
    extensions: dict[str, bytes] = {}


class Delta(msgspec.Struct, array_like=True, gc=False):
    """New text and tokens of a request since its last delta; detokenizer to frontend.

    Attributes:
        text: New text; never half a character, never a part of a stop string.
        tokens: The new tokens, also those whose text is still withheld. A tuple, because the
            garbage collector stops tracking it: with lists in all kept deltas, collections would
            scan the heap again and again, for tens of milliseconds.
        finish: Why the request ended; set in its last delta.
        stop_string: The stop string that matched, if one did.
        stop_token: The stop token that ended the request, if one did.
        completion_tokens: Tokens generated so far.
        queued_us: Microseconds from arrival to the first admission; 0 before.
        accepted_drafts: Draft tokens that were verified and accepted so far.
        rejected_drafts: Draft tokens that were verified and rejected so far.
        committed_ns: ``time.monotonic_ns()`` at the commit of the first of ``tokens``; 0 where none
            came.
        notice: Why the request was refused; of a running request, the keywords of its grammar that
            are not enforced.
        logprobs: If the request wants log-probabilities, a record for each of ``tokens``, in the
            form that :mod:`pyengine.logprobs` reads.
        extras: What features give back besides, in the order in which it came: the tag and the body
            of an :class:`Extension` each.
    """

    request: int
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason | None
    stop_string: str | None
    stop_token: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_us: int
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    committed_ns: int = 0
    notice: str | None = None
    logprobs: bytes = b""
    extras: tuple[tuple[str, bytes], ...] = ()


class ReportRequest(msgspec.Struct, array_like=True, gc=False):
    """Asks for a Report; frontend to scheduler. The Report carries the same ``ticket``, and if
    ``recorded`` what was recorded since one that did was made: the first begins a recording.
    """

    frontend: int
    ticket: int
    recorded: bool = False


class RecordedRequest(msgspec.Struct, array_like=True, gc=False):
    """A request that has ended, without its text.

    Attributes:
        sampling: The row of :func:`pyengine.sampling.pack_sampling`.
        prefix: A number for each full block of the prompt, which prompts that begin alike have in
            common.
        constrained: Whether its answer had a grammar.
    """

    arrival_ns: int
    prompt_tokens: int
    answer_tokens: int
    priority: int
    sampling: bytes
    prefix: list[int]
    constrained: bool


class Recorded(msgspec.Struct, array_like=True):
    """Requests and steps that ended between two moments of :func:`time.monotonic_ns`.

    Attributes:
        steps: Of each the rows, tokens, contexts that these see, all together, and the
            nanoseconds that the device worked.
    """

    since_ns: int
    until_ns: int
    requests: list[RecordedRequest]
    steps: list[tuple[int, int, int, int]]


class Report(msgspec.Struct, array_like=True):
    """Counters, distributions and times of the engine; scheduler to frontend.

    Attributes:
        stats: ``free``, ``cached``, ``held`` and ``num_blocks`` of the KV cache, ``running`` and
            ``waiting`` requests, and the counters of :meth:`pyengine._core.Planner.stats`.
        histograms: The distributions of :meth:`pyengine._core.Planner.histograms`.
        telemetry: Time by track and stage.
        experts: The load of each layer with experts.
        recorded: A :class:`Recorded` in msgpack, if it was asked for.
    """

    ticket: int
    stats: dict[str, int]
    histograms: dict[str, HistogramTotal]
    telemetry: Totals
    experts: list[ExpertLoad] = []
    recorded: bytes = b""


class ResetRequest(msgspec.Struct, array_like=True, gc=False):
    """Asks to forget all cached prefixes; frontend to scheduler, which answers with ResetDone."""

    frontend: int
    ticket: int


class LoadAdapter(msgspec.Struct, array_like=True, gc=False):
    """Asks to load an adapter; frontend to scheduler, which answers with AdapterLoaded.

    Attributes:
        digest: The SHA-256 of the adapter.
        folder: Where it is.
    """

    frontend: int
    ticket: int
    digest: bytes
    folder: str


class AdapterLoaded(msgspec.Struct, array_like=True, gc=False):
    """The adapter is loaded, or the ``error`` says why not; scheduler to frontend."""

    ticket: int
    error: str | None


class ResetDone(msgspec.Struct, array_like=True, gc=False):
    """The number of blocks that were cached and are free now; scheduler to frontend."""

    ticket: int
    blocks: int


Body = TypeVar("Body", bound=Extension)
Answer = Report | ResetDone | AdapterLoaded
ToPython = list[Delta] | ReportRequest | ResetRequest | LoadAdapter | Answer

_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "deltas": msgspec.msgpack.Decoder(list[Delta]),
    "report": msgspec.msgpack.Decoder(Report),
    "report_request": msgspec.msgpack.Decoder(ReportRequest),
    "reset_request": msgspec.msgpack.Decoder(ResetRequest),
    "reset_done": msgspec.msgpack.Decoder(ResetDone),
    "load_adapter": msgspec.msgpack.Decoder(LoadAdapter),
    "adapter_loaded": msgspec.msgpack.Decoder(AdapterLoaded),
}


def encode_extensions(extensions: Iterable[Extension]) -> dict[str, bytes]:
    """The ``extensions`` of a message by tag, as it carries them."""
    return {extension.TAG: _encoder.encode(extension) for extension in extensions}


def decode_extension(kind: type[Body], body: bytes) -> Body:
    """The extension of this kind that a message carries as ``body``."""
    return msgspec.msgpack.decode(body, type=kind)


def encode_submit(submit: Submit) -> bytes:
    """The bytes of ``submit`` on a ring."""
    return _encoder.encode(("submit", submit))


def encode_abort(key: RequestKey) -> bytes:
    """The bytes that abort ``key``; ignored if the request has ended."""
    return _encoder.encode(("abort", key))


def encode_abort_frontend(below: RequestKey) -> bytes:
    """The bytes that abort the requests of ``below.frontend`` with numbers under
    ``below.request``: the frontend's process has died, and its successor numbers from there on.
    """
    return _encoder.encode(("abort_frontend", below))


def encode_report_request(request: ReportRequest) -> bytes:
    """The bytes of ``request`` on a ring."""
    return _encoder.encode(("report_request", request))


def encode_report(report: Report) -> bytes:
    """The bytes of ``report`` on a ring."""
    return _encoder.encode(("report", report))


def encode_reset_request(request: ResetRequest) -> bytes:
    """The bytes of ``request`` on a ring."""
    return _encoder.encode(("reset_request", request))


def encode_reset_done(done: ResetDone) -> bytes:
    """The bytes of ``done`` on a ring."""
    return _encoder.encode(("reset_done", done))


def encode_load_adapter(request: LoadAdapter) -> bytes:
    """The bytes of ``request`` on a ring."""
    return _encoder.encode(("load_adapter", request))


def encode_adapter_loaded(loaded: AdapterLoaded) -> bytes:
    """The bytes of ``loaded`` on a ring."""
    return _encoder.encode(("adapter_loaded", loaded))


def decode(message: bytes) -> ToPython:
    """The body of a message to Python.

    Raises:
        msgspec.DecodeError: ``message`` is malformed, or not a message to Python.
    """
    tag, body = _envelope.decode(message)
    decoder = _decoders.get(tag)
    if decoder is None:
        raise msgspec.DecodeError(f"unknown message {tag!r}")
    return cast("ToPython", decoder.decode(body))
