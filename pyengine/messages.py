"""Every message between actors.

::

    frontend ── Submit, Abort ──► scheduler ── OpenStream, TokensOut ──► detokenizer ─ Deltas ─► frontend
                                      ▲                                      │
                                      └───────────── StopMatched ────────────┘

On a ring a message is msgpack ``[tag, body]``; bodies are arrays of their fields in order, as
``rust/src/messages.rs`` spells them. Scheduler and Detokenizer speak to each other in Rust; what
Python writes and reads is here.
"""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "timeout", "overloaded", "error"]


class RequestKey(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Names one request: its frontend, and that frontend's number for it."""

    frontend: int
    request: int


class SamplingRules(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """How the next token is chosen; see :class:`pyengine.SamplingParams`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


class Submit(msgspec.Struct, array_like=True, gc=False):
    """A new request, or one that goes on after a restart; frontend to scheduler.

    Attributes:
        tokens: Token ids as u32 little-endian: the prompt, then what was generated before a
            restart.
        prompt_length: How many of them are the prompt.
        max_tokens: Most tokens to generate, those before a restart counted in.
        priority: Lower runs first.
        tenant: Whom the request is charged to; 0 is nobody in particular.
        cache_salt: Requests share cached prefixes only under the same salt.
        arrival_ns: ``time.monotonic_ns()`` at arrival.
        deadline_ns: ``time.monotonic_ns()`` at which to give up; 0 is never.
    """

    key: RequestKey
    tokens: bytes
    prompt_length: int
    max_tokens: int
    min_tokens: int
    sampling: SamplingRules
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    priority: int
    tenant: int
    cache_salt: int
    arrival_ns: int
    deadline_ns: int


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What a request got since its last delta; detokenizer to frontend.

    Attributes:
        text: New text; never half a character, never a part of a stop string.
        tokens: The tokens behind it, also those whose text is still withheld.
        finish: Why the request ended, in its last delta.
        stop_string: The stop string that matched, if one did.
        stop_token: The stop token that ended the request, if one did.
        completion_tokens: Tokens generated up to here.
    """

    request: int
    text: str
    tokens: list[int]
    finish: FinishReason | None
    stop_string: str | None
    stop_token: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


_encoder = msgspec.msgpack.Encoder()
_deltas_decoder = msgspec.msgpack.Decoder(tuple[Literal["deltas"], list[Delta]])


def encode_submit(submit: Submit) -> bytes:
    """The bytes of ``submit`` on a ring."""
    return _encoder.encode(("submit", submit))


def encode_abort(key: RequestKey) -> bytes:
    """The bytes that abort ``key``; no harm if it has ended meanwhile."""
    return _encoder.encode(("abort", key))


def decode_deltas(message: bytes) -> list[Delta]:
    """The deltas in one message of the detokenizer.

    Raises:
        msgspec.DecodeError: ``message`` is none.
    """
    return _deltas_decoder.decode(message)[1]
