"""Mixtures of experts on a device that works as late as it may: a step reads nothing back, whatever
the router says, and a graph of it serves steps whose tokens go to other experts.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MixtralConfig

from pyengine import AsyncEngine, SamplingParams
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import SILU
from pyengine.model.torch.device.ops import REFERENCES, TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.experts.grouped import GroupedExperts
from pyengine.model.torch.layers.experts.layers import load_layers
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.weights.matrix import Dense, Matrix
from pyengine.model.weights.microscaled import Microscaled
from tests.late_device import LateQueue, kernel
from tests.model.quantized import has_products
from tests.model.test_late_device import use_late_device
from tests.models import random_model

CPU = torch.device("cpu")
EXPERTS, CHOSEN, HIDDEN, INNER = 6, 2, 64, 32


async def ask(folder: Path, **settings: Any) -> tuple[list[Any], list[int]]:
    """What some prompts are answered, beside decodes of others; and the layers that counted."""
    async with AsyncEngine(
        folder, max_sequences=4, max_tokens_per_step=48, prefill_chunk=16, block_size=4,
        kv_cache_mib=2, speculation=(), **settings,
    ) as engine:  # fmt: skip

        async def one(index: int) -> Any:
            prompt = [(7 * index + 3 * at) % 500 for at in range(5 + 9 * (index % 4))]
            params = SamplingParams(temperature=0, max_tokens=6 + 4 * index, ignore_eos=True)
            return (await engine.generate(prompt, params)).token_ids

        answers = await asyncio.gather(*map(one, range(7)))
        loads = (await engine.metrics()).experts
    return answers, [load.layer for load in loads if sum(load.tokens) > 100]


@pytest.mark.parametrize("quantization", [None, "int4"])
async def test_a_step_waits_for_nothing_and_is_replayed(
    quantization: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shape = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
    random_model(tmp_path, MixtralConfig, **shape)
    settings = {} if quantization is None else {"quantization": quantization}
    monkeypatch.setattr(
        "pyengine.model.torch.start.loading.TorchParts", partial(TorchParts, cpu_kernels=False)
    )
    has_products(monkeypatch)
    with monkeypatch.context() as patches:
        patches.setattr("pyengine.engine.load_runner", start_on_cpu)
        expected = await ask(tmp_path, **settings)
    queues, variants = use_late_device(monkeypatch, "triton", None)
    assert await ask(tmp_path, **settings) == expected
    assert expected[1] == [0, 1]
    (queue,) = queues
    assert queue.waited > 10
    assert queue.replays > 5
    assert "cannot be captured" not in caplog.text
    assert variants >= {"decode", "ragged"}


def layer_of(kind: str, ops: TorchOps, first: int) -> tuple[GroupedExperts, Transfer]:
    """Half of the experts of a layer, as one of two ranks has them."""
    random = np.random.default_rng(first)

    def matrix(outputs: int, inputs: int) -> Matrix:
        if kind == "dense":
            return Matrix((Dense(random.normal(size=(outputs, inputs)).astype(np.float32)),))
        values = random.integers(0, 256, (outputs, inputs // 2), dtype=np.uint8)
        powers = random.integers(120, 126, (outputs, inputs // 32), dtype=np.uint8)
        return Matrix((Microscaled(values, powers),))

    weights = ExpertWeights(
        EXPERTS,
        first,
        [matrix(2 * INNER, HIDDEN) for _ in range(EXPERTS // 2)],
        [matrix(HIDDEN, INNER) for _ in range(EXPERTS // 2)],
    )
    transfer = Transfer(CPU, torch.float32)
    layers = load_layers(ops, weights, transfer, CPU, torch.float32)
    return GroupedExperts(ops, CPU, Routing(CHOSEN), SILU, layers), transfer


@pytest.mark.parametrize("first", [0, EXPERTS // 2])
@pytest.mark.parametrize("kind", ["dense", "MXFP4"])
def test_a_graph_of_a_ranks_experts_serves_whatever_tokens_choose(
    kind: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured where tokens choose all experts, replayed where they choose few, or none here."""
    has_products(monkeypatch)
    ops = TorchOps(*(kernel(each) for each in vars(REFERENCES).values()))
    generator = torch.Generator().manual_seed(0)
    products, transfer = layer_of(kind, ops, first)
    transfer.wait()
    x, out = torch.randn(6, HIDDEN, generator=generator), torch.zeros(6, HIDDEN)
    chosen = torch.arange(12, dtype=torch.int32).view(6, CHOSEN) % EXPERTS
    weights = torch.rand(6, CHOSEN, generator=generator)
    queue = LateQueue()
    with queue.working():
        graph, _ = queue.capture(lambda: products(x, chosen, weights, out))
    elsewhere = EXPERTS // 2 - first
    for numbers in (
        torch.randint(0, EXPERTS, (6, CHOSEN), generator=generator),
        torch.full((6, CHOSEN), first),
        torch.full((6, CHOSEN), elsewhere),
    ):
        chosen.copy_(numbers)
        out.fill_(7)
        graph.replay()
        queue.finish()
        expected = torch.empty_like(out)
        products(x, chosen, weights, expected)
        assert torch.equal(out, expected)
        assert bool(out.any()) == bool((numbers // 3 == first // 3).any())
