"""Vectors of 32 inputs of 32 tokens, beside transformers on the same folder.

The folder is a random body in the shape of Qwen3-Embedding, of the size that ``--hidden`` and
``--layers`` say, made anew. transformers computes one batch of all inputs (they are of one length,
so none is padded), takes the last token's state and normalizes it. Both compute in float32 on as
many threads. Each round measures both in turn; the ratio is that of benches/paired.py.

    python benches/bench_embeddings.py [--json -] [--hidden N] [--layers N] [--rounds N]
"""

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

# As the engine sets it: threads of torch's that spin would take the cores from everything else.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from transformers import AutoModel, Qwen3Config

from benches.figures import json_option, write_json
from benches.paired import ratio_of, turns
from pyengine import AsyncEngine
from pyengine.demo import MODEL_PATH

INPUTS, TOKENS, VOCABULARY = 32, 32, 2048
TURNS = 4  # of both, in a round


def make(folder: Path, hidden: int, layers: int) -> Any:
    """Save the body to ``folder``; returns transformers' own."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((MODEL_PATH / "tokenizer.json").read_bytes())
    return model


def by_transformers(model: Any, prompts: list[list[int]]) -> np.ndarray[Any, Any]:
    """The vectors of prompts of one length."""
    with torch.inference_mode():
        states = model(torch.tensor(prompts), use_cache=False).last_hidden_state[:, -1]
        found: np.ndarray[Any, Any] = torch.nn.functional.normalize(states).numpy()
    return found


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of both, their ratio, and how much their vectors agree."""
    numbers = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        model = make(Path(made), arguments.hidden, arguments.layers)
        torch.set_num_threads(arguments.threads)
        settings: dict[str, Any] = {"threads": arguments.threads, "prefix_cache": False}
        async with AsyncEngine(made, **settings) as engine:

            def fresh() -> list[list[int]]:
                drawn: list[list[int]] = numbers.integers(
                    VOCABULARY, size=(INPUTS, TOKENS)
                ).tolist()
                return drawn

            async def ours(prompts: list[list[int]]) -> np.ndarray[Any, Any]:
                return np.stack([each.vector for each in await engine.embed(prompts)])

            async def timed(which: int) -> float:
                prompts, begin = fresh(), time.perf_counter()
                if which:
                    by_transformers(model, prompts)
                else:
                    await ours(prompts)
                return time.perf_counter() - begin

            prompts = fresh()
            cosines = (by_transformers(model, prompts) * await ours(prompts)).sum(1)
            for _ in range(3):
                await timed(0)
                await timed(1)
            ratios, best = [], [float("inf")] * 2
            for _ in range(arguments.rounds):
                sums = [0.0, 0.0]
                for order in turns(TURNS):
                    for which in order:
                        took = await timed(which)
                        sums[which] += took
                        best[which] = min(best[which], took)
                ratios.append(sums[1] / sums[0])
    return {
        "hidden": arguments.hidden,
        "layers": arguments.layers,
        "threads": arguments.threads,
        "pyengine_ms": best[0] * 1e3,
        "transformers_ms": best[1] * 1e3,
        "ratio": asdict(ratio_of(ratios)),
        "least_cosine": float(cosines.min()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    json_option(parser)
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    if write_json(figures, arguments.json):
        ratio = figures["ratio"]
        print(f"{INPUTS} inputs of {TOKENS} tokens, {figures['hidden']} x {figures['layers']}:")
        print(f"  pyengine      {figures['pyengine_ms']:7.1f} ms")
        print(f"  transformers  {figures['transformers_ms']:7.1f} ms")
        print(f"  {ratio['value']:.2f} times as fast, {ratio['low']:.2f} to {ratio['high']:.2f}")
        print(f"  least cosine  {figures['least_cosine']:.7f}")


if __name__ == "__main__":
    main()
