"""The kernels compile for a GPU, which takes none, and keep every rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pyengine.kernels import sampling, verify

FLOATS = {"logits_ptr", "temperature_ptr", "top_p_ptr", "min_p_ptr"}
LONGS = {"header_ptr", "seed_ptr", "position_ptr"}

def compile(kernel, **constants):
    types = {}
    for name in kernel.arg_names:
        pointer = "*fp32" if name in FLOATS else "*i64" if name in LONGS else "*i32"
        number = pointer if name.endswith("_ptr") else "i32"
        types[name] = "constexpr" if name in constants else number
    compiled = triton.compile(
        ASTSource(kernel, types, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"enable_fp_fusion": False},
    )
    code = compiled.asm["ptx"]
    print(kernel.__name__, "fma.rn.f32" in code, ".ftz" in code, "div.full" in code)

compile(sampling.sample_kernel, BLOCK=sampling.BLOCK, WAYS=sampling.WAYS)
compile(verify.verify_kernel, ROWS=verify.ROWS)
"""


@pytest.mark.timeout(300)
def test_kernels_compile_and_fuse_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "sample_kernel False False False",
        "verify_kernel False False False",
    ]
