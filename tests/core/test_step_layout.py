"""A step padded through Python; what it may hold is tested in scheduler/step/padding.rs."""

import numpy as np
import pytest

from pyengine._core import NO_SLOT, StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.start.warm_up import write_step


@pytest.fixture
def layout() -> StepLayout:
    return StepLayout(32, 8, 40, max_draft=1, vocab_size=50)


def test_decoding_rows_get_rows_of_one_token(layout: StepLayout) -> None:
    step = StepBuffers(layout)
    write_step(step, [1, 1, 1], 16, 3)
    layout.pad(step.memory, 8, 8, 4)
    assert step.query_start[:9].tolist() == list(range(9))
    assert step.kv_length[:8].tolist() == [1] * 8
    assert step.page_indptr[:9].tolist() == list(range(9))
    assert step.slot_mapping[:8].tolist() == [0, 0, 0, -1, -1, -1, -1, -1]
    assert step.mask_row[:4].tolist() == [-1] * 4
    assert (step.num_rows, step.num_tokens, step.num_logits) == (3, 3, 3)


def test_padding_rows_get_tokens_of_no_sequence(layout: StepLayout) -> None:
    step = StepBuffers(layout)
    write_step(step, [4, 2], 16, 6)
    layout.pad(step.memory, 8, 8, 6)
    assert step.query_start[:9].tolist() == [0, 4, 6, 6, 6, 6, 6, 6, 6]
    assert step.kv_length[:8].tolist() == [4, 2, 0, 0, 0, 0, 0, 0]
    assert step.page_indptr[:9].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 2]
    assert step.slot_mapping[6:8].tolist() == [-1, -1]


def test_padding_rows_have_no_state() -> None:
    layout = StepLayout(32, 8, 40, vocab_size=50, states=True)
    step = StepBuffers(layout)
    write_step(step, [1, 1, 1], 16, 3)
    step.state_slot[:], step.snapshot_slot[:] = 5, 6
    layout.pad(step.memory, 8, 8, 3)
    assert step.state_slot.tolist() == [5, 5, 5] + 5 * [NO_SLOT]
    assert step.snapshot_slot.tolist() == [6, 6, 6] + 5 * [NO_SLOT]
    assert step.state_source[3:].tolist() == 5 * [NO_SLOT]
    assert step.state_drafts[3:].tolist() == step.state_accepted[3:].tolist() == 5 * [0]


def test_buffers_of_another_layout_are_refused(layout: StepLayout) -> None:
    step = StepBuffers(layout)
    write_step(step, [1, 1, 1], 16, 3)
    before = step.memory.copy()
    for rows, tokens, logits in ((2, 3, 3), (9, 9, 3), (3, 33, 3), (3, 3, 99)):
        with pytest.raises(ValueError, match="cannot be padded"):
            layout.pad(step.memory, rows, tokens, logits)
    with pytest.raises(ValueError, match="bytes"):
        layout.pad(np.zeros(64, np.uint8), 3, 3, 3)
    assert (step.memory == before).all()
