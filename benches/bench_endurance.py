"""Endurance of ``pyengine serve``: memory, errors and latencies under mixed load, deaths, overload.

``mixed`` sends requests of all kinds (completions and chats, whole and streamed, ``n=2``, schemas,
tools, dropped streams, a connection each) from many clients, and prints the memory that each
process has of its own over time, and what it gained after the warm-up; beside it what it shares:
files, and rings whose pages become resident where messages come for the first time. ``kills`` kills
the engine three times under 200 streams, and compares every stream with one that was not disturbed;
``stop`` stops it for ten seconds. ``overload`` sends 10,000 requests from several processes, each
on a connection of its own, and prints how they were answered and how long a refusal took; the floor
is ``/health`` asked for in the same way. ``sustained``, they come for ten seconds at twice the rate
that the engine can take; ``burst``, all at once, to a server that can hold half of them.

    python benches/bench_endurance.py [--seconds 20 | --requests 50000] [--clients 24] [--simulated]
    python benches/bench_endurance.py --only kills
    python benches/bench_endurance.py --only stop
    python benches/bench_endurance.py --only overload
"""

import argparse
import asyncio
from typing import Any

from benches.endurance.disturbed import disturbed, kill, stop
from benches.endurance.mixed import mixed, show
from benches.endurance.overload import overload
from benches.endurance.servers import served
from benches.figures import json_option, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["mixed", "kills", "stop", "overload"])
    parser.add_argument("--seconds", type=float, default=20, help="how long the mixed load lasts")
    parser.add_argument("--requests", type=int, help="end the mixed load by requests instead")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--simulated", action="store_true", help="the mixed load without a model")
    parser.add_argument("--streams", type=int, default=200, help="streams under the kills")
    parser.add_argument("--burst", type=int, default=10_000, help="requests of the overload")
    parser.add_argument("--workers", type=int, default=2)
    json_option(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    two = ("--workers", str(options.workers), "--mode", "server")
    if options.only in (None, "mixed"):
        device = ("--device", "simulated", "--simulated-step-ms", "0.2")
        with served(*two, *(device if options.simulated else ())) as (url, server):
            every_s = max(0.2, options.seconds / 100)
            how = {"clients": options.clients, "requests": options.requests, "every_s": every_s}
            load = asyncio.run(mixed(url, server, seconds=options.seconds, **how))
        show(load)
        figures["mixed"] = {
            "requests": load.done,
            "errors": load.errors,
            "gained_mib": load.gains(),
            "memory": load.memory,
            "shared_mib": load.shared,
        }
    ten_ms = ("--device", "simulated", "--simulated-step-ms", "10")
    for name, disturb, times in (("kills", kill, 3), ("stop", stop, 1)):
        if options.only in (None, name):
            with served(*two, *ten_ms) as (url, server):
                ends = asyncio.run(disturbed(url, server, options.streams, disturb, times))
            figures[name] = ends
            print(f"{options.streams} streams, {times} x {disturb.__name__}: {dict(ends)}")
    if options.only in (None, "overload"):
        # 256 sequences of 16 steps of 32 ms are 500 requests a second.
        paced = ("--simulated-step-ms", "32", "--max-waiting", "256")
        half = ("--max-waiting", str(options.burst // 2 - 256))
        for name, over_s, limits in (
            ("sustained", options.burst / 1000, paced),
            ("burst", 0, half),
        ):
            with served(*two, "--device", "simulated", *limits) as (url, _):
                figures[name] = overload(url, options.burst, over_s, 2)
            print(f"{options.burst} requests at twice the capacity, {name}: {figures[name]}")
    write_json(figures, options.json)


if __name__ == "__main__":
    main()
