"""Every message between actors.

::

               Submit, Abort,               OpenStream,
               ReportRequest                TokensOut                   Deltas
    frontend ────────────────► scheduler ──────────────► detokenizer ───────────► frontend
        ▲                       │    ▲                        │
        └──────── Report ───────┘    └───── StopMatched ──────┘

On a ring a message is msgpack ``[tag, body]``; bodies are arrays of their fields in order, as
``rust/engine/src/messages.rs`` spells them. Scheduler and Detokenizer speak to each other in Rust;
what Python writes and reads is here.
"""

from typing import Any, Literal, cast

import msgspec

from pyengine.telemetry.histogram import HistogramTotal
from pyengine.telemetry.totals import Totals

FinishReason = Literal["stop", "length", "abort", "timeout", "overloaded", "error", "refused"]


class RequestKey(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Names one request: its frontend, and that frontend's number for it."""

    frontend: int
    request: int


class Submit(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """A new request, or one that goes on after a restart; frontend to scheduler.

    Attributes:
        tokens: Token ids as u32 little-endian: the prompt, then what was generated before a
            restart.
        prompt_length: How many of them are the prompt.
        max_tokens: Most tokens to generate, those before a restart counted in.
        sampling: How tokens are chosen; see :func:`pyengine.sampling.pack_sampling`.
        logit_bias: Tokens, none twice, and what is added to their logits.
        bad_words: Sequences of tokens of which the last must not follow the others.
        priority: Lower runs first.
        tenant: Whom the request is charged to; 0 is nobody in particular.
        cache_salt: Requests share cached prefixes only under the same salt.
        arrival_ns: ``time.monotonic_ns()`` at arrival.
        deadline_ns: ``time.monotonic_ns()`` at which to give up; 0 is never.
        grammar: What the answer must look like; see :meth:`pyengine.grammar.Grammar.description`.
        close_grammar: End what the grammar has begun within ``max_tokens``.
        prediction: What the answer is expected to be, token ids like ``tokens``; a draft.
        logprobs: Of how many most likely tokens the log-probabilities are wanted, beside each
            token's own; None is none at all.
    """

    key: RequestKey
    tokens: bytes
    prompt_length: int
    max_tokens: int
    min_tokens: int = 0
    sampling: bytes
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    tenant: int = 0
    cache_salt: int = 0
    arrival_ns: int
    deadline_ns: int = 0
    grammar: bytes | None = None
    close_grammar: bool = False
    prediction: bytes = b""
    logprobs: int | None = None


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What a request got since its last delta; detokenizer to frontend.

    Attributes:
        text: New text; never half a character, never a part of a stop string.
        tokens: The tokens behind it, also those whose text is still withheld. A tuple, which the
            garbage collector lets go of: lists of all deltas kept would make it look at the whole
            heap again and again, for tens of milliseconds.
        finish: Why the request ended, in its last delta.
        stop_string: The stop string that matched, if one did.
        stop_token: The stop token that ended the request, if one did.
        completion_tokens: Tokens generated up to here.
        queued_us: Microseconds from arrival to the first admission; 0 before.
        accepted_drafts: Draft tokens that were verified and taken, up to here.
        rejected_drafts: Draft tokens that were verified and dropped, up to here.
        notice: Why the request was refused; else what of its grammar is not enforced.
        logprobs: If the request wants them, a record for each of ``tokens``, as
            :mod:`pyengine.logprobs` reads them.
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
    notice: str | None = None
    logprobs: bytes = b""


class ReportRequest(msgspec.Struct, array_like=True, gc=False):
    """Asks the scheduler how things stand; frontend to scheduler. ``ticket`` comes back."""

    frontend: int
    ticket: int


class Report(msgspec.Struct, array_like=True):
    """How things stand; scheduler to frontend.

    Attributes:
        stats: ``free``, ``cached``, ``held`` and ``num_blocks`` of the KV cache, ``running`` and
            ``waiting`` requests, and the counters of :meth:`pyengine._core.Planner.stats`.
        histograms: Those of :meth:`pyengine._core.Planner.histograms`.
        telemetry: Where the time went.
    """

    ticket: int
    stats: dict[str, int]
    histograms: dict[str, HistogramTotal]
    telemetry: Totals


_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "deltas": msgspec.msgpack.Decoder(list[Delta]),
    "report": msgspec.msgpack.Decoder(Report),
    "report_request": msgspec.msgpack.Decoder(ReportRequest),
}


def encode_submit(submit: Submit) -> bytes:
    """The bytes of ``submit`` on a ring."""
    return _encoder.encode(("submit", submit))


def encode_abort(key: RequestKey) -> bytes:
    """The bytes that abort ``key``; no harm if it has ended meanwhile."""
    return _encoder.encode(("abort", key))


def encode_abort_frontend(below: RequestKey) -> bytes:
    """The bytes that abort the requests of ``below.frontend`` with numbers under
    ``below.request``: its process has died, and its successor's begin there.
    """
    return _encoder.encode(("abort_frontend", below))


def encode_forget_answers(tenant: int, cache_salt: int) -> bytes:
    """The bytes that drop the recent answers of requests with this tenant and salt."""
    return _encoder.encode(("forget_answers", (tenant, cache_salt)))


def encode_report_request(request: ReportRequest) -> bytes:
    """The bytes of ``request`` on a ring."""
    return _encoder.encode(("report_request", request))


def encode_report(report: Report) -> bytes:
    """The bytes of ``report`` on a ring."""
    return _encoder.encode(("report", report))


def decode(message: bytes) -> list[Delta] | Report | ReportRequest:
    """The body of a message that Python reads.

    Raises:
        msgspec.DecodeError: ``message`` is malformed, or not one that Python reads.
    """
    tag, body = _envelope.decode(message)
    decoder = _decoders.get(tag)
    if decoder is None:
        raise msgspec.DecodeError(f"unknown message {tag!r}")
    return cast("list[Delta] | Report | ReportRequest", decoder.decode(body))
