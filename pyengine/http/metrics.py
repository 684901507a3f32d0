"""``GET /metrics``: the engine's figures in Prometheus' text format, or OpenMetrics on demand.

One truth, whatever the number of HTTP workers: everything is counted in the engine, and a scrape is
one report of it. ``docs/METRICS.md`` describes each name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pyengine.messages import Report
from pyengine.telemetry import STEP_BOUNDS_S, Totals

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

NS = 1e-9
FINISH_REASONS = ("stop", "length", "abort", "timeout", "overloaded", "error")
BLOCK_STATES = ("free", "cached", "held")

# Name without prefix and unit suffix, kind, figure of the report, help.
_FIGURES: tuple[tuple[str, Literal["gauge", "counter"], str, str], ...] = (
    ("requests_running", "gauge", "running", "Requests that run."),
    ("requests_waiting", "gauge", "waiting", "Requests that wait."),
    ("steps_in_flight", "gauge", "in_flight", "Steps planned and not yet committed."),
    ("prompt_tokens", "counter", "prompt_tokens", "Prompt tokens of admitted requests."),
    (
        "prompt_tokens_cached",
        "counter",
        "cached_tokens",
        "Those of them that came from the prefix cache.",
    ),
    ("generation_tokens", "counter", "completion_tokens", "Tokens generated."),
    ("steps", "counter", "steps", "Steps planned."),
    ("preemptions", "counter", "preemptions", "Running requests sent back to the queue."),
    (
        "prefix_cache_queried_tokens",
        "counter",
        "prefix_queries",
        "Tokens looked up in the prefix cache, after a preemption too.",
    ),
    (
        "prefix_cache_hit_tokens",
        "counter",
        "prefix_hits",
        "Tokens found in the prefix cache, after a preemption too.",
    ),
)

# Name without prefix, histogram of the report, unit of its values, help.
_HISTOGRAMS: tuple[tuple[str, str, float, str], ...] = (
    (
        "request_queue_time_seconds",
        "queue_time_ns",
        NS,
        "From a request's arrival to its first admission.",
    ),
    (
        "time_to_first_token_seconds",
        "time_to_first_token_ns",
        NS,
        "From a request's arrival to the commit of its first token.",
    ),
    (
        "inter_token_latency_seconds",
        "inter_token_latency_ns",
        NS,
        "Between the commits of two tokens of a request.",
    ),
    (
        "request_duration_seconds",
        "duration_ns",
        NS,
        "From arrival to end, of requests that were answered (stop, length).",
    ),
    (
        "request_prompt_tokens",
        "prompt_length",
        1,
        "Prompt tokens of requests that were answered.",
    ),
    (
        "request_generation_tokens",
        "completion_length",
        1,
        "Tokens generated for requests that were answered.",
    ),
)


async def metrics(exchange: "Exchange") -> None:
    """Every figure of the engine; 503 while there is none."""
    engine = exchange.service.require_ready()
    report = await engine.metrics()
    encode, content_type = choose_encoder(exchange.scope.headers.get("accept") or "")
    body = encode(ReportCollector(report, engine.model_name))
    exchange.reply(body, content_type=content_type)


class ReportCollector(Collector):
    """A report as Prometheus' metric families, each with the label ``model_name``."""

    def __init__(self, report: Report, model_name: str) -> None:
        self._report = report
        self._model = model_name

    def collect(self) -> Iterator[Metric]:
        """The families, in a fixed order."""
        figures = self._report.figures
        for name, kind, figure, text in _FIGURES:
            family = self._gauge if kind == "gauge" else self._counter
            yield family(name, text, [((), figures[figure])])
        yield self._counter(
            "request_finished",
            "Requests that ended, by reason.",
            [((reason,), figures[f"finished_{reason}"]) for reason in FINISH_REASONS],
            ["reason"],
        )
        yield self._gauge(
            "kv_blocks",
            "Blocks of the KV cache, by state.",
            [((state,), figures[state]) for state in BLOCK_STATES],
            ["state"],
        )
        yield self._gauge(
            "kv_cache_usage_ratio",
            "The share of the KV cache's blocks that requests hold.",
            [((), figures["held"] / figures["num_blocks"])],
        )
        for name, source, unit, text in _HISTOGRAMS:
            histogram = self._report.histograms[source]
            bounds = [bound * unit for bound in histogram.bounds]
            yield self._histogram(name, text, bounds, histogram.counts, histogram.sum * unit)
        yield from self._telemetry(self._report.telemetry)

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
                ((total.lane, total.stage, exposed), nanoseconds * NS)
                for total in totals.stages
                for exposed, nanoseconds in (
                    ("true", total.exposed_ns),
                    ("false", total.overlapped_ns),
                )
            ],
            ["lane", "stage", "exposed"],
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

    def _gauge(
        self,
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> Metric:
        return self._family(GaugeMetricFamily, name, text, samples, labels)

    def _counter(
        self,
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> Metric:
        return self._family(CounterMetricFamily, name, text, samples, labels)

    def _family(
        self,
        kind: Callable[..., GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], float]],
        labels: Sequence[str],
    ) -> Metric:
        family = kind(f"pyengine_{name}", text, labels=["model_name", *labels])
        for values, value in samples:
            family.add_metric([self._model, *values], value)
        return family

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> Metric:
        """``counts`` are not cumulated, one more than ``bounds``; Prometheus' are."""
        family = HistogramMetricFamily(f"pyengine_{name}", text, labels=["model_name"])
        limits = [*(f"{bound:.6g}" for bound in bounds), "+Inf"]
        buckets = list(zip(limits, accumulate(counts), strict=True))
        family.add_metric([self._model], buckets, total)
        return family
