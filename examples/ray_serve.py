"""Data-parallel engines by Ray Serve: ``python examples/ray_serve.py``, until Ctrl-C.

With a cluster, keep ``app`` in a module and run it by ``serve run module:app``.
"""

import argparse
import os
import signal
import socket

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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--simulated-step-ms", type=float, default=8.0)
    parser.add_argument("--max-sequences", type=int)
    arguments = parser.parse_args()
    config = EngineConfig(
        device=arguments.device,
        simulated_step_ms=arguments.simulated_step_ms,
        max_sequences=arguments.max_sequences,
    )
    # Fractions of a CPU, so that the example runs on any machine.
    app = build_app(config, num_replicas=arguments.replicas, cpus=0.1)
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app)
    print(f"ready: pyengine-demo at http://127.0.0.1:{port}/v1", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
