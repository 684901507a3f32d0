"""The requests that a server works on, for those who administer it: listed, and aborted.

A server has them in its own process (:mod:`pyengine.http.admin.own_requests`), or in several HTTP
workers that only the supervisor reaches (:mod:`pyengine.http.serving.commands`).
"""

from typing import Protocol

import msgspec


class RunningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being answered. No text of it.

    Attributes:
        id: The answer's ``x-request-id``.
        answer_id: The ``id`` in the answer's body, once it is known.
        path: The path of the HTTP request.
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


class Administration(Protocol):
    """Reaches the requests of all processes that serve.

    Attributes:
        alone: Whether one process serves all requests.
    """

    alone: bool

    async def requests(self) -> list[RunningRequest]:
        """Lists the requests that are being answered, oldest first."""

    async def abort(self, request_id: str | None) -> list[RunningRequest]:
        """End those with that id, or all; returns them.

        Args:
            request_id: Their ``x-request-id``, or the ``id`` in their answers; None is all.
        """
