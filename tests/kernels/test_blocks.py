"""Blocks copied in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.blocks import BlockCaches, copy_blocks, copy_blocks_reference
from tests.kernels.backends import DEVICE

KERNELS = pytest.mark.parametrize("kernel", [copy_blocks, copy_blocks_reference])
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@KERNELS
@settings(max_examples=15, deadline=None)
@given(
    dtype=st.sampled_from(TYPES),
    shape=st.sampled_from([(1, 1, 8), (3, 2, 24), (16, 4, 128)]),
    joined=st.booleans(),
    pairs=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_targets_become_their_sources(
    dtype: torch.dtype, shape: tuple[int, ...], joined: bool, pairs: int, seed: int, kernel: Any
) -> None:
    generator = np.random.default_rng(seed)
    numbers = torch.from_numpy(generator.normal(0, 1, (2, 9, 2, *shape))).to(DEVICE, dtype)
    # Keys beside values in each block, or apart from them.
    caches = [
        half
        for layer in numbers
        for half in (layer.unbind(1) if joined else layer.flatten(0, 1).split(9))
    ]
    before = [cache.float().clone() for cache in caches]
    places = generator.permutation(9)
    sources, targets = places[:pairs].tolist(), places[4 : 4 + pairs].tolist()
    table = BlockCaches.of(caches)
    kernel(table, int32([*sources, -1, 3]), int32([*targets, 3, -1]))
    for cache, old in zip(caches, before, strict=True):
        old[targets] = old[sources]
        assert cache.float().tolist() == old.tolist()


@KERNELS
def test_arguments_are_checked(kernel: Any) -> None:
    whole = torch.zeros(4, 2, 8, device=DEVICE)
    with pytest.raises(ValueError, match="alike"):
        BlockCaches.of([whole, whole[:3]])
    with pytest.raises(ValueError, match="in one piece"):
        BlockCaches.of([whole.transpose(1, 2)])
    with pytest.raises(ValueError, match="words of 8 bytes"):
        BlockCaches.of([whole[:, :1, :3].contiguous()])
    with pytest.raises(ValueError, match="as many"):
        kernel(BlockCaches.of([whole]), int32([1]), int32([]))
