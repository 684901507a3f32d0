"""What requests that come together save by sharing their prompt: the answers of one request with
``n``, and a burst of users behind one system prompt.

The demo model on the CPU. The peer is the same engine with the same prompts, each under a
``cache_salt`` of its own, so that nothing is shared. ``computed`` counts prompt tokens of all
requests; ``first`` and ``last`` are when the first and the last of them has its first token.
Medians over rounds, shared and not in turn.

    python benches/bench_shared_prompts.py [--json -] [--rounds N]
"""

import argparse
import asyncio
import random
import time
from statistics import median

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams

Prompts = list[list[int]]
Figures = dict[str, float]
PARAMS = SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True)


def some_tokens(count: int, draw: random.Random) -> list[int]:
    """Ids of ordinary tokens."""
    return [draw.randrange(300, 2000) for _ in range(count)]


def cases() -> dict[str, Prompts]:
    """Prompts that come together, by name."""
    draw = random.Random(0)
    choices = [some_tokens(1000, draw)] * 8
    system = some_tokens(500, draw)
    users = [system + some_tokens(30, draw) for _ in range(20)]
    return {"8 choices, 1,000 tokens": choices, "20 users, 500 + 30 tokens": users}


async def ask(engine: AsyncEngine, prompts: Prompts, salts: list[str]) -> Figures:
    """Ask for all at once, and wait for their ends."""
    before = await engine.report()
    begin = time.perf_counter()

    async def first_token(prompt: list[int], salt: str) -> float:
        first = 0.0
        async for _ in engine.generate(prompt, PARAMS, cache_salt=salt):
            first = first or time.perf_counter() - begin
        return first

    firsts = await asyncio.gather(*map(first_token, prompts, salts))
    report = await engine.report()
    asked, found = (report[name] - before[name] for name in ("prefix_queries", "prefix_hits"))
    return {"computed": asked - found, "first_ms": min(firsts) * 1e3, "last_ms": max(firsts) * 1e3}


async def bench(rounds: int) -> dict[str, dict[str, Figures]]:
    """Of each case what is measured when prompts are shared, and when each is computed alone."""
    taken: dict[str, dict[str, list[Figures]]] = {}
    async with AsyncEngine(device="cpu", mode="server", speculation=()) as engine:
        for number in range(rounds + 1):
            for name, prompts in cases().items():
                salts = {
                    "shared": [f"{number}"] * len(prompts),
                    "alone": [f"{number}, {at}" for at in range(len(prompts))],
                }
                for kind, each in salts.items():
                    figures = await ask(engine, prompts, each)
                    if number > 0:  # the first round warms up
                        taken.setdefault(name, {}).setdefault(kind, []).append(figures)
    return {
        name: {
            kind: {key: median(each[key] for each in all_of) for key in all_of[0]}
            for kind, all_of in kinds.items()
        }
        for name, kinds in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    figures = asyncio.run(bench(arguments.rounds))
    if write_json(figures, arguments.json):
        for name, kinds in figures.items():
            print(name)
            for key, shared in kinds["shared"].items():
                alone = kinds["alone"][key]
                print(f"  {key:<9} {shared:9,.1f}   alone {alone:9,.1f}   {alone / shared:5.2f} x")


if __name__ == "__main__":
    main()
