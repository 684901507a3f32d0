"""What FlashInfer compiles or fetches at a start is all that steps ask for afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyengine.model.torch.attention.flashinfer import workspace
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.torch.start.warm_up import capture_graphs, compute, rehearse, warm_up
from pyengine.settings.config import EngineConfig
from tests.model.fake_flashinfer import Device
from tests.model.families import FAMILIES
from tests.models import random_model
from tests.torch_devices import RecordingCapturer

CPU = torch.device("cpu")
LONGEST = 512


class PromptDevice(Device):
    """Does all work at once."""

    def add(self, work: Callable[[], object]) -> None:
        work()


def serve(runner: TorchRunner) -> None:
    """Steps of all kinds, in graphs where there are some."""
    random = np.random.default_rng(0)
    for rows in (1, 2, 5, 8):
        compute(runner, [1] * rows)
        for most in (4, 60, 400 // rows):
            compute(runner, random.integers(1, most + 1, rows).tolist())
            rehearse(runner, "ragged", rows, rows * most, LONGEST)


@pytest.mark.parametrize(("family", "hopper"), [("mistral", False), ("gemma 2", True)])
def test_no_step_asks_for_a_module_that_the_start_did_not_ask_for(
    family: str, hopper: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "RECOMMENDED_BYTES", 4096)
    device = PromptDevice(hopper=hopper)
    kind, own = FAMILIES[family]
    random_model(tmp_path, kind, **own)

    def attention(spec: AttentionSpec) -> FlashInferAttention:
        return FlashInferAttention(spec, CPU, device.library())

    def start(**more: Any) -> TorchRunner:
        config = EngineConfig(
            model=str(tmp_path), max_sequences=8, max_tokens_per_step=LONGEST, num_blocks=512,
            max_context=LONGEST, speculation=(), dtype="bfloat16",
        )  # fmt: skip
        return start_on_cpu(config, attention=attention, **more)

    warm_up(start(), LONGEST)
    started = set(device.modules)
    assert ("prefill", "fa3") in {module[:2] for module in started} or not hopper
    device.modules.clear()
    runner = start(capturer=RecordingCapturer())
    capture_graphs(runner)
    assert runner.graphs is not None
    with runner.graphs.at_once():
        serve(runner)
    serve(start())
    assert device.modules == started
