"""A trace at three times its rate: does anybody starve, and what does queueing cost in throughput?

Requests of Azure's 2023 conversation trace (lengths and arrivals; CC-BY 4.0) go to the engine on
the simulated device, which they overload. The same requests offered all at once are the peer: a
scheduler that loses nothing to waiting, admission or preemption takes as many tokens a second from
both. Every fourth request is of a better class. *Passed over* counts what the policy rules out:
pairs in which a later request began first although neither its class nor its arrival entitled it.

    python benches/bench_trace.py [--trace FILE] [--limit N] [--json PATH]   (- is standard output)
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams
from pyengine.profiling.workload import Job, read_trace
from tools.reference_data import MissingDataError, reference_file

TRACE = "traces/azure-2023-conversation.csv"
RATE = 3.0
STEP_MS = 8.0
SEQUENCES = 16
SKIP = 60  # the trace begins slowly: until here three times its rate is no overload
AGING_S = 10.0  # rust/scheduler/src/queue/policy/mod.rs
SLACK_S = 0.5  # several prefills share a step; the first token tells of its end, not its beginning


@dataclass
class Outcome:
    """The times of one request, in seconds from the start of the run."""

    priority: int
    arrived: float
    first_token: float


async def run(
    engine: AsyncEngine, jobs: list[Job], *, at_once: bool
) -> tuple[float, list[Outcome]]:
    """Tokens a second, and each request's outcome."""
    start = perf_counter()

    async def ask(number: int, job: Job) -> Outcome:
        if not at_once:
            await asyncio.sleep(job.arrival_s)
        priority = -1 if number % 4 == 0 else 0
        params = SamplingParams(max_tokens=job.answer_tokens, ignore_eos=True, seed=number)
        arrived = perf_counter() - start
        generation = engine.generate(job.prompt, params, priority=priority)
        await anext(generation)
        first = perf_counter() - start
        await generation
        return Outcome(priority, arrived, first)

    outcomes = await asyncio.gather(*[ask(number, job) for number, job in enumerate(jobs)])
    total = sum(len(job.prompt) + job.answer_tokens for job in jobs)
    return total / (perf_counter() - start), list(outcomes)


def passed_over(outcomes: list[Outcome]) -> int:
    """Pairs in which the second came too late to go before the first, and did all the same."""
    return sum(
        late.arrived > early.arrived + AGING_S * (early.priority - late.priority) + SLACK_S
        and late.first_token + SLACK_S < early.first_token
        for early in outcomes
        for late in outcomes
        if late.priority <= early.priority
    )


async def bench(trace: Path, limit: int) -> dict[str, float]:
    async with AsyncEngine(
        device="simulated", simulated_step_ms=STEP_MS, max_sequences=SEQUENCES, prefix_cache=False
    ) as engine:
        workload = read_trace(trace, SKIP + limit).workload(
            vocab_size=engine.info.vocab_size,
            max_context=engine.max_context,
            rate_scale=RATE,
            clip=True,
        )
        begin = workload.jobs[SKIP].arrival_s
        jobs = [replace(job, arrival_s=job.arrival_s - begin) for job in workload.jobs[SKIP:]]
        rate, outcomes = await run(engine, jobs, at_once=False)
        peer, _ = await run(engine, jobs, at_once=True)
        waits = [outcome.first_token - outcome.arrived for outcome in outcomes]
    return {
        "requests": len(jobs),
        "tokens_per_second": rate,
        "all_at_once_tokens_per_second": peer,
        "over_all_at_once": rate / peer,
        "longest_wait_s": max(waits),
        "mean_wait_s": sum(waits) / len(waits),
        "passed_over": passed_over(outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, help=f"instead of {TRACE}")
    parser.add_argument("--limit", type=int, default=160, help="number of requests to take")
    json_option(parser)
    arguments = parser.parse_args()
    try:
        trace = arguments.trace or reference_file(TRACE)
    except MissingDataError as error:
        sys.exit(f"{error}; or name a trace with --trace")
    result = asyncio.run(bench(trace, arguments.limit))
    if not write_json(result, arguments.json):
        return
    for name, value in result.items():
        print(f"{name:30} {value:10.3f}")


if __name__ == "__main__":
    main()
