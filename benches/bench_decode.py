"""Decoding the demo model on the CPU: tokens a second, beside transformers and the memory's floor.

The engine (in this process, float32) answers a number of prompts at once, greedily, past every end;
transformers' ``generate`` does the same with the same weights in one batch. The floor is the
time that reading all weights once takes at the copy bandwidth measured here: a step reads each
weight at least once, whatever the batch.

    python benches/bench_decode.py [--json PATH]      (- is standard output)
"""

import argparse
import asyncio
import os
from time import perf_counter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the engine sets it before torch

import torch
from transformers import AutoModelForCausalLM

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams
from pyengine.demo import MODEL_PATH

BATCHES = (1, 4, 16)
PROMPT = [token + 300 for token in range(32)]
TOKENS = 128
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


async def engine_rate(engine: AsyncEngine, batch: int) -> float:
    """Tokens a second of the engine, after a warm-up."""
    await engine.generate(PROMPT, GREEDY)
    start = perf_counter()
    answers = await asyncio.gather(*[engine.generate(PROMPT, GREEDY) for _ in range(batch)])
    assert all(len(answer.token_ids) == TOKENS for answer in answers)
    return batch * TOKENS / (perf_counter() - start)


@torch.inference_mode()
def transformers_rate(model: torch.nn.Module, batch: int) -> float:
    """Tokens a second of transformers' ``generate``, after a warm-up."""

    def run(count: int) -> None:
        tokens = torch.tensor([PROMPT] * batch)
        model.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )

    run(4)
    start = perf_counter()
    run(TOKENS)
    return batch * TOKENS / (perf_counter() - start)


def copy_bandwidth() -> float:
    """Bytes a second that this machine copies, read and write counted once each."""
    source = torch.ones(32 << 20)
    target = torch.empty_like(source)
    target.copy_(source)
    start = perf_counter()
    for _ in range(5):
        target.copy_(source)
    return 5 * 2 * source.nbytes / (perf_counter() - start)


async def bench() -> dict[str, object]:
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    floor_s = weights / copy_bandwidth()
    runs = []
    async with AsyncEngine(speculation=()) as engine:
        for batch in BATCHES:
            ours = await engine_rate(engine, batch)
            peer = transformers_rate(model, batch)
            runs.append(
                {
                    "sequences": batch,
                    "tokens_per_second": ours,
                    "transformers_tokens_per_second": peer,
                    "over_transformers": ours / peer,
                    "step_over_floor": batch / ours / floor_s,
                }
            )
    return {"weight_bytes": weights, "floor_step_us": floor_s * 1e6, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    json_option(parser)
    arguments = parser.parse_args()
    result = asyncio.run(bench())
    if not write_json(result, arguments.json):
        return
    print(f"floor of a step: {result['floor_step_us']:.0f} µs to read the weights once")
    print("sequences   tokens/s   transformers   ratio   step / floor")
    runs = result["runs"]
    assert isinstance(runs, list)
    for run in runs:
        print(
            f"{run['sequences']:9} {run['tokens_per_second']:10.0f}"
            f" {run['transformers_tokens_per_second']:14.0f} {run['over_transformers']:7.1f}"
            f" {run['step_over_floor']:14.1f}"
        )


if __name__ == "__main__":
    main()
