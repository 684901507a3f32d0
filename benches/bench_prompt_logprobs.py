"""Log-probabilities of prompts, beside computing the prompts alone and beside transformers.

The folder is a random Llama of the size that the options say, made anew; prompts are random tokens.
transformers computes one batch of all prompts, the log-softmax of all their logits, and takes each
token's own. All compute in float32 on as many threads. Each round measures all three in turn; the
ratios are those of benches/paired.py, of tokens a second.

    python benches/bench_prompt_logprobs.py [--json -] [--hidden N] [--vocabulary N] [--rounds N]
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
from transformers import LlamaConfig, LlamaForCausalLM

from benches.figures import json_option, write_json
from benches.paired import ratio_of, turns
from pyengine import AsyncEngine, SamplingParams
from pyengine.demo import MODEL_PATH

PROMPTS, TOKENS = 8, 256
PROMPT_ALONE = SamplingParams(max_tokens=0)


def make(folder: Path, hidden: int, vocabulary: int) -> Any:
    """Save the model to ``folder``; returns transformers' own."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=4,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        max_position_embeddings=2 * TOKENS,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((MODEL_PATH / "tokenizer.json").read_bytes())
    return model


def by_transformers(model: Any, prompts: list[list[int]]) -> np.ndarray[Any, Any]:
    """Of each prompt the log-probability of each token but the first, [prompts, tokens - 1]."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        logprobs = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        found: np.ndarray[Any, Any] = logprobs.gather(2, ids[:, 1:, None])[..., 0].numpy()
    return found


async def by_us(
    engine: AsyncEngine, prompts: list[list[int]], top: int | None
) -> list[list[float]]:
    """The same with ``top`` likely tokens each, or of None the prompts alone."""
    asked = [engine.generate(each, PROMPT_ALONE, prompt_logprobs=top) for each in prompts]
    answers = [await generation for generation in asked]
    return [
        [entry.logprob for entry in answer.prompt_logprobs or () if entry is not None]
        for answer in answers
    ]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of each, the ratios, and how far both are apart at most."""
    numbers = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        model = make(Path(made), arguments.hidden, arguments.vocabulary)
        torch.set_num_threads(arguments.threads)
        async with AsyncEngine(made, threads=arguments.threads) as engine:

            async def timed(which: str) -> float:
                prompts = numbers.integers(arguments.vocabulary, size=(PROMPTS, TOKENS)).tolist()
                begin = time.perf_counter()
                if which == "transformers":
                    by_transformers(model, prompts)
                else:
                    await by_us(engine, prompts, arguments.top if which == "scored" else None)
                return time.perf_counter() - begin

            prompts = numbers.integers(arguments.vocabulary, size=(PROMPTS, TOKENS)).tolist()
            apart = by_transformers(model, prompts) - np.array(await by_us(engine, prompts, 0))
            peers = ("alone", "transformers")
            ratios: dict[str, list[float]] = {peer: [] for peer in peers}
            best = dict.fromkeys(("scored", *peers), float("inf"))
            for peer in peers * (1 + arguments.rounds):
                took = {peer: 0.0, "scored": 0.0}
                for order in turns(2):
                    for which in order:
                        name = "scored" if which == 0 else peer
                        seconds = await timed(name)
                        took[name] += seconds
                        best[name] = min(best[name], seconds)
                ratios[peer].append(took[peer] / took["scored"])
    return {
        "hidden": arguments.hidden,
        "vocabulary": arguments.vocabulary,
        "threads": arguments.threads,
        "top": arguments.top,
        "tokens_per_s": {name: PROMPTS * TOKENS / seconds for name, seconds in best.items()},
        "ratio": {peer: asdict(ratio_of(found[1:])) for peer, found in ratios.items()},
        "most_apart": float(np.abs(apart).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    json_option(parser)
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    if write_json(figures, arguments.json):
        print(f"{PROMPTS} prompts of {TOKENS} tokens, {figures['hidden']} wide, tokens a second:")
        for name, rate in figures["tokens_per_s"].items():
            ratio = figures["ratio"].get(name)
            times = f"  scored is {ratio['value']:.2f} times as fast" if ratio else ""
            print(f"  {name:<13} {rate:8.0f}{times}")
        print(f"  most apart    {figures['most_apart']:.1e}")


if __name__ == "__main__":
    main()
