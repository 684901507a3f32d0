"""The requests of one process, listed and aborted."""

import time
from collections.abc import Callable, Iterable

from pyengine.http.admin.administration import RunningRequest
from pyengine.http.exchange import Exchange


class OwnRequests:
    """The requests of this process.

    Attributes:
        alone: True.
    """

    alone = True

    def __init__(self, exchanges: Callable[[], Iterable[Exchange]]) -> None:
        """``exchanges`` gives those that are being served."""
        self._exchanges = exchanges

    async def requests(self) -> list[RunningRequest]:
        """Lists the requests that are being answered, oldest first."""
        return self.select(None, abort=False)

    async def abort(self, request_id: str | None) -> list[RunningRequest]:
        """End those with that id, or all; returns them."""
        return self.select(request_id, abort=True)

    def select(self, request_id: str | None, *, abort: bool) -> list[RunningRequest]:
        """Finds the requests with that id, or all, oldest first; ``abort`` ends them."""
        chosen = [each for each in self._exchanges() if each.generates and not each.gone]
        if request_id is not None:
            chosen = [each for each in chosen if request_id in (each.request_id, each.answer_id)]
        found = sorted(map(_running, chosen), key=lambda request: -request.age_s)
        if abort:
            for exchange in chosen:
                exchange.abort()
        return found


def _running(exchange: Exchange) -> RunningRequest:
    usages = [outcome.usage for outcome in exchange.outcomes]
    return RunningRequest(
        id=exchange.request_id,
        answer_id=exchange.answer_id,
        path=exchange.path,
        key=None if exchange.key is None else exchange.key.name,
        age_s=round((time.monotonic_ns() - exchange.begun_ns) * 1e-9, 3),
        tokens_in=sum(usage.prompt_tokens for usage in usages),
        tokens_out=sum(usage.completion_tokens for usage in usages),
    )
