"""The kernel that measures reading: it compiles for a GPU, and reads everything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from benches.gpu.reading import BLOCK, LOOPS, read
from tests.programs import REPOSITORY

COMPILES = """
import torch
from benches.gpu.reading import BLOCK, LOOPS, read
from tests.kernels.machine_code import compile_launch, launches

x, out = (torch.empty(count, device="meta") for count in (64 * BLOCK * LOOPS, 64))
(launch,) = launches(lambda: read(x, out))
print(compile_launch(launch).widest("ld"))
"""


def test_every_element_is_read_once() -> None:
    x = torch.arange(2 * BLOCK * LOOPS + 5, dtype=torch.float32).remainder_(97)
    out = torch.full((3,), -1.0)
    read(x, out)
    first, second = x[: 2 * BLOCK * LOOPS].view(2, -1).sum(1).tolist()
    assert out.tolist() == [first, second, -1.0]


@pytest.mark.slow
def test_kernel_reads_16_bytes_at_a_time(tmp_path: Path) -> None:
    more = {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16"]
