"""The result of a run, by the keys of ``vllm bench serve``'s JSON."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from pyengine.benchmark.load import Run, Seen, Target

PERCENTILES = (50, 90, 99)
MEASURES = ("ttft", "tpot", "itl", "e2el")
"""Time to the first token, for each further one, between texts, to the end."""


def measures(seen: Iterable[Seen]) -> dict[str, list[float]]:
    """The times of requests that succeeded, in ms, by :data:`MEASURES`."""
    seen = list(seen)
    return {
        "ttft": [each.ttft * 1e3 for each in seen],
        "tpot": [each.tpot * 1e3 for each in seen if each.tpot is not None],
        "itl": [gap * 1e3 for each in seen for gap in each.gaps],
        "e2el": [each.latency * 1e3 for each in seen],
    }


def result(
    target: Target,
    runs: list[Run],
    *,
    rate: float | None,
    concurrency: int | None,
    goals: Mapping[str, float],
    tokenizer: str,
) -> dict[str, Any]:
    """The result of one or several runs against ``target``, one after the other.

    Args:
        target: The server.
        runs: What was seen.
        rate: Requests a second; None where all were sent at once.
        concurrency: The most requests at a time.
        goals: In ms, by :data:`MEASURES` but ``itl``: a request that keeps all is good.
        tokenizer: Which one token ids were drawn for.
    """
    seen = [each for run in runs for each in run.seen]
    done = [each for each in seen if each.error is None]
    seconds = sum(run.seconds for run in runs)
    inputs = sum(each.prompt_tokens for each in done)
    outputs = sum(each.output_tokens for each in done)
    made: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "url": target.url,
        "model_id": target.model,
        "tokenizer_id": tokenizer,
        "num_prompts": len(seen),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        "duration": seconds,
        "completed": len(done),
        "failed": len(seen) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / seconds,
        "request_goodput": _good(done, goals) / seconds if goals else None,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "max_output_tokens_per_s": max(map(_busiest_second, runs), default=0.0),
        "max_concurrent_requests": max(map(_peak, runs), default=0),
        "rtfx": 0.0,  # seconds of sound a second
    }
    for name, values in measures(done).items():
        made |= _distribution(name, values)
    return made


def details(runs: Iterable[Run]) -> dict[str, Any]:
    """Each request by itself, as ``--save-detailed`` of vLLM's bench has it; seconds."""
    seen = [each for run in runs for each in run.seen]
    return {
        "input_lens": [each.prompt_tokens for each in seen],
        "output_lens": [each.output_tokens for each in seen],
        "start_times": [each.begin for each in seen],
        "ttfts": [each.ttft if each.chunks else 0.0 for each in seen],
        "itls": [each.gaps for each in seen],
        "generated_texts": ["".join(each.texts) for each in seen],
        "errors": [each.error or "" for each in seen],
    }


def _distribution(name: str, values: list[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles of ``values``, all 0 where there are none."""
    array = np.array(values or [0.0])
    made = {
        f"mean_{name}_ms": float(array.mean()),
        f"median_{name}_ms": float(np.median(array)),
        f"std_{name}_ms": float(array.std()),
    }
    found = np.percentile(array, PERCENTILES)
    return made | {f"p{at}_{name}_ms": float(p) for at, p in zip(PERCENTILES, found, strict=True)}


def _good(done: Iterable[Seen], goals: Mapping[str, float]) -> int:
    """How many requests keep all goals; a single token keeps any of further ones."""
    return sum(
        all(
            value * 1e3 <= goals[name]
            for name, value in (
                ("ttft", each.ttft),
                ("tpot", each.tpot or 0.0),
                ("e2el", each.latency),
            )
            if name in goals
        )
        for each in done
    )


def _busiest_second(run: Run) -> float:
    """The most tokens that came within a second of the run's; those of a chunk come together."""
    counts: dict[int, float] = defaultdict(float)
    for each in run.seen:
        for at in each.chunks:
            counts[int(at)] += each.output_tokens / len(each.chunks)
    return max(counts.values(), default=0.0)


def _peak(run: Run) -> int:
    """The most requests that ran at a time."""
    changes = [(each.begin, 1) for each in run.seen]
    changes += [(each.begin + each.latency, -1) for each in run.seen if each.chunks]
    return max(accumulate(change for _, change in sorted(changes)), default=0)
