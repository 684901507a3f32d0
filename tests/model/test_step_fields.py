"""Python names the numbers and fields of a step as Rust declares them."""

import numpy as np
import torch

from pyengine._core import StepLayout, step_numbers
from pyengine.kernels.sampling import rules
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import SAMPLING_ROW, sampling_rows
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.sampling import SamplingParams, pack_sampling
from tools import step_names

LAYOUT = StepLayout(20, 5, 9, vocab_size=50)


def test_file_of_names_is_written_from_the_declaration() -> None:
    assert step_names.FILE.read_text() == step_names.text()


def test_number_of_the_header_is_an_attribute_of_its_buffers() -> None:
    step = StepBuffers(LAYOUT)
    for name, index in step_numbers().items():
        setattr(step, name, index + 1)
        assert step.header[index] == index + 1 == getattr(step, name), name
    assert list(step_numbers().values()) == list(range(len(step.header)))


def test_a_row_is_packed_by_the_names_of_its_rules() -> None:
    asked = SamplingParams(temperature=0.5, top_k=7, repetition_penalty=1.5, frequency_penalty=-1)
    row = np.frombuffer(pack_sampling(asked, 2**64 - 1), SAMPLING_ROW)[0]
    assert row["seed"] == 2**64 - 1
    for name in set(SAMPLING_ROW.names or ()) - {"seed"}:
        assert row[name] == np.float32(getattr(asked, name)), name


def test_every_side_sees_the_rules_of_the_same_row() -> None:
    step = StepBuffers(LAYOUT)
    step.sampling[:] = sampling_rows(5, seed=[2**63 + i for i in range(5)], top_p=0.25, top_k=3)
    device = DeviceStep(LAYOUT, torch.device("cpu"), step)
    for name in SAMPLING_ROW.names or ():
        ours, theirs = step.sampling[name], rules.rule(device.sampling, name).numpy()
        assert ours.view(theirs.dtype).tolist() == theirs.tolist(), name
