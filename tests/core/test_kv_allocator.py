"""The allocator through its Python face, held to a model made of dicts."""

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyengine._core import KvAllocator

if TYPE_CHECKING:
    from typing_extensions import Buffer


def u32(tokens: Sequence[int]) -> "array[int]":
    return array("I", tokens)


def test_a_request_and_the_next_with_the_same_prompt() -> None:
    kv = KvAllocator(num_blocks=8, block_size=2)
    assert (kv.num_blocks, kv.block_size, kv.counts()) == (8, 2, (8, 0, 0))
    prompt = u32([1, 2, 3, 4, 5])
    assert kv.match_prefix(prompt) == []
    blocks = kv.allocate(3)
    assert kv.insert(prompt, blocks) == 2
    assert kv.insert(prompt, blocks) == 0
    kv.release(blocks)
    assert kv.counts() == (6, 2, 0)
    assert kv.match_prefix(prompt, salt=1) == []
    assert kv.match_prefix(prompt) == blocks[:2]
    assert kv.reset_prefix_cache() == 0
    kv.fork(blocks[:1])
    kv.release(blocks[:2])
    assert kv.counts() == (6, 1, 1)
    kv.release(blocks[:1])
    assert kv.reset_prefix_cache() == 2
    assert kv.counts() == (8, 0, 0)
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
    blocks = kv.allocate(2)
    kv.insert(u32([7, 8, 9, 10]), blocks)
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
        kv.insert(u32([1, 2, 3, 4]), kv.allocate(1))
    with pytest.raises(OverflowError):
        kv.release([-1])
    with pytest.raises(ValueError, match="prompts of 3"):
        kv.time_requests(u32([1, 2, 3, 4]), 3)


def test_too_many_blocks_are_a_memory_error_and_none_is_held() -> None:
    kv = KvAllocator(4, 2)
    with pytest.raises(MemoryError, match="5 are needed, 4 are free or cached"):
        kv.allocate(5)
    with pytest.raises(MemoryError):
        kv.time_requests(u32(range(10)), 10)
    assert kv.counts() == (4, 0, 0)


def test_bugs_of_the_caller_are_runtime_errors_and_the_allocator_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kv = KvAllocator(4, 1)
    held = kv.allocate(2)
    kv.insert(u32([1, 2]), held)
    with pytest.raises(RuntimeError, match="release of KV block 3, which nobody holds"):
        kv.release([3])
    with pytest.raises(RuntimeError, match="fork of KV block 3, which nobody holds"):
        kv.fork([3])
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
    blocks = kv.allocate(2)
    assert kv.insert(u32([1, 2, 3, 4]), blocks) == 0
    assert kv.match_prefix(u32([1, 2, 3, 4])) == []
    kv.release(blocks)
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


TOTAL, BLOCK = 16, 2
TOKENS = st.lists(st.integers(0, 1), max_size=12)
WHICH = st.integers(0, 99)


class Allocator(RuleBasedStateMachine):
    """Sequences that come, grow, fork, roll back and end, beside what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvAllocator(TOTAL, BLOCK)
        self.sequences: list[tuple[int, list[int], list[int]]] = []
        self.known: dict[tuple[int, tuple[int, ...]], int] = {}
        self.cached: list[int] = []  # oldest first

    def holds(self, block: int) -> int:
        return sum(blocks.count(block) for _, _, blocks in self.sequences)

    def evict(self, block: int) -> None:
        salt, top = next(key for key, known in self.known.items() if known == block)
        for key, below in list(self.known.items()):
            if key[0] == salt and key[1][: len(top)] == top:
                del self.known[key]
                if below in self.cached:
                    self.cached.remove(below)

    def allocate(self, count: int) -> list[int] | None:
        held = len({block for _, _, blocks in self.sequences for block in blocks})
        if count > TOTAL - held:
            with pytest.raises(MemoryError):
                self.kv.allocate(count)
            return None
        fresh = self.kv.allocate(count)
        while TOTAL - held - len(self.cached) < count:
            self.evict(self.cached[0])
        assert len(set(fresh)) == count
        assert not any(self.holds(block) or block in self.cached for block in fresh)
        return fresh

    def remember(self, salt: int, tokens: list[int], blocks: list[int]) -> None:
        before = len(self.known)
        for index in range(len(tokens) // BLOCK):
            self.known.setdefault((salt, tuple(tokens[: (index + 1) * BLOCK])), blocks[index])
        assert self.kv.insert(u32(tokens), blocks, salt) == len(self.known) - before

    def release(self, blocks: list[int]) -> None:
        """``blocks`` are out of ``self.sequences`` already."""
        self.kv.release(blocks)
        for block in reversed(blocks):
            if not self.holds(block) and block in self.known.values():
                self.cached.append(block)

    @rule(salt=st.integers(0, 1), tokens=TOKENS, remember=st.booleans())
    def admit(self, salt: int, tokens: list[int], remember: bool) -> None:
        expected: list[int] = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            block = self.known.get((salt, tuple(tokens[:end])))
            if block is None:
                break
            expected.append(block)
        blocks = self.kv.match_prefix(u32(tokens), salt)
        assert blocks == expected
        self.cached = [block for block in self.cached if block not in blocks]
        self.sequences.append((salt, tokens, blocks))
        fresh = self.allocate(-(-len(tokens) // BLOCK) - len(blocks))
        if fresh is None:
            self.sequences.pop()
            self.release(blocks)
            return
        blocks += fresh
        if remember:
            self.remember(salt, tokens, blocks)

    @precondition(lambda self: self.sequences)
    @rule(which=WHICH, more=TOKENS)
    def extend(self, which: int, more: list[int]) -> None:
        index = which % len(self.sequences)
        salt, tokens, blocks = self.sequences[index]
        fresh = self.allocate(-(-(len(tokens) + len(more)) // BLOCK) - len(blocks))
        if fresh is not None:
            self.sequences[index] = (salt, tokens + more, blocks + fresh)
            self.remember(*self.sequences[index])

    @precondition(lambda self: self.sequences)
    @rule(which=WHICH)
    def fork(self, which: int) -> None:
        salt, tokens, blocks = self.sequences[which % len(self.sequences)]
        full = len(tokens) // BLOCK
        self.kv.fork(blocks[:full])
        self.sequences.append((salt, tokens[: full * BLOCK], blocks[:full]))

    @precondition(lambda self: self.sequences)
    @rule(which=WHICH, kept=st.integers(0, 6))
    def roll_back(self, which: int, kept: int) -> None:
        index = which % len(self.sequences)
        salt, tokens, blocks = self.sequences[index]
        self.sequences[index] = (salt, tokens[: kept * BLOCK], blocks[:kept])
        self.release(blocks[kept:])

    @precondition(lambda self: self.sequences)
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        _, _, blocks = self.sequences.pop(which % len(self.sequences))
        self.release(blocks)

    @rule(count=st.integers(0, TOTAL))
    def pressure(self, count: int) -> None:
        self.kv.release(self.allocate(count) or [])

    @rule()
    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == len(self.cached)
        while self.cached:
            self.evict(self.cached[0])

    @invariant()
    def agrees(self) -> None:
        self.kv.check()
        held = len({block for _, _, blocks in self.sequences for block in blocks})
        cached = len(self.cached)
        assert self.kv.counts() == (TOTAL - held - cached, cached, held)


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
