"""``GET /metrics``: the engine's metrics in Prometheus' text format, or OpenMetrics on demand.

Everything is counted in the engine, and a scrape is one report of it, and of the store: all HTTP
workers answer alike. While the engine does not answer, a scrape has only what its heartbeat tells.
``docs/METRICS.md`` describes each name.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partialmethod
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pyengine.async_engine import AsyncEngine
from pyengine.http.operations.expert_families import asks_for_each_expert, expert_families
from pyengine.http.operations.metric_families import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    LOOKUPS,
    NS,
    UNITS,
)
from pyengine.http.store.store import StoreUse
from pyengine.messages import Report
from pyengine.telemetry import STEP_BOUNDS_S, Totals
from pyengine.telemetry.drafts import Drafts, proposers
from pyengine.telemetry.experts import ExpertLoad

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

FINISH_REASONS = ("stop", "length", "abort", "timeout", "overloaded", "error", "refused")
# What a report may take; a scrape by Prometheus may take 10 seconds.
REPORT_S = 5.0
STORED_KINDS = ("response", "conversation", "chat completion", "file", "batch")
BLOCK_STATES = ("free", "cached", "held")


async def metrics(exchange: "Exchange") -> None:
    """Metrics for Prometheus; 503 while the engine is not ready.

    With ``experts=1`` in the query there is a series for every expert of every layer, too.
    """
    engine = exchange.service.require_ready()
    each_expert = asks_for_each_expert(exchange.scope.query_string)
    report = None
    if engine.waits_for is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_S):
                report = await engine.metrics()
    encode, content_type = choose_encoder(exchange.scope.headers.get("accept") or "")
    store = exchange.service.store
    use = await store.use()
    room = store.limits.most_bytes
    body = encode(EngineCollector(engine, report, use, room, each_expert=each_expert))
    exchange.reply(body, content_type=content_type)


class EngineCollector(Collector):
    """An engine's heartbeat and report as Prometheus' metric families.

    Each sample has the label ``model_name``.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        report: Report | None,
        store: StoreUse,
        room: int,
        *,
        each_expert: bool = False,
    ) -> None:
        """The metrics of one moment.

        Args:
            engine: The engine whose heartbeat is read.
            report: The engine's; None if it did not give one.
            store: What the store has.
            room: The store's, in bytes.
            each_expert: Count the tokens of every expert of every layer.
        """
        self._engine = engine
        self._report = report
        self._store = store
        self._room = room
        self._each_expert = each_expert
        self._model = engine.model_name

    def collect(self) -> Iterator[Metric]:
        """The families, in a fixed order."""
        yield from self._heartbeat(self._engine)
        yield from self._stored()
        if self._report is not None:
            yield from self._reported(self._report)

    def _heartbeat(self, engine: AsyncEngine) -> Iterator[Metric]:
        yield self._gauge(
            "engine_up",
            "1 if the engine works on requests, 0 while it is restarted or does not respond.",
            [((), engine.waits_for is None)],
        )
        yield self._gauge(
            "engine_step_age_seconds",
            "Time since the step under way began; 0 without one.",
            [((), engine.connection.step_s)],
        )
        yield self._counter(
            "engine_restarts",
            "Engines that were started in the place of one that died or hung.",
            [((), engine.connection.restarts)],
        )

    def _stored(self) -> Iterator[Metric]:
        yield self._gauge(
            "store_bytes",
            "Bytes of stored objects: responses, completions, files, batches.",
            [((), self._store.bytes)],
        )
        yield self._gauge("store_room_bytes", "The store's room.", [((), self._room)])
        yield self._gauge(
            "store_objects",
            "Stored objects, by kind.",
            [
                ((kind.replace(" ", "_"),), self._store.objects.get(kind, 0))
                for kind in STORED_KINDS
            ],
            ["kind"],
        )

    def _reported(self, report: Report) -> Iterator[Metric]:
        stats = report.stats
        for family, values in ((self._gauge, GAUGES), (self._counter, COUNTERS)):
            for name, value, text in values:
                unit = UNITS.get(value.rpartition("_")[2], 1)
                yield family(name, text, [((), stats.get(value, 0) * unit)])
        yield self._counter(
            "request_finished",
            "Requests that ended, by reason.",
            [((reason,), stats[f"finished_{reason}"]) for reason in FINISH_REASONS],
            ["reason"],
        )
        yield self._gauge(
            "kv_blocks",
            "Pages of the KV cache, by state.",
            [((state,), stats[state]) for state in BLOCK_STATES],
            ["state"],
        )
        yield self._gauge(
            "kv_cache_bytes",
            "Bytes of the KV cache, by state.",
            [((state,), stats[state] * stats["page_bytes"]) for state in BLOCK_STATES],
            ["state"],
        )
        yield self._gauge(
            "kv_cache_usage_ratio",
            "The share of the KV cache's blocks that requests hold.",
            [((), stats["held"] / stats["num_blocks"])],
        )
        blocks = (str(self._engine.config.block_size), str(stats["num_blocks"]))
        yield self._gauge(
            "cache_config_info",
            "The size of the KV cache; always 1.",
            [(blocks, 1)],
            ["block_size", "num_blocks"],
        )
        for name, text in LOOKUPS:
            yield self._counter(
                f"{name}_lookups",
                text,
                [
                    ((result,), stats[f"{name}_{plural}"])
                    for result, plural in (("hit", "hits"), ("miss", "misses"))
                ],
                ["result"],
            )
        yield from self._drafts(proposers(stats))
        yield from self._experts(report.experts)
        histograms = report.histograms | report.telemetry.lengths
        for name, source, text in HISTOGRAMS:
            histogram, unit = histograms[source], NS if name.endswith("_seconds") else 1
            bounds = [bound * unit for bound in histogram.bounds]
            yield self._histogram(name, text, bounds, histogram.counts, histogram.sum * unit)
        yield from self._telemetry(report.telemetry)

    def _drafts(self, proposers: Sequence[Drafts]) -> Iterator[Metric]:
        yield self._counter(
            "draft_tokens",
            "Draft tokens that the device has verified, by proposer.",
            [
                ((drafts.proposer, outcome), tokens)
                for drafts in proposers
                for outcome, tokens in (
                    ("accepted", drafts.accepted),
                    ("rejected", drafts.drafted - drafts.accepted),
                )
            ],
            ["proposer", "outcome"],
        )
        yield self._counter(
            "draft_tokens_by_position",
            "Draft tokens behind accepted ones only, by their place in a row's draft.",
            [
                ((drafts.proposer, str(position.place), outcome), tokens)
                for drafts in proposers
                for position in drafts.positions
                for outcome, tokens in (
                    ("accepted", position.accepted),
                    ("rejected", position.reached - position.accepted),
                )
            ],
            ["proposer", "position", "outcome"],
        )

    def _experts(self, layers: Sequence[ExpertLoad]) -> Iterator[Metric]:
        config = self._engine.config
        ranks = config.tensor_parallel if config.expert_parallel else 1
        families = expert_families(layers, ranks, each_expert=self._each_expert)
        for kind, name, text, labels, samples in families:
            family = self._gauge if kind == "gauge" else self._counter
            yield family(name, text, samples, labels)

    def _telemetry(self, totals: Totals) -> Iterator[Metric]:
        yield self._histogram(
            "step_duration_seconds",
            "Step times: each from the end of the one before, less idle time.",
            STEP_BOUNDS_S,
            totals.step_histogram,
            totals.steps_ns * NS,
        )
        yield self._counter(
            "stage_seconds",
            "Time in each stage of the path, by whether the device had nothing to do meanwhile.",
            [
                ((total.track, total.stage, exposed), nanoseconds * NS)
                for total in totals.stages
                for exposed, nanoseconds in (
                    ("true", total.exposed_ns),
                    ("false", total.overlapped_ns),
                )
            ],
            ["track", "stage", "exposed"],
        )
        yield self._counter(
            "thread_wait_seconds",
            "Time in which the engine's threads were ready to run and had no core.",
            [((use.track,), use.waiting_ns * NS) for use in totals.host.threads],
            ["track"],
        )
        for name, nanoseconds, text in (
            ("accounted_seconds", totals.wall_ns, "Time that the accounting covers."),
            ("device_busy_seconds", totals.busy_ns, "Time that the device worked."),
            ("idle_seconds", totals.idle_ns, "Time without work for scheduler or device."),
        ):
            yield self._counter(name, text, [((), nanoseconds * NS)])
        yield self._gauge(
            "cpu_overhead_ratio",
            "Time with work and an idle device over the time that it worked, since the start.",
            [((), totals.exposed_cpu_ratio)],
        )
        yield self._counter("spans", "Spans that were accounted for.", [((), totals.spans)])
        yield self._counter(
            "spans_lost", "Spans overwritten before they were read.", [((), totals.lost)]
        )

    def _family(
        self,
        kind: Callable[..., GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> Metric:
        family = kind(f"pyengine_{name}", text, labels=["model_name", *labels])
        for values, value in samples:
            family.add_metric([self._model, *values], value)
        return family

    _gauge = partialmethod(_family, GaugeMetricFamily)
    _counter = partialmethod(_family, CounterMetricFamily)

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> Metric:
        """``counts`` are not cumulated, one more than ``bounds``; Prometheus' are."""
        family = HistogramMetricFamily(f"pyengine_{name}", text, labels=["model_name"])
        limits = [*(f"{bound:.6g}" for bound in bounds), "+Inf"]
        buckets = list(zip(limits, accumulate(counts), strict=True))
        family.add_metric([self._model], buckets, total)
        return family
