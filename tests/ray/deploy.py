"""Two applications on a running cluster: ``python tests/ray/deploy.py ADDRESS``, until SIGTERM.

``/scaled`` has one or two replicas, as the load of slow engines asks for; ``/parallel`` has one of
two ranks. It prints the options that Ray has reserved, and the number of replicas when it changes.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray import serve
from ray.util import placement_group_table

from pyengine import EngineConfig
from pyengine.ray import build_app

QUICK: dict[str, Any] = {
    "metrics_interval_s": 0.1,
    "look_back_period_s": 0.5,
    "upscale_delay_s": 0.2,
    "downscale_delay_s": 0.5,
}
SLOW = EngineConfig(device="simulated", simulated_step_ms=20.0, max_sequences=2)
RANKS = EngineConfig(device="cpu", tensor_parallel=2, num_blocks=64)


def main() -> None:
    """Deploy, then report until a signal comes."""
    ray.init(address=sys.argv[1], log_to_driver=False)
    bounds = {"min_replicas": 1, "max_replicas": 2, **QUICK}
    scaled = build_app(SLOW, autoscaling=bounds, cpus=0.1)
    parallel = build_app(RANKS, cpus=0.1)
    serve.run_many(
        [
            serve.RunTarget(scaled, name="scaled", route_prefix="/scaled"),
            serve.RunTarget(parallel, name="parallel", route_prefix="/parallel"),
        ]
    )
    groups = [each for each in placement_group_table().values() if each["state"] == "CREATED"]
    reserved = [[each["strategy"], list(each["bundles"].values())] for each in groups]
    print(f"reserved: {json.dumps(reserved)}", flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    shown = -1
    while not ended.wait(0.1):
        status = serve.status().applications["scaled"].deployments["engine-pyengine-demo"]
        running = status.replica_states.get("RUNNING", 0)
        if running != shown and sum(status.replica_states.values()) == running:
            shown = running
            print(f"scaled: {running} replicas", flush=True)


if __name__ == "__main__":
    main()
