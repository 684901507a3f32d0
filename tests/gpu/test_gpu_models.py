"""Weights on GPUs, what multiplies by them, and ranks on several."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ConfigError, EngineDeadError
from pyengine.grammar import regex
from pyengine.model.spec import describe
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig
from tests.model.families import FAMILIES, ONE_OF_EACH
from tests.models import greedy, mixed_prompts, random_llama, random_model

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
NAMES = ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight")


def several_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU; ranks want two")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_readers_bring_the_same_numbers_to_the_device(dtype: str, tmp_path: Path) -> None:
    random_llama(tmp_path)
    spec = describe(EngineConfig(model=str(tmp_path), device="cuda", dtype=dtype))  # type: ignore[arg-type]
    shapes = {NAMES[0]: (300, 64), NAMES[1]: (128, 64)}
    kind = getattr(torch, dtype)
    transfers = [Transfer(torch.device(device), kind) for device in ("cuda", "cpu")]
    with open_weights(spec) as weights:
        matrices = [weights.table(name, *size) for name, size in shapes.items()]
        matrices.append(weights.outputs({NAMES[1]: 128}, 64))
    got, wanted = ([transfer.matrix(each) for each in matrices] for transfer in transfers)
    for transfer in transfers:
        transfer.wait()
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.device.type == "cuda"
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_every_architecture_says_what_transformers_says(name: str, tmp_path: Path) -> None:
    kind, own = FAMILIES[name]
    theirs = random_model(tmp_path, kind, **own | {"head_dim": 64})
    expected = greedy(theirs, mixed_prompts(), 40)
    config: dict[str, Any] = {
        "device": "cuda",
        "dtype": "float32",
        "attention": "triton",
        "prefill_chunk": 16,
    }
    async with AsyncEngine(tmp_path, **config) as engine:
        asked = [engine.generate(prompt, GREEDY) for prompt in mixed_prompts()]
        answers = await asyncio.gather(*asked)
    assert [answer.token_ids for answer in answers] == expected


async def test_two_gpus_say_what_one_does_and_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    several_gpus()
    random_llama(tmp_path, head_dim=64)
    model: dict[str, Any] = {
        "model": str(tmp_path), "device": "cuda", "dtype": "float32", "attention": "triton",
    }  # fmt: skip
    answers = []
    for ranks in (1, 2):
        async with AsyncEngine(tensor_parallel=ranks, **model) as engine:
            answers.append(
                [
                    (await engine.generate(prompt, GREEDY, grammar=grammar)).token_ids
                    for prompt in ("Hello", "Once upon a time", "And again and again")
                    for grammar in (None, regex("[a-f]{30}"))
                    for _ in range(6)  # often enough for graphs
                ]
            )
            if ranks == 1:
                continue
            pid = int(re.findall(r"\d+", engine.info.notes["ranks"])[-1])
            endless = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
            generation = engine.generate("Hello", endless)
            await anext(aiter(generation))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="rank 1"):
                await generation
    assert answers[0] == answers[1]


async def test_more_ranks_than_gpus_are_refused() -> None:
    ranks = 2 ** torch.cuda.device_count().bit_length()
    with pytest.raises(ConfigError, match="torch sees"):
        async with AsyncEngine(device="cuda", tensor_parallel=ranks):
            pass
