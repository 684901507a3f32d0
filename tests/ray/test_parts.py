"""The parts of the application for Ray: requests on their way, autoscaling, options."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pyengine.errors import ConfigError
from pyengine.http.asgi import asgi_app
from pyengine.ray.application import build_app, resources
from pyengine.ray.autoscaling import CACHE, RUNNING, WAITING, ByEngineLoad
from pyengine.ray.forwarding import Call, answered, prompt_of
from pyengine.settings.config import EngineConfig
from tests.http.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"messages": [{"role": "user"}]}', "[{'role': 'user'}]"),
        (b'{"prompt": "Go on"}', "Go on"),
        (b'{"input": "Hello", "instructions": "Be brief. "}', "Be brief. Hello"),
        (b"{}", ""),
        (b"[1]", ""),
        (b"", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_requests_are_compared_by_their_prompts(body: bytes, text: str) -> None:
    assert prompt_of(body) == text


SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/there/v1/completions",
    "root_path": "/there",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json"), (b"host", b"here")],
    "scheme": "http",
    "app": object(),
}
BODY = b'{"model": "org/fake", "prompt": "Go on", "stream": true}'


def test_only_what_can_be_sent_of_a_request_is_sent() -> None:
    call = Call.of(SCOPE, b"")
    assert "app" not in call.scope
    assert call.prompt == "/there/v1/completions"


async def test_the_messages_of_an_answer_come_as_they_are_sent() -> None:
    engine = FakeEngine()
    await engine.start()
    messages = [each async for each in answered(asgi_app(engine), Call.of(SCOPE, BODY))]
    assert messages[0]["status"] == 200
    assert len(messages) > 3
    assert messages[-2]["body"].endswith(b"data: [DONE]\n\n")
    await engine.close()


async def test_leaving_an_answer_aborts_it() -> None:
    engine = FakeEngine()
    engine.hold_after = 2
    await engine.start()
    messages = answered(asgi_app(engine), Call.of(SCOPE, BODY))
    assert (await anext(messages))["status"] == 200
    await messages.aclose()  # type: ignore[attr-defined]
    await engine.until(lambda: not engine.running)
    assert engine.aborted
    await engine.close()


async def test_a_cancelled_answer_is_aborted() -> None:
    engine = FakeEngine()
    engine.hold_after = 2
    await engine.start()

    async def read() -> None:
        async for _ in answered(asgi_app(engine), Call.of(SCOPE, BODY)):
            pass

    reading = asyncio.create_task(read())
    await engine.until(lambda: bool(engine.running))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await engine.until(lambda: not engine.running)
    assert engine.aborted
    await engine.close()


# Ray declares its settings as pydantic has deprecated.
with_ray = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def wanted(loads: Mapping[str, Mapping[str, float]], **settings: float) -> float:
    context = SimpleNamespace(aggregated_metrics=loads, target_num_replicas=3)
    number, state = ByEngineLoad(**settings)(context)
    assert state == {}
    return number


def test_the_load_tells_how_many_replicas_are_wanted() -> None:
    idle = {WAITING: {"a": 0.0}, RUNNING: {"a": 0.0}, CACHE: {"a": 0.0}}
    assert wanted(idle) == 0
    full = {WAITING: {"a": 8.0}, RUNNING: {"a": 1.0}, CACHE: {"a": 0.5}}
    assert wanted(full) == 1 / 0.8 + 2
    # One more, which has nothing to do yet, changes nothing.
    more = {name: {**loads, "b": 0.0} for name, loads in full.items()}
    assert wanted(more) == wanted(full)
    by_cache = {WAITING: {"a": 0.0}, RUNNING: {"a": 0.1}, CACHE: {"a": 0.9}}
    assert wanted(by_cache, target_use=0.9) == 1
    assert wanted(full, target_waiting=1.0) == 1 / 0.8 + 8
    assert wanted({}) == 3


def test_ranks_share_a_placement_group() -> None:
    several = resources(EngineConfig(device="cuda", tensor_parallel=4), cpus=2)
    assert several["placement_group_bundles"] == [{"CPU": 8, "GPU": 4}]
    assert several["ray_actor_options"] == {"num_cpus": 8, "num_gpus": 4}
    alone = resources(EngineConfig(device="cpu"), cpus=1)
    assert alone == {"ray_actor_options": {"num_cpus": 1, "num_gpus": 0}}


def engines(*arguments: Any, **options: Any) -> Any:
    """The deployment of the engines in an application, as Ray has it."""
    app = build_app(*arguments, **options)
    return app._bound_deployment.init_args[0]._bound_deployment


@pytest.mark.slow
@with_ray
def test_the_deployment_has_the_options_asked_for() -> None:
    fixed = engines({"device": "simulated", "max_sequences": 8}, 3)
    assert (fixed.name, fixed.num_replicas) == ("engine-pyengine-demo", 3)
    routing = fixed._deployment_config.request_router_config
    assert routing.request_router_class.endswith("PrefixCacheAffinityRouter")
    assert routing.request_router_kwargs["imbalanced_threshold"] == 4
    assert routing.request_router_kwargs["do_eviction"]
    plain = engines(EngineConfig(device="simulated"), by_prefix=False)
    assert "Prefix" not in plain._deployment_config.request_router_config.request_router_class
    scaled = engines(autoscaling={"min_replicas": 1, "max_replicas": 4})
    settings = scaled._deployment_config.autoscaling_config
    assert (settings.min_replicas, settings.max_replicas) == (1, 4)
    assert settings.policy.get_policy() is ByEngineLoad
    own = {"policy_function": ByEngineLoad, "policy_kwargs": {"target_use": 0.5}}
    tuned = engines(autoscaling={"max_replicas": 4, "policy": own})
    assert tuned._deployment_config.autoscaling_config.policy.policy_kwargs == {"target_use": 0.5}
    parallel = engines(EngineConfig(device="cuda", tensor_parallel=2))
    assert parallel._replica_config.placement_group_bundles == [{"CPU": 2.0, "GPU": 2}]


@pytest.mark.slow
@with_ray
def test_a_number_is_fixed_or_not() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        build_app(None, 2, {"max_replicas": 4})
