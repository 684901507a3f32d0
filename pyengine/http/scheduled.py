"""The fields by which requests of every API say when they run, and what they share."""

from typing import Any

import msgspec

from pyengine.request.options import RequestOptions


class ScheduledRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to the model.

    Attributes:
        model: The model that is to answer; without it, the one that is served.
    """

    model: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None

    def scheduled(self, **others: Any) -> RequestOptions:
        """The options of the request, with ``others``.

        Raises:
            InvalidRequestError: Naming one that is out of its range.
        """
        priority, salt, timeout = self.priority or 0, self.cache_salt, self.timeout
        return RequestOptions(priority=priority, cache_salt=salt, timeout=timeout, **others)
