"""What ``/metrics`` says of a mixture's experts, on every kind of runner."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyengine import AsyncEngine
from pyengine.demo import MODEL_PATH
from pyengine.distributed.parallel_runner import ParallelRunner
from tests.distributed.thread_ranks import thread_runner
from tests.http.test_metrics import described, exported
from tests.model.families import make_family
from tests.torch_devices import KINDS, use_torch

EXPERTS, CHOSEN = 6, 2
LAYERS = ["0", "2", "3"]  # the other is dense
PARALLEL: dict[str, dict[str, Any]] = {
    "ranks share experts": {"tensor_parallel": 2},
    "ranks have whole experts": {"tensor_parallel": 2, "expert_parallel": True},
}


@pytest.fixture(params=["cpu", *KINDS, *PARALLEL])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncEngine]:
    make_family(tmp_path, "qwen3-moe")
    shutil.copy(MODEL_PATH / "tokenizer.json", tmp_path)
    if kind in KINDS:
        use_torch(monkeypatch, kind)
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)
    engine = AsyncEngine(
        str(tmp_path),
        device="cpu",
        threads=1,
        kv_cache_mib=8,
        mode="server",
        **PARALLEL.get(kind, {}),
    )
    yield engine
    await engine.close()


async def families(http: httpx.AsyncClient, query: str = "") -> list[Any]:
    answer = await http.get(f"/metrics{query}")
    assert answer.status_code == 200
    found = text_string_to_metric_families(answer.text)
    return [family for family in found if family.name.startswith("pyengine_expert_")]


async def counts(http: httpx.AsyncClient) -> dict[str, list[int]]:
    """Of each layer the tokens of its experts."""
    (tokens,) = (
        family
        for family in await families(http, "?experts=1")
        if family.name == "pyengine_expert_tokens"
    )
    layers: dict[str, list[int]] = {}
    for at, sample in enumerate(tokens.samples):
        assert sample.labels["expert"] == str(at % EXPERTS)
        layers.setdefault(sample.labels["layer"], []).append(int(sample.value))
    return layers


async def test_tokens_of_experts_are_counted_once(
    http: httpx.AsyncClient, kind: str, engine: AsyncEngine
) -> None:
    assert await counts(http) == dict.fromkeys(LAYERS, [0] * EXPERTS)
    fresh = await families(http)
    assert {sample.value for family in fresh for sample in family.samples} == {0}

    body = {"prompt": list(range(5, 45)), "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    for _ in range(2):
        answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    # The last token of an answer is not computed any more.
    computed = 2 * (40 + 9 - 1) - cached
    # A step in flight when the second answer ends counts its row, too, and is not waited for.
    while (layers := await counts(http)) and sum(layers["0"]) < CHOSEN * computed:
        pass
    for tokens in layers.values():
        surplus = sum(tokens) - CHOSEN * computed
        assert surplus in ((0, CHOSEN, 2 * CHOSEN) if kind == "overlapping" else (0,))
        assert max(tokens) <= computed + surplus // CHOSEN

    by_name = {family.name: family for family in await families(http)}
    assert "pyengine_expert_tokens" not in by_name
    uneven = by_name["pyengine_expert_imbalance_ratio"].samples
    assert [sample.labels["layer"] for sample in uneven] == LAYERS
    for sample, tokens in zip(uneven, layers.values(), strict=True):
        assert sample.value == pytest.approx(max(tokens) * EXPERTS / sum(tokens))
    ranks = by_name.get("pyengine_expert_rank_imbalance_ratio")
    assert (ranks is not None) == (kind == "ranks have whole experts")
    if ranks is not None:
        for sample, tokens in zip(ranks.samples, layers.values(), strict=True):
            first = sum(tokens[: EXPERTS // 2])
            busiest = max(first, sum(tokens) - first)
            assert sample.value == pytest.approx(2 * busiest / sum(tokens))


@pytest.mark.parametrize("kind", ["ranks have whole experts"])
async def test_exported_expert_load_is_described(http: httpx.AsyncClient, kind: str) -> None:
    assert described(experts=True) == exported(await families(http, "?experts=1"))


@pytest.mark.parametrize("kind", ["cpu"])
async def test_other_queries_of_expert_load_are_refused(http: httpx.AsyncClient, kind: str) -> None:
    answer = await http.get("/metrics?experts=all")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "experts"
