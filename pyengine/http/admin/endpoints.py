"""``/admin``: list and abort requests, reset the prefix cache, let the engine sleep and wake it up.

The door lets in who has the admin key.
"""

from typing import TYPE_CHECKING

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.admin.administration import RunningRequest
from pyengine.http.errors import NoSuchRequestError

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange


class AbortRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Names the requests that are to end.

    Attributes:
        request_id: The ``x-request-id`` of an answer, or the ``id`` in its body.
        abort_all: Every request, in place of an id.
    """

    request_id: str | None = None
    abort_all: bool = False


class RequestList(msgspec.Struct):
    """Requests that are, or were, being answered; the oldest first."""

    requests: list[RunningRequest]


class ResetAnswer(msgspec.Struct):
    """How many KV blocks were cached and are free now."""

    freed_blocks: int


class SleepState(msgspec.Struct):
    """Whether the engine sleeps."""

    asleep: bool


_abort_request = msgspec.json.Decoder(AbortRequest)


async def list_requests(exchange: "Exchange") -> None:
    """Requests that are being answered."""
    found = await exchange.service.administration.requests()
    exchange.answer(RequestList(found))


async def abort_request(exchange: "Exchange") -> None:
    """End one request, or all; their clients get an error, and those that ended are answered."""
    wanted = await exchange.read(_abort_request)
    if (wanted.request_id is not None) == wanted.abort_all:
        raise InvalidRequestError(
            "Give either 'request_id', or 'abort_all' as true.", param="request_id"
        )
    ended = await exchange.service.administration.abort(wanted.request_id)
    if wanted.request_id is not None and not ended:
        raise NoSuchRequestError(
            f"No request with the id {wanted.request_id[:100]!r} is being answered.",
            param="request_id",
        )
    exchange.answer(RequestList(ended))


async def reset_prefix_cache(exchange: "Exchange") -> None:
    """Forget all cached prefixes but those that running requests hold."""
    freed = await exchange.service.require_responsive().reset_prefix_cache()
    exchange.answer(ResetAnswer(freed))


async def sleep(exchange: "Exchange") -> None:
    """End the engine's process until it is woken up: all its memory is free, and requests wait."""
    await exchange.service.require_ready().sleep()
    _reply_asleep(exchange)


async def wake_up(exchange: "Exchange") -> None:
    """Load the model again; the requests go on."""
    await exchange.service.require_ready().wake_up()
    _reply_asleep(exchange)


async def is_sleeping(exchange: "Exchange") -> None:
    """Whether the engine sleeps."""
    exchange.service.require_ready()
    _reply_asleep(exchange)


def _reply_asleep(exchange: "Exchange") -> None:
    exchange.answer(SleepState(exchange.service.engine.asleep))
