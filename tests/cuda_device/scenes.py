"""Scenes on a CUDA device that is not there; a program, which prints a line of JSON for each of its
arguments: what the device counted. A scene is a process of its own, forked when everything is
imported.
"""

import asyncio
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, MistralConfig, MixtralConfig

from pyengine import AsyncEngine, SamplingParams
from pyengine.model.torch.device.queue import CudaCapturer, CudaQueue
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.gpu import start_on_gpu
from pyengine.model.torch.start.warm_up import compute
from pyengine.settings.config import EngineConfig
from tests.cuda_device.device import counted, forget, memory_used
from tests.model import packing
from tests.model.quantized import Pack, make_twins
from tests.models import random_model

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
LIMITS: dict[str, Any] = {
    "device": "cuda",
    "max_sequences": 48,
    "max_tokens_per_step": 1024,
    "max_context": 1024,
    "num_blocks": 512,
}
ROWS = 1, 32


@dataclass(frozen=True)
class Model:
    """A model whose steps are counted.

    Attributes:
        kind: Of what configuration of transformers it is.
        shape: What is set there beside :data:`SHAPE`.
        config: What its config.json has besides.
        pack: Quantizes its layers in its files.
        settings: It is served with.
    """

    kind: Any = LlamaConfig
    shape: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    pack: Pack | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, layers: int) -> Path:
        """Write it with random weights; returns its folder."""
        plain = folder / "plain"
        plain.mkdir(parents=True)
        random_model(plain, self.kind, **SHAPE | self.shape | {"num_hidden_layers": layers})
        config = plain / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | self.config))
        if self.pack is None:
            return plain
        return make_twins(plain, self.config["quantization_config"], self.pack)[0]


EXPERTS: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}

MODELS = {
    "dense": Model(),
    "float8": Model(
        config={"quantization_config": {"quant_method": "fbgemm_fp8"}}, pack=packing.fbgemm_fp8
    ),
    "float8 in blocks": Model(
        config={"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        pack=partial(packing.block_fp8, side=128),
    ),
    "int4": Model(settings={"quantization": "int4"}),
    "experts": Model(MixtralConfig, EXPERTS),
    "experts in int4": Model(MixtralConfig, EXPERTS, settings={"quantization": "int4"}),
    "windows": Model(MistralConfig, {"sliding_window": 64}),
}


def steps(model: Model) -> dict[str, Any]:
    """Counts of a decode step by its number of rows, of a step with a prompt beside decodes, and of
    a large one; of graphs by layer; and what was compiled behind the start.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folders = [model.write(Path(temporary) / str(layers), layers) for layers in (1, 2)]
        small, large = (start(folder, model.settings) for folder in folders)
    started = counted()
    forget()
    alone, both = ({rows: decode(runner, rows) for rows in ROWS} for runner in (small, large))
    for _ in range(8):  # of which some are captured
        compute(large, [1] * 8 + [40])
        compute(large, [1] * 9, penalties=2, logprobs=True)
    mixed = step(large, [1] * 8 + [40])
    eager = step(large, [1000])
    after = counted() + sum([*alone.values(), *both.values(), mixed, eager], Counter())
    return {
        "started": started,
        "decode": both,
        "nodes of a layer": {rows: both[rows]["nodes"] - alone[rows]["nodes"] for rows in ROWS},
        "layer": {rows: nodes(both[rows] - alone[rows]) for rows in ROWS},
        "mixed": mixed,
        "eager": eager,
        "refused": refused(started + after),
        "compiled late": after["modules loaded"],
        "notes": dict(large.notes),
    }


def start(folder: Path, settings: dict[str, Any]) -> TorchRunner:
    """The runner of a folder's model."""
    return start_on_gpu(EngineConfig(model=str(folder), **LIMITS | settings))


def step(runner: TorchRunner, lengths: list[int], *, greedy: bool = False) -> Counter[str]:
    """What the device counts in a step of rows of a number of tokens."""
    before = counted()
    compute(runner, lengths, greedy=greedy)
    return counted() - before


def decode(runner: TorchRunner, rows: int) -> Counter[str]:
    """The same of greedy rows of a token each, once it is captured."""
    for _ in range(8):
        compute(runner, [1] * rows, greedy=True)
    return step(runner, [1] * rows, greedy=True)


def nodes(counts: Counter[str]) -> dict[str, int]:
    """The nodes of graphs by name."""
    prefix = "node "
    return {name.removeprefix(prefix): n for name, n in counts.items() if name.startswith(prefix)}


def refused(counts: Counter[str]) -> dict[str, int]:
    """The calls that the device refused."""
    return {name: number for name, number in counts.items() if name.startswith("refused")}


PROMPTS = ("Hello", "a longer prompt than that, by some", "x" * 300)


async def answers() -> dict[str, Any]:
    """An engine's answers, of many requests at once; the device says the letter after the last."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Model().write(Path(temporary), 2)
        async with AsyncEngine(folder, **LIMITS) as engine:
            started = counted()
            forget()
            asked = [
                engine.generate(prompt, SamplingParams(max_tokens=24, ignore_eos=True, **rules))
                for prompt in PROMPTS * 12
                for rules in ({"temperature": 0}, {"top_p": 0.9, "seed": 1}, {"logprobs": 3})
            ]
            texts = [answer.text for answer in await asyncio.gather(*asked)]
    counts = counted()
    return {
        "texts": sorted(set(texts)),
        "answers": len(texts),
        "refused": refused(started + counts),
        "compiled late": counts["modules loaded"],
        "graphs launched": counts["graphs launched"],
        "waits of cudaMemcpy": counts["waits of cudaMemcpy"],
        "cudaStreamSynchronize": counts["cudaStreamSynchronize"],
    }


def failing_captures() -> dict[str, Any]:
    """Memory before and after captures that fail in each way, and whether one succeeds then."""
    device = torch.device("cuda")
    queue, capturer = CudaQueue(device), CudaCapturer()
    numbers = torch.ones(1024, device=device)

    def raises() -> None:
        numbers.add_(torch.ones(1 << 22, device=device).sum())
        raise ValueError("on purpose")

    def waits() -> None:
        torch.ones(1 << 22, device=device).sum().item()

    def synchronizes() -> None:
        torch.ones(1 << 22, device=device)
        torch.cuda.synchronize()

    def succeeds() -> None:
        numbers.add_(1)

    failures: dict[str, str] = {}
    with queue.working():
        numbers.add_(1)
        torch.cuda.empty_cache()
        before = memory_used()
        for work in (raises, waits, synchronizes):
            try:
                capturer.capture(work)
            except Exception as error:  # noqa: BLE001
                failures[work.__name__] = type(error).__name__
            torch.cuda.empty_cache()
        after = memory_used()
        graph, _ = capturer.capture(succeeds)
        forget()
        graph.replay()
    return {"failures": failures, "left": after - before, "nodes": counted()["nodes"]}


SCENES: dict[str, Callable[[], Any]] = {
    "answers": lambda: asyncio.run(answers()),
    "failing captures": failing_captures,
    **{f"steps of {name}": partial(steps, model) for name, model in MODELS.items()},
}


def play(name: str) -> None:
    """Print what comes of a scene."""
    try:
        found = {"scene": name, "found": SCENES[name]()}
    except Exception:  # noqa: BLE001
        found = {"scene": name, "error": traceback.format_exc()}
    print("\n" + json.dumps(found), flush=True)


def main(names: list[str]) -> None:
    for name in names:
        if (child := os.fork()) == 0:
            play(name)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCENES))
