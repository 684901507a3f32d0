"""The router before the replicas: smg, as a process, and what the replicas' supervisor asks of it.

smg reads each prompt, remembers which replica has seen its beginning, and sends the request there
unless that one has much more to do than the others. A request that a replica refuses to take, or
whose connection breaks before the first byte, goes to another one.
"""

import asyncio
import http.client
import importlib.util
import json
import logging
import math
import secrets
from collections.abc import Sequence
from typing import Any

from pyengine.errors import ConfigError
from pyengine.http.replicas.program import Program
from pyengine.http.serving.sockets import reachable

log = logging.getLogger("pyengine.router")

POLL_S = 0.02
REQUEST_TIMEOUT_S = 5.0
REGISTRATION_TIMEOUT_S = 30.0
_LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING}


def require_router() -> None:
    """Refuse to go on without smg.

    Raises:
        ConfigError: It is not installed; the message says how to.
    """
    if importlib.util.find_spec("smg") is None:
        raise ConfigError(
            "more than one of --replicas needs the router smg: pip install 'pyengine-llm[router]'",
            param="replicas",
        )


class Router:
    """One life of the router. Used on the supervisor's loop.

    Attributes:
        program: Its process, once started.
        url: Where clients reach it.
    """

    program: Program

    def __init__(
        self,
        host: str,
        port: int,
        metrics_port: int,
        drain_seconds: float,
        origins: Sequence[str] = (),
    ) -> None:
        """Take its addresses, how long it drains, and the origins of web pages that may ask it."""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._address = (reachable(host), port)
        self._metrics_port = metrics_port
        # The key allows to add and remove replicas, so it is kept secret.
        self._key = secrets.token_urlsafe(32)
        self._arguments = [
            "launch",
            *("--host", host, "--port", str(port)),
            *("--policy", "cache_aware"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
            *("--control-plane-api-keys", f"pyengine:pyengine:admin:{self._key}"),
            *("--shutdown-grace-period-secs", str(math.ceil(drain_seconds))),
            # The supervisor sees deaths at once; these find a replica that hangs.
            *("--health-check-interval-secs", "1", "--health-failure-threshold", "3"),
            *("--health-success-threshold", "1"),
            *("--history-backend", "none", "--disable-tokenizer-autoload"),
            # A stream has the engine's keep-alives already, and the engine has no /v1/loads.
            *("--sse-keepalive-secs", "0", "--disable-load-monitoring"),
            *(("--cors-allowed-origins", *origins) if origins else ()),
            *("--log-level", "error", "--log-json"),
        ]

    async def start(self) -> None:
        """Start it, and wait until it listens or has ended."""
        self.program = await Program.start("smg", self._arguments, _show)
        ended = asyncio.ensure_future(self.program.ended())
        while not ended.done():
            try:
                await self._ask("GET", "/liveness")
            except OSError:
                await asyncio.sleep(POLL_S)
            else:
                ended.cancel()
                return

    async def add(self, url: str, model: str, **health: int) -> str:
        """Send requests to a replica from now on; its name in :meth:`remove`.

        Args:
            url: Where it serves; its ``/health`` answers already.
            model: The name of its model.
            health: Of its health checks, what differs from the others'.

        Raises:
            OSError: The router has died, or cannot reach the replica.
        """
        worker: dict[str, Any] = {"url": url, "runtime_type": "generic", "models": [{"id": model}]}
        if health:
            worker["health"] = health
        name: str = (await self._ask("POST", "/workers", worker))["worker_id"]
        async with asyncio.timeout(REGISTRATION_TIMEOUT_S):
            while (await self._worker(name)).get("status") != "ready":  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        return name

    async def remove(self, name: str) -> None:
        """Send no further request to a replica; those that it has are not disturbed.

        Raises:
            OSError: The router has died.
        """
        await self._ask("DELETE", f"/workers/{name}")

    async def metrics(self) -> str:
        """The router's own metrics, in Prometheus' text format.

        Raises:
            OSError: It has died.
        """
        address = ("127.0.0.1", self._metrics_port)
        status, body = await asyncio.to_thread(exchange, address, "GET", "/metrics", {}, None)
        if status != http.client.OK:
            raise OSError(f"the router's metrics: status {status}")
        return body.decode()

    async def _worker(self, name: str) -> dict[str, Any]:
        workers = (await self._ask("GET", "/workers"))["workers"]
        return next((worker for worker in workers if worker["id"] == name), {})

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        status, answer = await asyncio.to_thread(
            exchange, self._address, method, path, headers, json.dumps(body).encode()
        )
        if status >= http.client.BAD_REQUEST:
            raise OSError(f"the router answered {method} {path} with {status}: {answer!r}")
        found: dict[str, Any] = json.loads(answer) if answer.startswith(b"{") else {}
        return found


def exchange(
    address: tuple[str, int],
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
) -> tuple[int, bytes]:
    """Status and body of one HTTP request. Blocks.

    Raises:
        OSError: The server cannot be reached, or does not answer in time.
    """
    connection = http.client.HTTPConnection(*address, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{method} {path}: {error!r}") from error
    finally:
        connection.close()


def _show(line: str) -> None:
    """Log what smg logs; its banner is dropped."""
    try:
        event = json.loads(line)
        level, message = event["level"], event.get("message", line)
    except (ValueError, KeyError, TypeError):
        return
    log.log(_LEVELS.get(level, logging.INFO), "%s", message)
