"""The application in two parts: the metrics have a port of their own, or are with the rest."""

from typing import Any

from pyengine.http.app import App
from pyengine.http.limits import Limits
from pyengine.http.rsgi import Scope

METRICS = ("/metrics", "/debug")
EVERYWHERE = frozenset({"/health", "/ready", "/ping", "/version"})


class Part:
    """The paths of an application that one port serves: the metrics, or all others.

    Attributes:
        limits: The application's.
    """

    def __init__(self, app: App, *, metrics: bool) -> None:
        self.limits: Limits = app.limits
        self._app = app
        self._metrics = metrics

    async def __rsgi__(self, scope: Scope, proto: Any) -> None:
        """Serve one request; one of the other port's is answered 404."""
        await self._app.serve(scope, proto, self.has)

    def has(self, path: str) -> bool:
        """Whether ``path`` is served at this port."""
        return path in EVERYWHERE or path.startswith(METRICS) is self._metrics
