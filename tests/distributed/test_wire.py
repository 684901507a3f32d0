import numpy as np
import pytest

from pyengine._core import StepLayout
from pyengine.distributed.wire import (
    PIECE_BYTES,
    Kind,
    kind_of,
    late,
    messages,
    planned,
    write,
)
from pyengine.model.batch import StepBuffers

LAYOUT = StepLayout(64, 8, 300, max_draft=3, vocab_size=1000)


def filled() -> StepBuffers:
    """Step buffers of noise, with a header that counts."""
    step = StepBuffers(LAYOUT)
    step.memory[:] = np.random.default_rng(3).integers(1, 255, len(step.memory), np.uint8)
    step.header[:] = 0
    step.num_rows, step.num_tokens, step.num_sampled = 4, 40, 3
    step.num_pages, step.num_feeds = 17, 1
    step.num_logits, step.num_masks = 9, 2
    return step


def sent(kind: Kind, step: StepBuffers, to: StepBuffers) -> list[Kind]:
    chosen = planned(LAYOUT, step) if kind == Kind.LAUNCH else late(LAYOUT, step)
    kinds = []
    for message in messages(kind, chosen, step.memory):
        write(bytes(message), to.memory)
        kinds.append(kind_of(bytes(message)))
    return kinds


def test_a_step_arrives_without_what_does_not_count() -> None:
    step, there = filled(), StepBuffers(LAYOUT)
    assert sent(Kind.LAUNCH, step, there) == [Kind.LAUNCH]
    names = list(LAYOUT.fields())
    before, behind = names[: names.index("page_indices")], names[names.index("page_indices") + 1 :]
    for name in before:
        assert np.array_equal(getattr(there, name), getattr(step, name)), name
    assert not any(getattr(there, name).view(np.uint8).any() for name in behind)
    assert np.array_equal(there.page_indices[:17], step.page_indices[:17])
    assert not there.page_indices[17:].any()


def test_the_tokens_of_rows_that_pool_arrive_with_the_step() -> None:
    step, there = filled(), StepBuffers(LAYOUT)
    step.num_pooled_rows, step.num_pooled_tokens = 2, 5
    assert sent(Kind.LAUNCH, step, there)[-1] == Kind.LAUNCH
    for name, count in {"pool_token": 5, "pool_start": 3}.items():
        field = getattr(there, name)
        assert np.array_equal(field[:count], getattr(step, name)[:count])
        assert not field[count:].any()


def test_the_tokens_of_prompts_arrive_with_the_step() -> None:
    step, there = filled(), StepBuffers(LAYOUT)
    step.num_prompt_logits = 4
    assert sent(Kind.LAUNCH, step, there)[-1] == Kind.LAUNCH
    for name in ("prompt_token", "prompt_target"):
        field = getattr(there, name)
        assert np.array_equal(field[:4], getattr(step, name)[:4])
        assert not field[4:].any()


def test_masks_and_penalties_come_later_with_the_number_of_penalties() -> None:
    step, there = filled(), StepBuffers(LAYOUT)
    step.num_penalties = 5
    assert set(sent(Kind.SAMPLE, step, there)) == {Kind.SAMPLE, Kind.MORE_TO_SAMPLE}
    assert there.num_penalties == 5
    for name, count in {
        "penalty_start": len(step.penalty_start),
        "penalty_token": 5,
        "penalty_factor": 5,
        "mask_row": 9,
        "mask": 2,
    }.items():
        field, wanted = getattr(there, name), getattr(step, name)
        assert np.array_equal(field[:count].view(np.uint32), wanted[:count].view(np.uint32)), name
        assert not field[count:].any()
    assert not there.token_ids.any()


def test_without_masks_and_penalties_the_word_comes_alone() -> None:
    step, there = filled(), StepBuffers(LAYOUT)
    step.num_masks = 0
    there.num_penalties = 1  # a bound, for the rank does not know better
    assert sent(Kind.SAMPLE, step, there) == [Kind.SAMPLE]
    assert there.num_penalties == 0
    assert not there.memory[128:].any()


@pytest.mark.parametrize("kind", [Kind.LAUNCH, Kind.SAMPLE])
def test_long_message_comes_in_pieces_and_the_last_says_go(kind: Kind) -> None:
    memory = np.random.default_rng(5).integers(0, 255, 3 * PIECE_BYTES + 7, np.uint8)
    there, ranges = (
        np.zeros_like(memory),
        [(5, 2 * PIECE_BYTES), (2 * PIECE_BYTES - 9, len(memory))],
    )
    kinds = []
    for message in messages(kind, ranges, memory):
        assert len(message) <= PIECE_BYTES + 16
        kinds.append(kind_of(bytes(message)))
        write(bytes(message), there)
    assert kinds == [kind - 1] * 3 + [kind]
    for start, end in ranges:
        assert np.array_equal(there[start:end], memory[start:end])
    assert not there[:5].any()
