"""The kernels compile for a GPU, which takes none, into code of the kind that they are meant to be;
and are defined where there is no Triton.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import REPOSITORY

pytestmark = pytest.mark.slow


# Kernels of the sampler that few steps have, between the libraries' or the copies.
ALONE = {
    "penalty_kernel", "feed_kernel", "hand_over_kernel", "take_tokens_kernel",
    "top_logprobs_kernel",
}  # fmt: skip


def run(*arguments: str, **variables: str) -> list[str]:
    """A Python program's lines."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(REPOSITORY), **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def figures(part: str, tmp_path: Path, *capability: str) -> list[dict[str, Any]]:
    """Of each launch that the engine makes in a part, what came of it."""
    program = "-m", "tests.kernels.compiling", part, *capability
    lines = run(*program, TRITON_CACHE_DIR=str(tmp_path))
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for one in found:
        # What a multiprocessor of an H200 gives a program at most.
        assert one["shared"] <= 227 * 1024, one
        assert one["registers"] * one["warps"] * 32 <= 65_536, one
    return found


@pytest.mark.timeout(300)
def test_layers_are_limited_by_memory(tmp_path: Path) -> None:
    """They take 16 bytes at a time, and nothing that they keep goes to memory."""
    found = figures("layers", tmp_path)
    kernels = {one["kernel"].removesuffix("_kernel") for one in found}
    assert kernels == {
        "add_rms_norm", "head_rms_norm", "gated", "rope_append", "quantize_rows",
    }  # fmt: skip
    for one in found:
        assert one["stack"] == 0, one
        assert one["ahead"], one
        assert one["chained"], one
        if one["kind"].split()[-1:] in (["32"], ["192"]):
            continue  # of the demo, rows shorter than a program
        assert one["load"] == 16, one
        assert one["store"] == 16, one


@pytest.mark.timeout(300)
def test_products_with_quantized_weights_are_of_tensor_cores(tmp_path: Path) -> None:
    found = figures("quantized", tmp_path)
    kernels = {one["kernel"].removesuffix("_kernel") for one in found}
    assert kernels == {"quantize_groups", "block_product", "packed_product"}
    for one in found:
        assert one["stack"] == 0, one
        assert one["ahead"], one
        assert one["chained"], one
        assert one["store"] == 16, one
        if one["kernel"] == "quantize_groups_kernel":
            assert one["load"] == 16, one
            continue
        # Weights are copied 16 bytes at a time while others are multiplied.
        assert one["copied"] == 16, one
        assert one["product"] == ("wgmma" if one["tile"] >= 64 else "mma"), one


@pytest.mark.timeout(300)
def test_rows_of_quantized_tables_round_as_dense_ones(tmp_path: Path) -> None:
    found = figures("tables", tmp_path)
    assert [one["kernel"] for one in found] == ["packed_rows_kernel"] * 12
    for one in found:
        assert one["stack"] == 0, one
        assert one["exact"], one
        assert one["ahead"], one
        assert one["chained"], one
        assert one["store"] >= 8, one


@pytest.mark.timeout(300)
def test_products_with_quantized_weights_fit_gpus_of_less_shared_memory(tmp_path: Path) -> None:
    """Of compute capability 8.6 and 8.9, where a program has 99 KiB."""
    found = figures("quantized", tmp_path, "89")
    assert sum(one["kernel"] == "packed_product_kernel" for one in found) == 36
    for one in found:
        assert one["shared"] <= 99 * 1024, one
        assert one["stack"] <= 16, one
        assert not one["ahead"], one


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", ["90", "89"])
def test_experts_are_products_of_tensor_cores(capability: str, tmp_path: Path) -> None:
    found = figures("experts", tmp_path, capability)
    assert {one["kernel"] for one in found} == {"route_kernel", "grouped_kernel"}
    hopper = capability == "90"
    for one in found:
        assert one["stack"] == 0, one
        assert one["ahead"] == one["chained"] == hopper, one
        if one["kernel"] != "grouped_kernel":
            continue
        # Weights are copied 16 bytes at a time while others are multiplied.
        assert one["copied"] == one["store"] == 16, one
        assert one["shared"] <= (227 if hopper else 99) * 1024, one
        if "float32" not in one["kind"]:
            assert one["product"] == ("wgmma" if hopper and one["tile"] >= 64 else "mma"), one


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", ["90", "89"])
def test_quantized_experts_are_products_of_tensor_cores(capability: str, tmp_path: Path) -> None:
    """On GPUs of less shared memory (99 KiB) too, where a few registers may be put aside."""
    found = figures("packed experts", tmp_path, capability)
    kernels = [one["kernel"] for one in found]
    assert kernels == ["grouped_packed_kernel"] * 10 + ["grouped_block_kernel"] * 4
    hopper = capability == "90"
    for one in found:
        assert one["ahead"] == one["chained"] == hopper, one
        # Weights are copied 16 bytes at a time while others are multiplied.
        assert one["copied"] == one["store"] == 16, one
        assert one["product"] == ("wgmma" if hopper and one["tile"] >= 64 else "mma"), one
        assert one["shared"] <= (227 if hopper else 99) * 1024, one
        assert one["stack"] <= (0 if hopper else 32), one


@pytest.mark.timeout(300)
def test_sampling_rounds_as_the_cpu(tmp_path: Path) -> None:
    """What has the bits of the CPU fuses nothing; and nothing is kept in memory."""
    found = figures("sampler", tmp_path)
    exact = {one["kernel"].removesuffix("_kernel") for one in found if one["exact"]}
    sampling = {"peak", "shape", "spread", "gather", "cut", "trim", "sample", "finish"}
    drafts = {"verify", "feed", "hand_over", "take_tokens"}
    assert exact == sampling | drafts | {"greedy", "penalty"}
    assert {one["kernel"] for one in found if not one["exact"]} == {"top_logprobs_kernel"}
    for one in found:
        assert one["stack"] == 0, one
        # What is launched ahead waits, and what waits is launched ahead.
        assert one["ahead"] == one["chained"] == (one["kernel"] not in ALONE), one
        if one["kernel"] in ("greedy_kernel", "peak_kernel", "spread_kernel", "gather_kernel"):
            assert one["load"] == 16, one
        if one["kernel"] == "spread_kernel":
            # Twelve warps or more of a multiprocessor are at work while others wait for memory.
            assert one["registers"] <= 160, one
            assert one["shared"] <= 24 * 1024, one


@pytest.mark.timeout(300)
def test_attention_is_of_the_kind_that_it_is_meant_to_be(tmp_path: Path) -> None:
    for one in figures("attention", tmp_path):
        assert one["ahead"], one
        assert one["chained"], one
        if one["kernel"] == "merge_kernel":
            assert one["stack"] == 0, one
            continue
        # Tiles go to the tensor cores: as warps' products, or a whole group of warps'.
        assert one["product"] == ("wgmma" if one["tile"] >= 64 else "mma"), one
        # Keys and values are copied 16 bytes at a time while others are worked on.
        assert one["copied"] == 16, one
        # A few registers of a thread's may be put aside: sixteen at most.
        assert one["stack"] <= 64, one


@pytest.mark.timeout(600)
def test_no_step_asks_for_a_kernel_that_the_start_did_not_compile() -> None:
    """Nor does the start compile what no step asks for."""
    found = [json.loads(line) for line in run("-m", "tests.kernels.reaching") if line[:1] == "{"]
    assert [each["model"] for each in found] == [
        *("plain", "windows", "chunks", "heads by kind"),
        *("experts", "experts in int4", "experts in float8", "float8 in blocks", "int4"),
    ]
    for each in found:
        assert each["started"] > 20
        assert each["missing"] == each["unneeded"] == []


WITHOUT_TRITON = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "triton" else find(name, *more)
import torch
from pathlib import Path
from pyengine import kernels

for path in Path(kernels.__file__).parent.rglob("*.py"):
    module = path.relative_to(Path(kernels.__file__).parent).with_suffix("")
    importlib.import_module(".".join(["pyengine.kernels", *module.parts]))
assert not any(name.startswith("triton.language") for name in sys.modules)
from pyengine.kernels.layers.activation import gated, gated_reference

out = torch.zeros(1, 2)
gated_reference(torch.ones(1, 4), out)
print(out.count_nonzero().item())
try:
    gated(torch.ones(1, 4), out)
except RuntimeError as error:
    print(error)
"""


def test_without_triton_there_are_the_references() -> None:
    lines = run("-c", WITHOUT_TRITON)
    assert lines[0] == "2"
    assert lines[1].startswith("this kernel needs triton")
