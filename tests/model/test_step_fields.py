"""What is declared in Rust has one spelling in Python, and it is the same."""

import numpy as np
import torch

from pyengine._core import StepHeader, StepLayout
from pyengine.kernels.sampling import rules
from pyengine.model.batch import StepBuffers
from pyengine.model.step_fields import SAMPLING_ROW, StepFields, sampling_rows
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.sampling import SamplingParams, pack_sampling

LAYOUT = StepLayout(20, 5, 9, vocab_size=50)


def test_the_fields_of_a_step_are_those_of_the_layout() -> None:
    names = [name for name in StepFields.__annotations__ if not name.endswith("_tables")]
    assert names == list(LAYOUT.fields())
    assert all(LAYOUT.meanings()[name] for name in LAYOUT.fields())


def test_every_number_of_the_header_has_a_name() -> None:
    names = {name.lower(): getattr(StepHeader, name) for name in dir(StepHeader) if name.isupper()}
    step = StepBuffers(LAYOUT)
    for name, index in names.items():
        setattr(step, name, index + 1)
        assert step.header[index] == index + 1 == getattr(step, name), name
    assert len(set(names.values())) == len(names)


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
