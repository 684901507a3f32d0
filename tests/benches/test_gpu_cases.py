"""What the GPU bench asks of the kernels: every call that it makes on a GPU, interpreted here."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("on a GPU tests/gpu/test_bench.py runs them for real", allow_module_level=True)

from benches.gpu import tiny
from benches.gpu.attention_cases import attention_cases
from benches.gpu.cases import Case
from benches.gpu.expert_cases import expert_cases
from benches.gpu.floors import Shape
from benches.gpu.layer_cases import layer_cases
from benches.gpu.part import Bench
from benches.gpu.quantized_cases import quantized_cases
from benches.gpu.sampling_cases import sampling_cases
from pyengine.model.torch.attention.selection import Capabilities


class LikeGpu(Bench):
    """On the CPU, and taken for a GPU."""

    cuda = True


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    properties = SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    machine = Capabilities("cuda", (9, 0), triton="3.6.0")
    monkeypatch.setattr("benches.gpu.attention_cases.detect", lambda device: machine)
    with np.errstate(all="ignore"):
        yield LikeGpu(torch.device("cpu"), True, "none", time.monotonic() + 100)


def attention(bench: Bench, shape: Shape) -> Iterator[Case]:
    return attention_cases(bench, shape, ("triton", "torch"))


def experts(bench: Bench, shape: Shape) -> Iterator[Case]:
    return expert_cases(bench)


@pytest.mark.parametrize(
    "cases", [layer_cases, quantized_cases, experts, sampling_cases, attention]
)
def test_every_call_is_one_that_the_kernels_take(
    bench: Bench, cases: Callable[[Bench, Shape], Iterator[Case]]
) -> None:
    by = []
    for case in cases(bench, tiny.SHAPE):
        assert case.read + case.copied > 0
        for name, make in case.make.items():
            for work in make():
                work()
            by.append(name)
    assert "triton" in by
