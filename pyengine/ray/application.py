"""The deployments of the Ray application, and their settings."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from pyengine.async_engine import AsyncEngine
from pyengine.errors import ConfigError
from pyengine.http.asgi import Message, asgi_app
from pyengine.model.weights.folder import served_names
from pyengine.ray.autoscaling import CACHE, RUNNING, WAITING, ByEngineLoad
from pyengine.ray.forwarding import Call, answered
from pyengine.settings.config import EngineConfig

PREFIX_ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router"
    ":PrefixCacheAffinityRouter"
)
"""Ray's public name for it needs all of ``ray[llm]``, another engine included."""

KNOWN_CHARACTERS = 1 << 23
"""Most characters of prompts that the router by prefix remembers."""

DRAIN_S = 30.0


class EngineReplica:
    """One engine. Ray runs it as an actor, with an event loop of its own."""

    async def __init__(self, config: EngineConfig) -> None:  # type: ignore[misc]
        """Load the model; Ray sends requests once this is done. Called on the loop that serves."""
        self._engine = AsyncEngine(config=config, placement="process")
        self._app = asgi_app(self._engine)
        await self._engine.start()

    async def check_health(self) -> None:
        """Raise if the engine has died for good; Ray then starts another replica."""
        if self._engine.failure is not None:
            raise self._engine.failure

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load, for :class:`ByEngineLoad` and policies of your own.

        Empty while the engine is started again after its death.
        """
        if not self._engine.ready:
            return {}
        stats = (await self._engine.metrics()).stats
        return {
            WAITING: float(stats["waiting"]),
            RUNNING: stats["running"] / self._engine.config.limits.max_sequences,
            CACHE: stats["held"] / stats["num_blocks"],
        }

    async def answer(self, call: Call) -> AsyncIterator[Message]:
        """The ASGI messages of the answer."""
        async for message in answered(self._app, call):
            yield message

    async def __del__(self) -> None:
        await self._app.app.drain(DRAIN_S)
        await self._engine.close()


class Ingress:
    """OpenAI's routes. Requests go to a replica that Ray's request router chooses."""

    def __init__(self, engines: Any) -> None:
        self._engines = engines.options(stream=True)

    async def __call__(self, request: Any) -> Any:
        """Answer one request of Starlette's, piece by piece."""
        from starlette.responses import StreamingResponse

        call = Call.of(request.scope, await request.body())
        messages = self._engines.answer.remote(call)
        start = await anext(aiter(messages))

        async def bodies() -> AsyncIterator[bytes]:
            try:
                async for message in messages:
                    yield message.get("body", b"")
            finally:
                messages.cancel()

        response = StreamingResponse(bodies(), start["status"])
        response.raw_headers = start["headers"]
        return response


def build_app(
    config: EngineConfig | Mapping[str, Any] | None = None,
    num_replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    *,
    by_prefix: bool = True,
    cpus: float = 1.0,
) -> Any:
    """A Ray Serve application, for ``serve run``.

    Args:
        config: For every engine; a mapping of its settings, as in Serve's YAML, will do. Ray
            reserves GPUs if its ``device`` is ``cuda``.
        num_replicas: Engines, each an actor of Ray, wherever there is room; None is one.
        autoscaling: Fields of Serve's ``AutoscalingConfig`` in place of a fixed number, such as
            ``min_replicas`` and ``max_replicas``. The engines' waiting requests, running requests
            and use of the KV cache tell how many are needed
            (:class:`pyengine.ray.autoscaling.ByEngineLoad`), unless a ``policy`` is among them.
        by_prefix: Send a request to the replica that knows the beginning of its prompt, while none
            has much more to do than another; otherwise to the one with less to do.
        cpus: CPUs that Ray reserves for each engine, and for each rank without GPUs.

    Raises:
        ConfigError: A setting is wrong, or Ray is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError(
            f"pyengine.ray needs Ray ({error}): pip install 'pyengine-llm[ray]'"
        ) from None
    if num_replicas is not None and autoscaling is not None:
        raise ConfigError("'num_replicas' is fixed, 'autoscaling' is not: give one of them")
    if not isinstance(config, EngineConfig):
        config = EngineConfig(**(config or {}))
    options: dict[str, Any] = {
        "name": f"engine-{served_names(config)[0]}".replace("/", "--"),
        "max_ongoing_requests": config.limits.max_sequences + config.max_waiting,
        "graceful_shutdown_timeout_s": DRAIN_S,
        **resources(config, cpus),
    }
    if autoscaling is None:
        options["num_replicas"] = num_replicas or 1
    else:
        options["autoscaling_config"] = {
            "policy": {"policy_function": ByEngineLoad},
            **autoscaling,
        }
    if by_prefix:
        options["request_router_config"] = prefix_routing(config)
    engines = serve.deployment(EngineReplica, **options).bind(config)
    ingress = serve.deployment(
        Ingress, name="ingress", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    return ingress.bind(engines)


def prefix_routing(config: EngineConfig) -> Any:
    """Ray's request router by prefix, which looks away from prefixes once work is uneven."""
    from ray.serve.config import RequestRouterConfig

    return RequestRouterConfig(
        request_router_class=PREFIX_ROUTER,
        request_router_kwargs={
            "imbalanced_threshold": max(config.limits.max_sequences // 2, 1),
            "do_eviction": True,
            "eviction_threshold_chars": KNOWN_CHARACTERS,
            "eviction_target_chars": KNOWN_CHARACTERS * 3 // 4,
        },
    )


def resources(config: EngineConfig, cpus: float) -> dict[str, Any]:
    """Resources that Ray reserves for a replica; with several ranks a placement group for all.

    The engine starts its ranks itself, in processes of its actor's machine. So the group is one
    bundle, which lies on one machine, and the actor takes all of it: Ray shows it all GPUs.
    """
    ranks = config.tensor_parallel
    gpus = ranks if config.device == "cuda" else 0
    found: dict[str, Any] = {"ray_actor_options": {"num_cpus": cpus * ranks, "num_gpus": gpus}}
    if ranks > 1:
        bundle = {"CPU": cpus * ranks, **({"GPU": gpus} if gpus else {})}
        found["placement_group_bundles"] = [bundle]
        found["placement_group_strategy"] = "STRICT_PACK"
    return found
