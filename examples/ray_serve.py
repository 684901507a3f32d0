"""Data-parallel engines by Ray Serve: ``python examples/ray_serve.py``, until Ctrl-C.

With a cluster, keep ``app`` in a module and run it by ``serve run module:app``.
"""

import argparse
import os
import signal
import socket
from typing import Any

# Before Ray is imported: nobody is told of the use.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # it is on the loopback interface only

import ray
from ray import serve

from pyengine import EngineConfig
from pyengine.ray import build_app


def free_port() -> int:
    """A port that nothing uses now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--max-replicas", type=int, help="let the load tell how many are needed")
    parser.add_argument("--address", help="of a cluster; without it one is started, and ended")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--simulated-step-ms", type=float, default=8.0)
    parser.add_argument("--max-sequences", type=int)
    arguments = parser.parse_args()
    config = EngineConfig(
        device=arguments.device,
        simulated_step_ms=arguments.simulated_step_ms,
        max_sequences=arguments.max_sequences,
    )
    number: dict[str, Any] = {"num_replicas": arguments.replicas}
    if arguments.max_replicas is not None:
        bounds = {"min_replicas": arguments.replicas, "max_replicas": arguments.max_replicas}
        number = {"autoscaling": bounds}
    # Fractions of a CPU, so that the example runs on any machine.
    app = build_app(config, cpus=0.1, **number)
    if arguments.address is None:
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    else:
        ray.init(address=arguments.address, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app)
    print(f"ready: pyengine-demo at http://127.0.0.1:{port}/v1", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
