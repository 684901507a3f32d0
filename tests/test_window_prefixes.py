"""Shared prompts are found as often with windows as without, in a cache that evicts: in requests of
their own length, and where each goes on for longer than the window.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams

PROMPT = 512  # tokens that requests share
PROMPTS = 12
REQUESTS = 240
MIB = 6  # 4,096 tokens without windows: two thirds of the shared prompts
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}
WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 128,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}


def write(folder: Path, demo_model: Path, **more: Any) -> Path:
    """The folder of a model with the demo model's tokenizer, and without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPE | more))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, folder)
    return folder


async def hits(folder: Path, own: int) -> float:
    """The share of prompt tokens that were found; few prompts are asked for often, many seldom."""
    draw = random.Random(1)
    shared = [[draw.randrange(256) for _ in range(PROMPT)] for _ in range(PROMPTS)]
    short = SamplingParams(max_tokens=4, ignore_eos=True)
    async with AsyncEngine(
        folder, device="simulated", simulated_step_ms=0, load_format="dummy", kv_cache_mib=MIB
    ) as engine:
        for _ in range(REQUESTS):
            which = min(int(draw.paretovariate(1)) - 1, PROMPTS - 1)
            await engine.generate([*shared[which], *draw.choices(range(256), k=own)], short)
        report = await engine.report()
    return report["prefix_hits"] / report["prefix_queries"]


@pytest.mark.parametrize("own", [32, 200])
async def test_shared_prompts_are_found(own: int, tmp_path: Path, demo_model: Path) -> None:
    full = await hits(write(tmp_path / "full", demo_model), own)
    most = PROMPT / (PROMPT + own) * (1 - PROMPTS / REQUESTS)
    assert 0.2 < full < most, "nothing was evicted, or all"
    assert await hits(write(tmp_path / "windows", demo_model, **WINDOWS), own) >= full
