"""OpenTelemetry spans of requests, opt-in: one a generation, with its phases as children.

::

    caller's span (traceparent)
      └── chat MODEL ──────────────────────────────────────
            ├── queue ──┤├── prefill ──┤├──── decode ─────┤

Spans are made when a request has ended, from times that are taken anyway, so that tracing costs
nothing before, and nothing at all where it is off. Attributes follow the semantic conventions for
generative AI. A request that is refused before it generates has no span.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from pyengine._core import __version__
from pyengine.completion import Outcome
from pyengine.errors import ConfigError
from pyengine.http.rsgi import Headers
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

TRACES_PATH = "/v1/traces"


class Asked(NamedTuple):
    """The facts of a request that its spans carry.

    Attributes:
        operation: ``chat`` or ``text_completion``.
        answer_id: The id of the answer.
        params: How it is sampled.
        stream: Whether the answer comes as a stream.
    """

    operation: str
    answer_id: str
    params: SamplingParams
    stream: bool


class Tracing:
    """Makes the spans and hands them to a provider of the OpenTelemetry SDK. The serving loop."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("pyengine", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Export in batches, on a thread of its own, to ``endpoint`` by OTLP over HTTP.

        Args:
            endpoint: URL of a collector; one without a path gets ``/v1/traces``.

        Raises:
            ConfigError: It is no URL, or OpenTelemetry is not installed.
        """
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"the OTLP endpoint must be a URL such as http://localhost:4318, not {endpoint!r}",
                param="otlp_endpoint",
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError(
                f"tracing needs OpenTelemetry ({error}); pip install 'pyengine-llm[otel]'",
                param="otlp_endpoint",
            ) from None
        if parts.path in ("", "/"):
            endpoint = parts._replace(path=TRACES_PATH).geturl()
        resource = Resource.create()
        # The SDK's placeholder, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has a name.
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "pyengine"}))
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    def close(self) -> None:
        """Export what is left; takes as long as the exporter's timeout at most."""
        self._provider.shutdown()

    def record(
        self, headers: Headers, model: str, request_id: str, asked: Asked, outcome: Outcome
    ) -> None:
        """One span for a generation that has ended, or is being aborted."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        now = time.monotonic_ns()
        to_epoch = time.time_ns() - now
        timing = outcome.timing
        span = self._tracer.start_span(
            f"{asked.operation} {model}",
            context=self._parent(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(model, request_id, asked, outcome),
            start_time=timing.arrival_ns + to_epoch,
        )
        if span.is_recording():
            inside = set_span_in_context(span)
            for name, start, end in timing.phases():
                # The end of an aborted request has not come back yet: it ends now.
                end = now if name == "decode" and not timing.end_ns else end
                child = self._tracer.start_span(name, inside, start_time=start + to_epoch)
                child.end(end + to_epoch)
            if outcome.finish not in ("stop", "length"):
                finish = outcome.finish or "abort"
                span.set_attribute("error.type", finish)
                span.set_status(StatusCode.ERROR, f"the request ended with {finish}")
        span.end((timing.end_ns or now) + to_epoch)

    def _parent(self, headers: Headers) -> "Context":
        """The caller's trace context; an empty one if there is none, or it is malformed."""
        from opentelemetry.context import Context

        carrier: dict[str, str] = {}
        if parent := headers.get("traceparent"):
            carrier["traceparent"] = parent
            # Several tracestate headers make up one list.
            states = [value for name, value in headers.items() if name == "tracestate"]
            carrier["tracestate"] = ",".join(states)
        return self._propagator.extract(carrier, Context())


def _attributes(
    model: str, request_id: str, asked: Asked, outcome: Outcome
) -> Mapping[str, str | int | float | bool | list[str]]:
    """By the semantic conventions for generative AI; what the client left open is left out."""
    params, usage, timing = asked.params, outcome.usage, outcome.timing
    attributes: dict[str, str | int | float | bool | list[str]] = {
        "gen_ai.operation.name": asked.operation,
        "gen_ai.provider.name": "pyengine",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": asked.answer_id,
        "gen_ai.request.stream": asked.stream,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": [outcome.finish or "abort"],
        "pyengine.request.id": request_id,
    }
    if params.frequency_penalty:
        attributes["gen_ai.request.frequency_penalty"] = params.frequency_penalty
    if params.presence_penalty:
        attributes["gen_ai.request.presence_penalty"] = params.presence_penalty
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None:
        attributes["gen_ai.request.seed"] = params.seed
    if params.stop:
        attributes["gen_ai.request.stop_sequences"] = list(params.stop)
    if timing.first_ns:
        first = (timing.first_ns - timing.arrival_ns) * 1e-9
        attributes["gen_ai.response.time_to_first_chunk"] = first
    return attributes
