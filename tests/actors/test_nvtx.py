"""Ranges of NVTX around the parts of a step, where they are asked for."""

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.actors.nvtx import PARTS
from pyengine.errors import ConfigError


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The names of ranges that begin, and None for each end."""
    seen: list[str | None] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append(None))
    return seen


async def test_each_part_of_a_step_is_a_range(ranges: list[str | None]) -> None:
    async with AsyncEngine(device="simulated", simulated_step_ms=1, nvtx=True) as engine:
        await engine.generate([1, 2], SamplingParams(max_tokens=5, ignore_eos=True))
    assert {name for name in ranges if name} == {f"pyengine {part}" for part in PARTS}
    depths = [0]
    for name in ranges:
        depths.append(depths[-1] + (1 if name else -1))
    assert (min(depths), depths[-1]) == (0, 0)


async def test_nothing_is_marked_unless_asked_for(ranges: list[str | None]) -> None:
    async with AsyncEngine(device="simulated", simulated_step_ms=1) as engine:
        await engine.generate([1, 2], SamplingParams(max_tokens=5, ignore_eos=True))
    assert ranges == []


async def test_a_torch_without_nvtx_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda.nvtx, "mark", missing)
    with pytest.raises(ConfigError, match="NVTX functions not installed"):
        async with AsyncEngine(device="simulated", nvtx=True):
            pass
