"""The times between tokens as clients measure them, beside the server's histogram of them.

Clients outside of a server of two workers ask for completions and chats, whole and streamed, with
``n=2``, schemas and tools, and drop some streams. They note when each piece of text comes. At the
end it prints the clients' median, 99th percentile and longest gap beside the server's
``pyengine_inter_token_latency_seconds``, each with the number of its bucket; the exit status is 1
where two are more than one bucket apart. The server counts the tokens of whole answers too, when
its worker takes them.

    python -m benches.bench_client_times [--seconds 600] [--clients 12] [--step-ms 12] [--json PATH]
"""

import argparse
import asyncio
import json
import sys
import time
from bisect import bisect_left
from itertools import pairwise
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benches.endurance.mixed import KINDS
from benches.endurance.servers import served
from benches.figures import json_option, write_json

SERIES = "pyengine_inter_token_latency_seconds_bucket"
SHARES = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
Gaps = list[float]


async def gaps(http: httpx.AsyncClient, kind: str, number: int) -> Gaps:
    """Ask once; the seconds between the pieces of each streamed answer."""
    path, body = KINDS[kind]
    if "prompt" in body:
        body = body | {"prompt": f"{number} {body['prompt']}"}
    if not body.get("stream"):
        (await http.post(path, json=body)).raise_for_status()
        return []
    times: list[float] = []
    async with http.stream("POST", path, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            now = time.perf_counter()
            if line.startswith("data: {") and _text(json.loads(line[6:])["choices"]):
                times.append(now)
            if kind == "abort" and len(times) == 20:
                break
    return [after - before for before, after in pairwise(times)]


def _text(choices: list[dict[str, Any]]) -> bool:
    return any(choice.get("text") or choice.get("delta", {}).get("content") for choice in choices)


async def load(url: str, seconds: float, clients: int) -> tuple[Gaps, int]:
    """The gaps that all clients saw, and how many requests they made."""
    found: Gaps = []
    made = 0
    end = time.perf_counter() + seconds
    kinds = list(KINDS)

    async def client(number: int) -> None:
        nonlocal made
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            while time.perf_counter() < end:
                found.extend(await gaps(http, kinds[(number + made) % len(kinds)], made))
                made += 1

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return found, made


def histogram(text: str) -> dict[float, float]:
    """The series of a scrape: cumulated counts by bound."""
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == SERIES
    }


def compared(found: Gaps, counts: dict[float, float]) -> dict[str, dict[str, float]]:
    """Each figure of the clients, and the numbers of its bucket there and here."""
    found, bounds, whole = sorted(found), list(counts), list(counts.values())
    figures = {}
    for name, share in SHARES.items():
        value = found[min(int(share * len(found)), len(found) - 1)]
        theirs = bisect_left(whole, share * whole[-1])
        figures[name] = {
            "client_ms": value * 1e3,
            "client_bucket": bisect_left(bounds, value),
            "server_bucket": theirs,
            "server_up_to_ms": bounds[theirs] * 1e3,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--step-ms", default="12")
    json_option(parser)
    options = parser.parse_args()
    given = ("--workers", "2", "--mode", "server", "--device", "simulated")
    with served(*given, "--simulated-step-ms", options.step_ms) as (url, _):
        found, made = asyncio.run(load(url, options.seconds, options.clients))
        counts = histogram(httpx.get(f"{url}/metrics", timeout=30).text)
    figures = compared(found, counts)
    if write_json({"requests": made, "gaps": len(found), **figures}, options.json):
        print(
            f"{made:,} requests, {len(found):,} gaps of {max(counts.values()):,.0f} at the server"
        )
        for name, each in figures.items():
            print(
                f"{name:<8} {each['client_ms']:9.2f} ms, bucket {each['client_bucket']:2}; "
                f"the server's {each['server_bucket']:2}, up to {each['server_up_to_ms']:.1f} ms"
            )
    apart = [abs(each["client_bucket"] - each["server_bucket"]) for each in figures.values()]
    sys.exit(max(apart) > 1)


if __name__ == "__main__":
    main()
