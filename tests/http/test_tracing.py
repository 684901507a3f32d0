"""Spans of requests: their parent, their phases, their attributes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pyengine import AsyncEngine
from pyengine.errors import ConfigError
from pyengine.http.operations.tracing import Tracing
from pyengine.http.serving.server import HttpServer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {
    "model": "pyengine-demo",
    "messages": [{"role": "user", "content": "Tell me more"}],
    "max_tokens": 6,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "ignore_eos": True,
}


class Spans(InMemorySpanExporter):
    """The exported spans, awaited on the serving loop."""

    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.more.set()
        return super().export(spans)

    async def take(self, count: int) -> list[ReadableSpan]:
        """Wait for so many; requests before their phases. They may come after the answers."""
        while len(spans := self.get_finished_spans()) < count:
            self.more.clear()
            await self.more.wait()
        assert len(spans) == count
        return sorted(spans, key=lambda span: span.kind != SpanKind.SERVER)


@pytest.fixture
def exporter() -> Spans:
    return Spans()


@pytest.fixture
async def http(exporter: Spans) -> AsyncIterator[httpx.AsyncClient]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        server = HttpServer(engine, port=0, tracing=tracing)
        url = await server.start()
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield http
        await server.stop(0)
    tracing.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_under_its_callers_trace(
    http: httpx.AsyncClient, exporter: Spans, stream: bool
) -> None:
    headers = {
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "tracestate": "vendor=some",
        "x-request-id": "mine",
    }
    body = {**CHAT, "stop": ["never said"], "stream": stream}
    answer = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    request, *phases = await exporter.take(4)
    assert request.name == "chat pyengine-demo"
    assert request.kind == SpanKind.SERVER
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert request.context.trace_state["vendor"] == "some"
    assert request.status.status_code == StatusCode.UNSET

    attributes = dict(request.attributes or {})
    first = attributes.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first, float)
    assert first > 0
    answer_id = attributes.pop("gen_ai.response.id")
    assert isinstance(answer_id, str)
    assert answer_id in answer.text
    prompt_tokens = attributes.pop("gen_ai.usage.input_tokens")
    assert isinstance(prompt_tokens, int)
    assert prompt_tokens > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pyengine",
        "gen_ai.request.model": "pyengine-demo",
        "gen_ai.response.model": "pyengine-demo",
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.5,
        "gen_ai.request.presence_penalty": -0.5,
        "gen_ai.request.stop_sequences": ("never said",),
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "pyengine.request.id": "mine",
    }

    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    ends = [request.start_time]
    for phase in phases:
        assert phase.parent == request.context
        assert phase.start_time == ends[-1]
        assert phase.start_time is not None
        assert phase.end_time is not None
        assert phase.start_time <= phase.end_time
        ends.append(phase.end_time)
    assert ends[-1] == request.end_time


async def test_every_prompt_has_a_span(http: httpx.AsyncClient, exporter: Spans) -> None:
    body = {"model": "pyengine-demo", "prompt": ["one", "two"], "max_tokens": 3, "ignore_eos": True}
    await http.post("/v1/completions", json=body)
    spans = await exporter.take(8)
    assert [span.name for span in spans[:2]] == ["text_completion pyengine-demo"] * 2
    assert all(span.parent is None for span in spans[:2])


async def test_trace_that_the_caller_does_not_sample_is_not_recorded(
    http: httpx.AsyncClient, exporter: Spans
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    await http.post("/v1/chat/completions", json=CHAT, headers=headers)
    await http.post("/v1/chat/completions", json=CHAT, headers={"traceparent": "nonsense"})
    request, *_ = await exporter.take(4)
    assert request.parent is None


async def test_a_client_that_leaves(http: httpx.AsyncClient, exporter: Spans) -> None:
    body = {**CHAT, "max_tokens": 400, "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
        chunks = stream.aiter_bytes()  # held, as the stream is closed with it
        await anext(chunks)
    request, *phases = await exporter.take(4)
    assert request.status.status_code == StatusCode.ERROR
    assert request.attributes is not None
    assert request.attributes["error.type"] == "abort"
    assert request.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert phases[-1].end_time == request.end_time


async def test_a_refused_request_has_none(http: httpx.AsyncClient, exporter: Spans) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 10**6})
    assert answer.status_code == 400
    await http.post("/v1/chat/completions", json=CHAT)
    await exporter.take(4)


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'pyengine-llm\[otel\]'"):
        Tracing.to("http://localhost:4318")


@pytest.mark.parametrize("endpoint", ["localhost:4318", "", "ftp://x", "http://"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="must be a URL"):
        Tracing.to(endpoint)


async def test_spans_reach_a_collector() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    got: list[tuple[str, bytes]] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        got.append((head[0], await reader.readexactly(int(fields["content-length"]))))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    collector = await asyncio.start_server(collect, "127.0.0.1", 0)
    port = collector.sockets[0].getsockname()[1]
    tracing = Tracing.to(f"http://127.0.0.1:{port}")
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        server = HttpServer(engine, port=0, tracing=tracing)
        async with httpx.AsyncClient(base_url=await server.start(), timeout=60) as http:
            await http.post("/v1/chat/completions", json=CHAT)
        await server.stop(10)
    await asyncio.to_thread(tracing.close)
    collector.close()
    ((line, body),) = got
    assert line == "POST /v1/traces HTTP/1.1"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.name"] == "pyengine"
    spans = resource.scope_spans[0].spans
    assert sorted(span.name for span in spans) == [
        "chat pyengine-demo", "decode", "prefill", "queue",
    ]  # fmt: skip
