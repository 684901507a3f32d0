"""The deployments of the Ray application, and their settings."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pyengine.async_engine import AsyncEngine
from pyengine.errors import ConfigError
from pyengine.http.app import App
from pyengine.model.weights.folder import served_name
from pyengine.ray.local_request import Call, Head, answer, text_of
from pyengine.settings.config import EngineConfig

PREFIX_ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router"
    ":PrefixCacheAffinityRouter"
)
STATS_PERIOD_S = 2.0
DRAIN_S = 30.0
DROPPED_HEADERS = {"connection", "content-length", "server", "date"}


class EngineReplica:
    """One engine. Ray runs it as an actor, with an event loop of its own."""

    async def __init__(self, config: EngineConfig) -> None:  # type: ignore[misc]
        """``config`` is that of the application. Called on the loop that serves."""
        self._engine = AsyncEngine(config=config, placement="process")
        self._app = App(self._engine)
        self._loading = asyncio.create_task(self._engine.start())

    async def check_health(self) -> None:
        """Raise if the engine has died for good; Ray then starts another replica."""
        if self._engine.failure is not None:
            raise self._engine.failure

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Requests that wait, and the use of the KV cache, for policies that read them."""
        return await self._load()

    async def record_routing_stats(self) -> dict[str, float]:
        """The same for the request router."""
        return await self._load()

    async def _load(self) -> dict[str, float]:
        if not self._engine.ready:
            return {}
        stats = (await self._engine.metrics()).stats
        return {
            "requests_waiting": float(stats["waiting"]),
            "requests_running": float(stats["running"]),
            "kv_cache_usage_ratio": stats["held"] / stats["num_blocks"],
        }

    async def answer(self, call: Call) -> AsyncIterator[Head | bytes]:
        """Status and headers, then the pieces of the answer."""
        await asyncio.shield(self._loading)
        async for piece in answer(self._app, call):
            yield piece

    async def __del__(self) -> None:
        await self._app.drain(DRAIN_S)
        await self._engine.close()


class Ingress:
    """OpenAI's routes. Requests go to a replica that Ray's request router chooses."""

    def __init__(self, engines: Any) -> None:
        self._engines = engines.options(stream=True)

    async def __call__(self, request: Any) -> Any:
        """Answer one request of Starlette's, piece by piece."""
        from starlette.responses import StreamingResponse

        body = await request.body()
        try:
            prompt = text_of(json.loads(body)) if body else ""
        except ValueError:
            prompt = ""  # the engine says what is wrong with it
        headers = {name.lower(): value for name, value in request.headers.items()}
        path = request.url.path
        # The router by prefix divides by the length of the text.
        call = Call(request.method, path, headers, body, prompt or path)
        pieces = self._engines.answer.remote(call)
        status, names = await anext(aiter(pieces))
        response = StreamingResponse(pieces, status)
        response.raw_headers = [
            (name.encode(), value.encode())
            for name, value in names
            if name.lower() not in DROPPED_HEADERS
        ]
        return response


def build_app(
    config: EngineConfig | Mapping[str, Any] | None = None,
    num_replicas: int = 1,
    autoscaling: Mapping[str, Any] | None = None,
    *,
    by_prefix: bool = True,
    cpus: float = 1.0,
) -> Any:
    """A Ray Serve application, for ``serve run``.

    Args:
        config: Of every engine; a mapping of its settings, as in Serve's YAML, will do.
        num_replicas: Engines, each an actor of Ray, wherever there is room.
        autoscaling: Fields of Serve's ``AutoscalingConfig`` in place of a fixed number. Replicas
            are added by the requests that are under way for each. A ``policy`` may read
            ``requests_waiting`` and ``kv_cache_usage_ratio`` of every replica.
        by_prefix: Send a request to the replica that knows the beginning of its prompt, while none
            has much more to do than another; otherwise to the one with less to do.
        cpus: CPUs that Ray reserves for each engine, and for each rank without GPUs.

    Raises:
        ConfigError: A setting is wrong, or Ray is not installed.
    """
    try:
        from ray import serve
        from ray.serve.config import RequestRouterConfig
    except ImportError as error:
        raise ConfigError(
            f"pyengine.ray needs Ray ({error}): pip install 'pyengine[ray]'"
        ) from None
    if not isinstance(config, EngineConfig):
        config = EngineConfig(**(config or {}))
    options: dict[str, Any] = {
        "name": f"engine-{config.served_name or served_name(config.model)}".replace("/", "--"),
        "max_ongoing_requests": config.limits.max_sequences + config.max_waiting,
        **resources(config, cpus),
    }
    if autoscaling is None:
        options["num_replicas"] = num_replicas
    else:
        options["autoscaling_config"] = dict(autoscaling)
    if by_prefix:
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=PREFIX_ROUTER, request_routing_stats_period_s=STATS_PERIOD_S
        )
    engines = serve.deployment(EngineReplica, **options).bind(config)
    ingress = serve.deployment(
        Ingress, name="ingress", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    return ingress.bind(engines)


def resources(config: EngineConfig, cpus: float) -> dict[str, Any]:
    """What Ray reserves for a replica: with several ranks one bundle each, on one machine."""
    gpus = 1 if config.device == "cuda" else 0
    bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    if config.tensor_parallel == 1:
        return {"ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus}}
    # The engine starts its ranks itself, in processes of this actor's machine: the actor takes
    # the resources of the whole group, so that Ray shows it all GPUs.
    ranks = config.tensor_parallel
    return {
        "ray_actor_options": {"num_cpus": cpus * ranks, "num_gpus": gpus * ranks},
        "placement_group_bundles": [{name: each * ranks for name, each in bundle.items()}],
        "placement_group_strategy": "STRICT_PACK",
    }
