"""A Ray cluster on this machine, for tests and benches."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyengine.http.replicas.replica_set import free_port
from tests.programs import Server, environment, running

START_S = 240.0
"""Most that a step of a start or an end may take on a busy machine."""


class Cluster:
    """A cluster of one node.

    Attributes:
        address: Where programs connect to it.
        pid: Of the process that has started all others.
    """

    def __init__(self, server: Server, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.pid = server.process.pid


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster, and end it.

    A node gives its agents 15 seconds to start, which no setting changes and a busy machine does
    not always keep. Then it dies, and another is started.
    """
    patient = environment(
        RAY_AUTH_MODE="disabled",
        RAY_agent_register_timeout_ms="240000",
        RAY_raylet_start_wait_time_s="45",
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="55",
        RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="55",
        RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.1",
    )
    for last in (False, False, False, True):
        port = free_port()
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2"),
            f"--dashboard-agent-listen-port={free_port()}",  # not that of another cluster here
            *("--include-dashboard=false", "--disable-usage-stats"),
        ]
        with running(*command, env=patient) as server:
            try:
                server.expect("Ray runtime started", START_S)
            except AssertionError:
                if last:
                    raise
                continue
            yield Cluster(server, port)
            server.end(signal.SIGTERM, START_S)
            return
