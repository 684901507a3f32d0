"""The supervisor's own endpoint: ``/metrics`` of all replicas, and a 503 while there is none.

The router knows this endpoint as one more replica, which is never healthy: a router that knows no
replica of a model says that the model does not exist, and one whose replicas are all unhealthy says
503, with ``Retry-After``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pyengine.errors import NotReadyError, PyengineError
from pyengine.http.access.door import Door
from pyengine.http.errors import error_body, error_headers
from pyengine.http.limits import Limits
from pyengine.http.operations.expert_families import asks_for_each_expert
from pyengine.http.rsgi import Scope

JSON = ("content-type", "application/json")
CREDENTIALS = ("authorization", "x-api-key", "api-key")
"""Headers of a scrape that the replicas ask for too."""


class Operations:
    """An RSGI application. Called by granian on the supervisor's loop.

    Attributes:
        limits: For the HTTP server.
        registering: Whether the router is being told of this endpoint, which must look healthy
            then.
        ready: Whether a replica takes requests.
    """

    def __init__(
        self, scrape: Callable[[str, dict[str, str]], Awaitable["Scraped"]], door: Door
    ) -> None:
        """Take a function that scrapes all replicas with a scraper's query and credentials, and the
        door.
        """
        self.limits = Limits()
        self.registering = False
        self.ready = False
        self._scrape = scrape
        self._door = door

    async def __rsgi__(self, scope: Scope, proto: Any) -> None:
        """Serve one request."""
        if scope.proto != "http":
            return
        try:
            if scope.path == "/metrics":
                await self._metrics(scope, proto)
            elif (scope.path == "/health" and self.registering) or (
                scope.path == "/ready" and self.ready
            ):
                proto.response_bytes(200, [JSON], b'{"status":"ok"}')
            else:
                raise NotReadyError("No replica is ready yet; try again in a moment.")
        except PyengineError as error:
            headers = [JSON, *error_headers(error)]
            proto.response_bytes(error.status, headers, error_body(error))

    async def _metrics(self, scope: Scope, proto: Any) -> None:
        self._door.cors(scope)
        self._door.enter(scope, scope.path)
        given = {name: scope.headers.get(name) for name in CREDENTIALS}
        asks_for_each_expert(scope.query_string)  # what replicas would refuse
        credentials = {name: key for name, key in given.items() if key}
        scraped = await self._scrape(scope.query_string, credentials)
        encode, content_type = choose_encoder(scope.headers.get("accept") or "")
        proto.response_bytes(200, [("content-type", content_type)], encode(scraped))


class Scraped(Collector):
    """The metrics of all replicas, each sample with the label ``replica``, and of the router."""

    def __init__(
        self, replicas: Mapping[int, str | None], restarts: Mapping[int, int], router: str
    ) -> None:
        """Take what was scraped, in Prometheus' text format.

        Args:
            replicas: What each replica answered; None if it did not.
            restarts: How often each was started again.
            router: What the router answered.
        """
        self._replicas = replicas
        self._restarts = restarts
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """The families, those of equal names as one."""
        up = GaugeMetricFamily("pyengine_replica_up", "1 if it answers.", labels=["replica"])
        restarts = CounterMetricFamily(
            "pyengine_replica_restarts", "Times that it was started again.", labels=["replica"]
        )
        for replica, text in self._replicas.items():
            up.add_metric([str(replica)], text is not None)
            restarts.add_metric([str(replica)], self._restarts[replica])
        yield from (up, restarts)
        yield from merged(
            (text, {"replica": str(replica)}) for replica, text in self._replicas.items() if text
        )
        yield from text_string_to_metric_families(self._router)


def merged(texts: Iterable[tuple[str, dict[str, str]]]) -> Iterable[Metric]:
    """The families of several expositions, the samples of each with its labels added."""
    families: dict[str, Metric] = {}
    for text, labels in texts:
        for family in text_string_to_metric_families(text):
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            known.samples.extend(
                Sample(sample.name, {**sample.labels, **labels}, sample.value)
                for sample in family.samples
            )
    return families.values()


async def gathered(
    scrapes: Mapping[int, Callable[[], Awaitable[str]]],
) -> dict[int, str | None]:
    """The texts of all scrapes, made at once; None of one that failed."""

    async def one(scrape: Callable[[], Awaitable[str]]) -> str | None:
        try:
            return await scrape()
        except OSError:
            return None

    texts = await asyncio.gather(*(one(scrape) for scrape in scrapes.values()))
    return dict(zip(scrapes, texts, strict=True))
