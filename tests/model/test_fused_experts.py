"""FlashInfer's fused experts: the calls that they get, when they are taken, and when not."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyengine.errors import ConfigError
from pyengine.model.architectures.parts import SILU, Activation
from pyengine.model.torch.attention.selection import Capabilities
from pyengine.model.torch.layers import fused_selection
from pyengine.model.torch.layers.fused_experts import FusedLibrary
from pyengine.model.torch.layers.fused_selection import FusedMixtures, Mixture, refusal
from pyengine.model.weights.matrix import Dense, Matrix
from tests.distributed.test_parallel_model import logits
from tests.distributed.thread_ranks import together
from tests.model.fake_fused_moe import FusedMoe
from tests.model.families import make_family
from tests.model.llamas import Loop, greedy, prompts
from tests.model.torch_steps import GreedyRunner

CPU = torch.device("cpu")
H200 = Capabilities("cuda", (9, 0), triton="3.9.0", flashinfer="0.7.2", compiled=True)
QWEN = Mixture(2048, 768, SILU, False, False, False, torch.bfloat16)
EVERY_ACTIVATION = ("mixtral", "gpt-oss", "gemma 4, keys as values, experts")


def mixtures(fake: FusedMoe | None = None, machine: Capabilities = H200) -> FusedMixtures:
    return FusedMixtures(machine, CPU, (fake or FusedMoe()).library)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where the order of sums turns no token."""
    monkeypatch.setattr(fused_selection, "DTYPES", (torch.float32,))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", EVERY_ACTIVATION)
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make_family(tmp_path, name)
    asked = prompts(3)
    expected = [greedy(model, prompt, 12) for prompt in asked]
    fake = FusedMoe()
    fused = mixtures(fake)
    runner = GreedyRunner(tmp_path, fused=fused)
    assert fused.why == "flashinfer 0.7.2, fused"
    tried = len(fake.rows)
    assert Loop(runner, chunk=16).generate(asked, 12) == expected
    assert len(fake.rows) > tried
    # All layers work in the same memory.
    assert {rows: len(places) for rows, places in fake.workspaces.items()} == {3: 1, 512: 1}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
@pytest.mark.parametrize("divided", [True, False], ids=["experts divided", "experts shared"])
def test_two_ranks_have_the_logits_of_one(name: str, divided: bool, tmp_path: Path) -> None:
    make_family(tmp_path, name, **{} if divided else {"intermediate_size": 96})
    alone = logits(tmp_path, None)
    fakes = FusedMoe(), FusedMoe()
    first, second = together(
        2,
        lambda group: logits(
            tmp_path, group, expert_parallel=divided, fused=mixtures(fakes[group.rank])
        ),
    )
    assert first.equal(second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()
    tried = {(1, 2)} if divided else {(0, 1)}
    own = [{(rank, 2)} if divided else {(0, 1)} for rank in range(2)]
    assert [fake.ranks for fake in fakes] == [tried | each for each in own]


def test_ups_come_first_whatever_the_parts() -> None:
    rows = np.arange(12, dtype=np.float32)[:, None]
    parts = (Dense(rows[:2]), Dense(rows[2:9]), Dense(rows[9:]))
    rotated = Matrix(parts).rotated(6).dequantized(np.dtype(np.float32))
    assert rotated[:, 0].tolist() == [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]


def test_bfloat16_on_hopper_is_fused() -> None:
    assert refusal(QWEN, H200) is None
    assert (
        refusal(replace(QWEN, biased=True, activation=Activation("clamped_swiglu", 7.0)), H200)
        is None
    )


@pytest.mark.parametrize(
    ("mixture", "machine", "why"),
    [
        ({"dtype": torch.float16}, {}, "not asked for float16"),
        ({"activation": Activation("relu2")}, {}, "no activation 'relu2'"),
        ({"weighs_inputs": True}, {}, "what comes out of an expert"),
        ({"inner": 36}, {}, "2048 by 36 numbers are not multiples of 8"),
        ({}, {"compute_capability": (8, 9)}, "9.0, and this GPU has 8.9"),
        ({}, {"device": "cpu"}, "NVIDIA"),
        ({}, {"flashinfer": None}, "not installed"),
        ({}, {"flashinfer": "0.8.0"}, "is not one of >=0.7.2,<0.8"),
        ({}, {"lacks": ("nvcc",)}, "there is no nvcc"),
        ({}, {"compiled": False}, "flashinfer-jit-cache has them compiled"),
        ({}, {"faults": {"flashinfer": "it cannot be imported: No tvm"}}, "No tvm"),
    ],
)
def test_what_is_not_fused(mixture: dict[str, Any], machine: dict[str, Any], why: str) -> None:
    assert why in (refusal(replace(QWEN, **mixture), replace(H200, **machine)) or "taken")


def fails(**given: Any) -> None:
    raise RuntimeError("ninja: build stopped\nat line 3")


def out_of_memory(**given: Any) -> None:
    raise torch.OutOfMemoryError("no room")


def swaps(**given: Any) -> None:
    """The kernels of a version whose gates come first."""
    weight = given["fc1_expert_weights"]
    given["fc1_expert_weights"] = weight.roll(weight.shape[1] // 2, 1)
    FusedMoe().cutlass_fused_moe(**given)


def writes_nothing(**given: Any) -> None:
    """Leaves what was there."""


def with_call(call: Callable[..., None]) -> FusedMixtures:
    return FusedMixtures(H200, CPU, lambda: replace(FusedMoe().library(), fused_moe=call))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (fails, "they do not work here: RuntimeError: ninja: build stopped"),
        (swaps, "they differ from the grouped products by "),
        (writes_nothing, "they differ from the grouped products by nan of the results"),
    ],
)
def test_what_does_not_work_is_left_with_a_reason(
    call: Callable[..., None], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_family(tmp_path, "mixtral")
    asked = prompts(2)
    expected = Loop(GreedyRunner(tmp_path, dtype="bfloat16")).generate(asked, 6)
    fused = with_call(call)
    with caplog.at_level(logging.WARNING):
        runner = GreedyRunner(tmp_path, dtype="bfloat16", fused=fused)
    assert (fused.why or "").startswith(f"grouped products (fused: {why}")
    assert len([each for each in caplog.records if "fused experts" in each.getMessage()]) == 1
    assert Loop(runner).generate(asked, 6) == expected


def test_what_is_not_taken_is_not_loaded(tmp_path: Path) -> None:
    def load() -> FusedLibrary:
        raise AssertionError

    make_family(tmp_path, "llama 4")
    fused = FusedMixtures(H200, CPU, load)
    GreedyRunner(tmp_path, dtype="bfloat16", fused=fused)
    assert (fused.why or "").startswith("grouped products (fused: they weigh what comes out")


def test_a_device_that_dies_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(device: torch.device) -> None:
        raise RuntimeError("illegal address")

    make_family(tmp_path, "mixtral")
    monkeypatch.setattr(fused_selection, "probe", dead)
    with pytest.raises(ConfigError, match="uninstall flashinfer-python"):
        GreedyRunner(tmp_path, dtype="bfloat16", fused=with_call(fails))


def test_memory_that_is_out_is_no_fault_of_theirs(tmp_path: Path) -> None:
    make_family(tmp_path, "mixtral")
    with pytest.raises(torch.OutOfMemoryError):
        GreedyRunner(tmp_path, dtype="bfloat16", fused=with_call(out_of_memory))


def all_calls(folder: Path) -> set[tuple[str, tuple[str, ...]]]:
    """The names of all calls and arguments: with biases, and without."""
    fake = FusedMoe()
    for name in ("mixtral", "gpt-oss"):
        make_family(folder / name, name)
        GreedyRunner(folder / name, dtype="bfloat16", fused=mixtures(fake))
    return fake.bound


def test_calls_are_of_names_that_the_fake_notes(tmp_path: Path) -> None:
    """The test on a GPU binds these to the installed library."""
    names = {name for name, _ in all_calls(tmp_path)}
    assert names == {"cutlass_fused_moe", "cutlass_fused_moe_workspace_size"}
