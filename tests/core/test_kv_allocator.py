"""The allocator through its Python face; Rust's own tests hold it to a model."""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pyengine._core import KvAllocator, match_prefix, time_requests

if TYPE_CHECKING:
    from typing_extensions import Buffer


def u32(tokens: Sequence[int]) -> "array[int]":
    return array("I", tokens)


def known(kv: KvAllocator, prompt: "Buffer", length: int) -> list[int]:
    """The blocks of ``prompt``, held, once a request has brought it."""
    time_requests(kv, prompt, length)
    return match_prefix(kv, prompt)


def test_prefix_of_a_known_prompt_is_held() -> None:
    kv = KvAllocator(num_blocks=8, block_size=2)
    assert (kv.num_blocks, kv.block_size, kv.counts()) == (8, 2, (8, 0, 0))
    prompt = u32([1, 2, 3, 4, 5])
    assert match_prefix(kv, prompt) == []
    blocks = known(kv, prompt, 5)
    assert (len(blocks), kv.counts()) == (2, (6, 0, 2))
    kv.check()


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        KvAllocator(0)
    with pytest.raises(ValueError, match="num_blocks"):
        KvAllocator(1 << 32)
    with pytest.raises(ValueError, match="block_size"):
        KvAllocator(4, 0)
    kv = KvAllocator(4, 2)
    with pytest.raises(ValueError, match="prompts of 3"):
        time_requests(kv, u32([1, 2, 3, 4]), 3)


def test_groups_are_taken_by_kind() -> None:
    groups = [("full", 1, 0), ("window", 2, 8), ("state", 0, 3)]
    assert KvAllocator(12, 2, True, groups).counts() == (12, 0, 0)
    assert KvAllocator(12, 2, True, [("latent", 1, 0)]).counts() == (12, 0, 0)
    with pytest.raises(ValueError, match='no cache group of kind "rolling"'):
        KvAllocator(12, 2, True, [("rolling", 1, 0)])
    with pytest.raises(ValueError, match="one group of states at most, of pages and without"):
        KvAllocator(12, 2, True, [("full", 1, 0), ("state", 1, 3)])


def test_too_many_blocks_are_a_memory_error_and_none_is_held() -> None:
    kv = KvAllocator(4, 2)
    with pytest.raises(MemoryError, match="5 are needed, 4 are free or cached"):
        time_requests(kv, u32(range(10)), 10)
    assert kv.counts() == (4, 0, 0)


def test_without_a_prefix_cache_nothing_is_remembered() -> None:
    kv = KvAllocator(4, 2, prefix_cache=False)
    assert known(kv, u32([1, 2, 3, 4]), 4) == []
    assert kv.counts() == (4, 0, 0)


def test_time_requests_is_a_life_of_each_prompt() -> None:
    kv = KvAllocator(8, 2)
    timings = time_requests(kv, u32([1, 2, 3, 4, 5, 1, 2, 3, 9, 9]), 5)
    assert {name: len(column) for name, column in timings.items()} == {
        "match": 2,
        "allocate": 2,
        "insert": 2,
        "release": 2,
    }
    assert kv.counts() == (5, 3, 0)
    assert len(match_prefix(kv, u32([1, 2, 3, 9]))) == 2
