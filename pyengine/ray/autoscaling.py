"""How many replicas the load of the engines needs: Ray Serve's autoscaling by our own signals."""

from collections.abc import Mapping
from typing import Any

WAITING = "requests_waiting"
RUNNING = "sequences_usage_ratio"
CACHE = "kv_cache_usage_ratio"


class ByEngineLoad:
    """A policy for ``AutoscalingConfig``: as many replicas as the work of all needs.

    ::

        use of a replica = max(running / max_sequences, held blocks / blocks of the cache)
        wanted           = sum of uses / target_use + sum of waiting / target_waiting

    Requests that wait for a place ask for replicas beside those that the running ones fill. While a
    replica is still loading, what is wanted stays the same, so none is asked for twice. Ray applies
    its bounds, factors and delays to the result. Called in Serve's controller.
    """

    def __init__(self, target_use: float = 0.8, target_waiting: float = 4.0) -> None:
        """Take the use that a replica should have, and the waiting requests that need one more."""
        self._use = target_use
        self._waiting = target_waiting

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The number of replicas for Ray's ``AutoscalingContext``, and the state it keeps: none."""
        loads: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        if WAITING not in loads:
            return context.target_num_replicas, {}  # no engine has said anything yet
        running, cache = loads[RUNNING], loads[CACHE]
        used = sum(max(running[each], cache.get(each, 0.0)) for each in running)
        return used / self._use + sum(loads[WAITING].values()) / self._waiting, {}
