"""The kernels compile for a GPU, which takes none; and are defined where there is no Triton."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def run(*arguments: str, **variables: str) -> list[str]:
    """A Python program's lines."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(REPOSITORY), **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_kernels_compile(tmp_path: Path) -> None:
    lines = run("-m", "tests.kernels.compiling", TRITON_CACHE_DIR=str(tmp_path))
    # What has the bits of the CPU fuses nothing.
    bits = {line.split()[0] for line in lines if line.endswith(" True")}
    assert bits == {"sample_kernel", "peak_kernel", "finish_kernel", "verify_kernel", "edit"}
    # What is bound by memory takes 16 bytes at a time.
    wide = {line.split()[0] for line in lines if line.endswith(" 16 16")}
    assert wide == {
        "add_rms_norm",
        "head_rms_norm",
        "silu_mul",
        "rope_append",
        "copy_blocks",
        "gemv",
        "top_logprobs",
    }
    neither = [line for line in lines if not line.endswith((" True", " 16 16"))]
    assert neither == ["feed"]


WITHOUT_TRITON = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "triton" else find(name, *more)
import torch
from pathlib import Path
from pyengine import kernels

for path in Path(kernels.__file__).parent.glob("*.py"):
    importlib.import_module(f"pyengine.kernels.{path.stem}")
assert not any(name.startswith("triton.language") for name in sys.modules)
from pyengine.kernels.activation import silu_mul, silu_mul_reference

out = torch.zeros(1, 2)
silu_mul_reference(torch.ones(1, 4), out)
print(out.count_nonzero().item())
try:
    silu_mul(torch.ones(1, 4), out)
except RuntimeError as error:
    print(error)
"""


def test_without_triton_there_are_the_references() -> None:
    lines = run("-c", WITHOUT_TRITON)
    assert lines[0] == "2"
    assert lines[1].startswith("this kernel needs triton")
