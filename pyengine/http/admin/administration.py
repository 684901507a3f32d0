"""The requests that a server works on, for those who administer it: listed, and aborted.

A server has them in its own process, or in several HTTP workers that only the supervisor reaches
(:mod:`pyengine.http.serving.commands`).
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from pyengine.http.exchange import Exchange


class RunningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being answered. No text of it.

    Attributes:
        id: The answer's ``x-request-id``.
        answer_id: The ``id`` in the answer's body, once it is known.
        path: Of HTTP.
        key: Name of the API key.
        age_s: Seconds since its head came.
        tokens_in: Tokens of the prompts.
        tokens_out: Tokens of the answers so far.
    """

    id: str
    answer_id: str | None
    path: str
    key: str | None
    age_s: float
    tokens_in: int
    tokens_out: int

    @classmethod
    def of(cls, exchange: Exchange) -> "RunningRequest":
        """How ``exchange`` stands."""
        usages = [outcome.usage for outcome in exchange.outcomes]
        return cls(
            id=exchange.request_id,
            answer_id=exchange.answer_id,
            path=exchange.path,
            key=None if exchange.key is None else exchange.key.name,
            age_s=round((time.monotonic_ns() - exchange.begun_ns) * 1e-9, 3),
            tokens_in=sum(usage.prompt_tokens for usage in usages),
            tokens_out=sum(usage.completion_tokens for usage in usages),
        )


class Administration(Protocol):
    """Reaches the requests of all processes that serve."""

    async def requests(self) -> list[RunningRequest]:
        """Those that are being answered, the oldest first."""

    async def abort(self, request_id: str | None) -> list[RunningRequest]:
        """End those with that id, or all; returns them.

        Args:
            request_id: Their ``x-request-id``, or the ``id`` in their answers; None is all.
        """


class OwnRequests:
    """The requests of this process."""

    def __init__(self, exchanges: Callable[[], Iterable[Exchange]]) -> None:
        """``exchanges`` gives those that are being served."""
        self._exchanges = exchanges

    async def requests(self) -> list[RunningRequest]:
        """Those that are being answered, the oldest first."""
        return self.select(None, abort=False)

    async def abort(self, request_id: str | None) -> list[RunningRequest]:
        """End those with that id, or all; returns them."""
        return self.select(request_id, abort=True)

    def select(self, request_id: str | None, *, abort: bool) -> list[RunningRequest]:
        """Those with that id, or all, the oldest first; they are ended where ``abort``."""
        chosen = [each for each in self._exchanges() if each.generates and not each.gone]
        if request_id is not None:
            chosen = [each for each in chosen if request_id in (each.request_id, each.answer_id)]
        found = sorted(map(RunningRequest.of, chosen), key=lambda request: -request.age_s)
        if abort:
            for exchange in chosen:
                exchange.abort()
        return found
