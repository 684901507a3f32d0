"""The allocator through its Python face; Rust's own tests hold it to a model."""

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pyengine._core import KvAllocator

if TYPE_CHECKING:
    from typing_extensions import Buffer


def u32(tokens: Sequence[int]) -> "array[int]":
    return array("I", tokens)


def known(kv: KvAllocator, prompt: "Buffer", length: int) -> list[int]:
    """The blocks of ``prompt``, held, once a request has brought it."""
    kv.time_requests(prompt, length)
    return kv.match_prefix(prompt)


def test_a_request_and_the_next_with_the_same_prompt() -> None:
    kv = KvAllocator(num_blocks=8, block_size=2)
    assert (kv.num_blocks, kv.block_size, kv.counts()) == (8, 2, (8, 0, 0))
    prompt = u32([1, 2, 3, 4, 5])
    assert kv.match_prefix(prompt) == []
    blocks = known(kv, prompt, 5)
    assert (len(blocks), kv.counts()) == (2, (6, 0, 2))
    assert kv.match_prefix(prompt, salt=1) == []
    assert kv.insert(prompt, blocks) == 0
    kv.release(blocks)
    assert kv.counts() == (6, 2, 0)
    kv.check()


@pytest.mark.parametrize(
    "tokens",
    [
        u32([7, 8, 9, 10]),
        np.array([7, 8, 9, 10], dtype=np.uint32),
        np.array([7, 0, 8, 0, 9, 0, 10, 0], dtype=np.uint32)[::2],
        b"".join(token.to_bytes(4, sys.byteorder) for token in (7, 8, 9, 10)),
        memoryview(u32([7, 8, 9, 10])),
    ],
    ids=["array", "numpy", "strided", "bytes", "memoryview"],
)
def test_tokens_come_in_any_u32_buffer(tokens: "Buffer") -> None:
    kv = KvAllocator(4, 2)
    blocks = known(kv, u32([7, 8, 9, 10]), 4)
    assert kv.match_prefix(tokens) == blocks
    assert kv.insert(tokens, blocks) == 0


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ([1, 2], TypeError),
        ("ab", TypeError),
        (np.array([1, 2], dtype=np.int32), TypeError),
        (np.array([1, 2], dtype=np.uint64), TypeError),
        (np.array([1.0, 2.0], dtype=np.float32), TypeError),
        (b"abc", ValueError),
    ],
)
def test_other_tokens_are_refused(tokens: Any, error: type[Exception]) -> None:
    kv = KvAllocator(4, 2)
    with pytest.raises(error):
        kv.match_prefix(tokens)
    with pytest.raises(error):
        kv.insert(tokens, [])


@pytest.mark.parametrize("tokens", [b"", array("I"), np.zeros(0, np.uint32), u32([1])])
def test_tokens_that_fill_no_block_are_no_prefix(tokens: "Buffer") -> None:
    kv = KvAllocator(4, 2)
    assert kv.match_prefix(tokens) == []
    assert kv.insert(tokens, []) == 0


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        KvAllocator(0)
    with pytest.raises(ValueError, match="num_blocks"):
        KvAllocator(1 << 32)
    with pytest.raises(ValueError, match="block_size"):
        KvAllocator(4, 0)
    kv = KvAllocator(4, 2)
    with pytest.raises(ValueError, match="4 tokens fill 2 blocks, but only 1"):
        kv.insert(u32([1, 2, 3, 4]), [0])
    with pytest.raises(OverflowError):
        kv.release([-1])
    with pytest.raises(ValueError, match="prompts of 3"):
        kv.time_requests(u32([1, 2, 3, 4]), 3)


def test_too_many_blocks_are_a_memory_error_and_none_is_held() -> None:
    kv = KvAllocator(4, 2)
    with pytest.raises(MemoryError, match="5 are needed, 4 are free or cached"):
        kv.time_requests(u32(range(10)), 10)
    assert kv.counts() == (4, 0, 0)


def test_bugs_of_the_caller_are_runtime_errors_and_the_allocator_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kv = KvAllocator(4, 1)
    held = known(kv, u32([1, 2]), 2)
    with pytest.raises(RuntimeError, match="release of KV block 3, which is not held"):
        kv.release([3])
    with pytest.raises(RuntimeError, match="KV block 4 does not exist"):
        kv.release([4])
    with pytest.raises(RuntimeError, match="in the tree already"):
        kv.insert(u32([8, 9]), held)
    kv.check()
    assert kv.counts() == (2, 0, 2)
    kv.release(held)
    assert kv.counts() == (2, 2, 0)
    capfd.readouterr()  # what Rust says about the panics


def test_without_a_prefix_cache_nothing_is_remembered() -> None:
    kv = KvAllocator(4, 2, prefix_cache=False)
    assert known(kv, u32([1, 2, 3, 4]), 4) == []
    assert kv.counts() == (4, 0, 0)


def test_time_requests_is_a_life_of_each_prompt() -> None:
    kv = KvAllocator(8, 2)
    timings = kv.time_requests(u32([1, 2, 3, 4, 5, 1, 2, 3, 9, 9]), 5)
    assert {name: len(column) for name, column in timings.items()} == {
        "match": 2,
        "allocate": 2,
        "insert": 2,
        "release": 2,
    }
    assert kv.counts() == (5, 3, 0)
    assert len(kv.match_prefix(u32([1, 2, 3, 9]))) == 2
