"""What ``/metrics`` says after a known number of requests, and that docs and dashboard match it."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidGrammarError
from pyengine.grammar import regex, text
from pyengine.http.serving.server import HttpServer

ROOT = Path(__file__).parents[2]
FINISH_REASONS = ("stop", "length", "abort", "timeout", "overloaded", "error", "refused")
HISTOGRAMS_OF_REQUESTS = (
    "request_queue_time_seconds",
    "time_to_first_token_seconds",
    "request_duration_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)


@pytest.fixture
def step_ms() -> float:
    return 1.0


@pytest.fixture
async def engine(step_ms: float) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(
        device="simulated", mode="server", simulated_step_ms=step_ms, speculation=("forced",)
    )
    yield engine
    await engine.close()


@pytest.fixture
async def server(engine: AsyncEngine) -> AsyncIterator[HttpServer]:
    """Listening, the model not loaded yet: the common fixture waits for it."""
    server = HttpServer(engine, port=0)
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield http


class Scrape:
    """The samples of one answer, by name without prefix and the labels besides ``model_name``."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families:
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("model_name") == "pyengine-demo"
                key = (sample.name.removeprefix("pyengine_"), frozenset(labels.items()))
                assert key not in self.samples
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def buckets(self, name: str) -> list[tuple[float, float]]:
        found = [
            (float(dict(labels)["le"]), value)
            for (sample, labels), value in self.samples.items()
            if sample == f"{name}_bucket"
        ]
        return sorted(found)


async def scrape(http: httpx.AsyncClient) -> Scrape:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Scrape(answer.text)


async def complete(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    body = {"model": "pyengine-demo", "prompt": "Tell me more", "ignore_eos": True, **fields}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def speak_by_grammars(engine: AsyncEngine) -> None:
    """Every kind of figure of grammars and drafts gets a value."""
    # Whether drafts pay is found out by the clock; forced ones are right whenever they are sent.
    while not (await engine.report())["accepted_forced"]:
        await engine.generate("Hi", SamplingParams(max_tokens=100), grammar=text("one, two " * 90))
    with pytest.raises(InvalidGrammarError):
        await engine.generate("Hi", grammar=regex("("))


async def test_not_before_the_model_is_there(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    answer = await http.get("/metrics")
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    await engine.start()
    fresh = await scrape(http)
    assert fresh("requests_running") == fresh("generation_tokens_total") == 0
    assert fresh("cpu_overhead_ratio") == 0


async def test_every_request_is_counted_once(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await engine.start()
    lengths = [4, 5, 8, 13, 16, 40, 1]
    answers = await asyncio.gather(*[complete(http, max_tokens=length) for length in lengths])
    usages = [answer.json()["usage"] for answer in answers]
    seen = await scrape(http)
    requests, tokens = len(lengths), sum(lengths)
    assert sum(usage["completion_tokens"] for usage in usages) == tokens
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)

    assert seen("generation_tokens_total") == tokens
    assert seen("prompt_tokens_total") == prompt_tokens
    assert seen("prompt_tokens_cached_total") == cached
    assert seen("prefix_cache_queried_tokens_total") == prompt_tokens
    assert seen("prefix_cache_hit_tokens_total") == cached
    reasons = {reason: seen("request_finished_total", reason=reason) for reason in FINISH_REASONS}
    assert reasons == dict.fromkeys(FINISH_REASONS, 0) | {"length": requests}

    assert all(seen(f"{name}_count") == requests for name in HISTOGRAMS_OF_REQUESTS)
    # Tokens that were taken together count once.
    assert 0 < seen("inter_token_latency_seconds_count") <= tokens - requests
    assert seen("delivery_seconds_count") == requests + seen("inter_token_latency_seconds_count")
    assert seen("loop_lag_seconds_count") > 0
    assert seen("request_prompt_tokens_sum") == prompt_tokens
    assert seen("request_generation_tokens_sum") == tokens
    assert dict(seen.buckets("request_generation_tokens"))[8] == 4
    for name in (*HISTOGRAMS_OF_REQUESTS, "inter_token_latency_seconds", "step_duration_seconds"):
        buckets = seen.buckets(name)
        counts = [count for _, count in buckets]
        assert counts == sorted(counts)
        assert buckets[-1] == (float("inf"), seen(f"{name}_count"))
        # Every value lies between the bounds of its bucket, so their sum does too.
        new = [now - before for now, before in zip(counts, [0, *counts], strict=False)]
        bounds = [bound for bound, _ in buckets]
        lower = sum(n * low for n, low in zip(new, [0, *bounds], strict=False) if n)
        upper = sum(n * high for n, high in zip(new, bounds, strict=True) if n)
        assert lower <= seen(f"{name}_sum") * (1 + 1e-9) + 1e-12
        assert seen(f"{name}_sum") <= upper * (1 + 1e-9)

    for gauge in ("requests_running", "requests_waiting", "kv_cache_usage_ratio"):
        assert seen(gauge) == 0
    assert seen("kv_blocks", state="held") == 0
    assert seen("kv_blocks", state="free") + seen("kv_blocks", state="cached") == (
        engine.info.num_blocks
    )


async def test_metrics_say_where_the_time_went(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await engine.start()
    await complete(http, max_tokens=30)
    seen = await scrape(http)
    steps = seen("steps_total")
    assert steps >= 30
    assert seen("device_busy_seconds_total") == pytest.approx(steps * 0.001)
    device = {"track": "device", "stage": "device"}
    assert seen("stage_seconds_total", **device, exposed="false") == pytest.approx(steps * 0.001)
    assert seen("stage_seconds_total", **device, exposed="true") == 0
    assert seen("step_duration_seconds_count") == steps
    for track, stage in (
        ("scheduler", "commit"),
        ("detokenizer", "detokenize"),
        ("frontend", "http_decode"),
        ("request", "queue_wait"),
    ):
        both = [
            seen("stage_seconds_total", track=track, stage=stage, exposed=exposed)
            for exposed in ("true", "false")
        ]
        assert sum(both) > 0
    wall, idle = seen("accounted_seconds_total"), seen("idle_seconds_total")
    busy = seen("device_busy_seconds_total")
    assert seen("cpu_overhead_ratio") == pytest.approx((wall - busy - idle) / busy)
    assert seen("spans_total") > 0
    assert seen("spans_lost_total") == 0


# So slow that a stream of 400 tokens does not end while it is looked at.
@pytest.mark.parametrize("step_ms", [20.0])
async def test_metrics_count_requests_by_their_end(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await engine.start()
    text = (await complete(http, max_tokens=20, temperature=0)).json()["choices"][0]["text"]
    stopped = await complete(http, max_tokens=20, temperature=0, stop=[text[6:9]])
    assert stopped.json()["choices"][0]["finish_reason"] == "stop"
    body = {
        "model": "pyengine-demo",
        "prompt": "Tell me more",
        "ignore_eos": True,
        "max_tokens": 400,
        "stream": True,
    }
    async with http.stream("POST", "/v1/completions", json=body) as stream:
        chunks = stream.aiter_bytes()  # held, as the stream is closed with it
        await anext(chunks)
        during = await scrape(http)
        assert during("requests_running") == 1
        assert during("kv_blocks", state="held") > 0
        assert during("kv_cache_usage_ratio") > 0
    # The client has left before the end; it is not defined how soon the server notices.
    while (seen := await scrape(http))("request_finished_total", reason="abort") < 1:
        pass
    while (seen := await scrape(http))("request_finished_total", reason="stop") < 1:
        pass
    assert seen("request_finished_total", reason="length") == 1
    assert seen("request_duration_seconds_count") == 2
    assert seen("time_to_first_token_seconds_count") == 3
    assert seen("requests_running") == seen("kv_blocks", state="held") == 0


async def test_grammars_and_drafts(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await engine.start()
    fresh = await scrape(http)
    proposers = ("forced", "prediction", "ngram", "draft_model")
    for proposer in proposers:
        for outcome in ("accepted", "rejected"):
            assert fresh("draft_tokens_total", proposer=proposer, outcome=outcome) == 0
    assert fresh("grammar_cache_entries") == fresh("grammar_compile_time_seconds_count") == 0

    await speak_by_grammars(engine)
    seen = await scrape(http)
    assert seen("requests_compiling") == seen("grammar_queue") == 0
    assert seen("request_finished_total", reason="refused") == 1
    assert seen("grammar_refusals_total") == 1
    assert seen("grammar_compilations_total") == seen("grammar_cache_entries") == 2
    assert seen("grammar_compile_time_seconds_count") == 2
    assert seen("grammar_cache_lookups_total", result="miss") == 2
    spoken = seen("request_finished_total", reason="length")
    assert seen("grammar_cache_lookups_total", result="hit") == spoken - 1
    assert seen("grammar_cache_bytes") > 0
    # Those that are made ahead of the tokens are no misses, and there may be none.
    made, found = (seen("grammar_mask_lookups_total", result=result) for result in ("miss", "hit"))
    assert 0 <= made < found
    assert seen("grammar_mask_bytes") > 0

    accepted = seen("draft_tokens_total", proposer="forced", outcome="accepted")
    assert accepted > 0
    # Text is forced, its tokens are not: some may be wrong here, where they come at random.
    # A place is reached only where the one before it was right.
    places: dict[int, dict[str, float]] = {}
    for (name, labels), value in seen.samples.items():
        if name == "draft_tokens_by_position_total":
            of = dict(labels)
            assert of["proposer"] == "forced"
            places.setdefault(int(of["position"]), {})[of["outcome"]] = value
    assert sorted(places) == list(range(1, len(places) + 1))
    assert sum(place["accepted"] for place in places.values()) == accepted
    for place, following in itertools.pairwise(places[at] for at in sorted(places)):
        assert sum(following.values()) <= place["accepted"]


async def test_openmetrics_for_those_who_ask(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await engine.start()
    await complete(http, max_tokens=2)
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = await http.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics_families(answer.text)}
    plain = Scrape((await http.get("/metrics")).text)
    assert names == {family.name for family in plain.families}


async def test_server_timing_of_whole_answers(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await engine.start()
    chat = {
        "model": "pyengine-demo",
        "messages": [{"role": "user", "content": "Tell me more"}],
        "max_tokens": 12,
        "ignore_eos": True,
    }
    for answer in (
        await complete(http, max_tokens=12),
        await complete(http, max_tokens=12, prompt=["one", "two"]),
        await http.post("/v1/chat/completions", json=chat),
    ):
        parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
        assert list(parts) == ["queue", "prefill", "decode", "total"]
        times = {name: float(value) for name, value in parts.items()}
        assert all(time >= 0 for time in times.values())
        assert times["total"] == pytest.approx(sum(times.values()) - times["total"], abs=0.01)
        assert times["prefill"] > 0
    streamed = await http.post("/v1/chat/completions", json={**chat, "stream": True})
    assert "server-timing" not in streamed.headers


Families = dict[str, tuple[str, set[str]]]
"""The type and the labels of a metric, by its name."""


def described(*, experts: bool) -> Families:
    """What the page of metrics has, of experts alone or without them."""
    rows = re.findall(
        r"^\| `(pyengine_\w+)` \| (\w+) \|([^|]*)\| \S",
        (ROOT / "docs" / "METRICS.md").read_text(),
        re.MULTILINE,
    )
    assert len({name for name, _, _ in rows}) == len(rows)
    return {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
        if name.startswith("pyengine_expert_") == experts
    }


def exported(families: Iterable[Metric]) -> Families:
    """What a scrape has."""
    found = {}
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = (family.type, labels - {"le", "model_name"})
    return found


async def test_every_metric_is_described(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await engine.start()
    await speak_by_grammars(engine)
    await complete(http, max_tokens=2)
    assert described(experts=False) == exported((await scrape(http)).families)


async def test_the_dashboard_asks_for_what_there_is(
    http: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await engine.start()
    await speak_by_grammars(engine)
    await complete(http, max_tokens=2)
    seen = await scrape(http)
    exported: dict[str, set[str]] = {}
    for family in seen.families:
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    # Of mixtures alone; tests/http/test_expert_load.py holds their descriptions to what there is.
    for name, (_, labels_of) in described(experts=True).items():
        exported[name] = labels_of | {"model_name"}
    dashboard = json.loads((ROOT / "docs" / "grafana" / "pyengine.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    asked = set()
    for expression in expressions:
        for name, selector in re.findall(r"\b(pyengine_\w+)(?:\{([^}]*)\})?", expression):
            asked.add(name)
            assert name in exported, expression
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= exported[name], expression
        for labels_by in re.findall(r"\bby \(([^)]*)\)", expression):
            names = re.findall(r"pyengine_\w+", expression)
            known = set().union(*(exported[name] for name in names))
            assert {label.strip() for label in labels_by.split(",")} <= known, expression
    # Nothing that is measured is left out of it, but for the recorder's own bookkeeping. The
    # configuration of the cache does not change.
    families = {family.name for family in seen.families}
    unasked = {family for family in families if not any(name.startswith(family) for name in asked)}
    assert unasked <= {
        "pyengine_cache_config_info",
        "pyengine_kv_cache_bytes",
        "pyengine_store_bytes",
        "pyengine_store_objects",
        "pyengine_store_room_bytes",
        "pyengine_spans",
        "pyengine_spans_lost",
        "pyengine_steps_in_flight",
    }
