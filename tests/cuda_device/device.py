"""A CUDA device that is not there: its library, built by g++, and what it has counted.

The library stands in for CUDA's runtime, driver and cuBLAS beneath the real torch and Triton; see
``library/device.h``. A process has it from its start, or not at all.
"""

import ctypes
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path

from pyengine._core import step_numbers
from tests.programs import REPOSITORY, environment

SOURCES = sorted((Path(__file__).parent / "library").glob("*"))
BUILT = REPOSITORY / "build" / "cuda_device"

PYTHON = os.environ.get("CUDA_DEVICE_PYTHON", sys.executable)
"""The interpreter that the device is for; ``make test-old-torch`` sets another."""


@cache
def packages() -> Path:
    """Where the interpreter's torch is, and NVIDIA's packages beside it."""
    program = "import importlib.util as u; print(u.find_spec('torch').origin)"
    origin = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    return Path(origin.stdout.strip()).parent.parent


@cache
def library() -> Path:
    """The library, built for that torch's headers; under its soname ``libcuda.so.1``, so that
    whoever asks for the driver finds it loaded.
    """
    headers = [packages() / "nvidia" / "cu13", packages() / "triton" / "backends" / "nvidia"]
    named = sha256(b"".join(path.read_bytes() for path in SOURCES) + str(headers).encode())
    made = BUILT / named.hexdigest()[:16] / "libcuda.so.1"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        draft = made.with_suffix(f".{os.getpid()}")
        includes = [f"-I{folder / 'include'}" for folder in headers]
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", *includes]
        sources = [str(path) for path in SOURCES if path.suffix == ".cpp"]
        command += [*sources, "-Wl,-soname,libcuda.so.1", "-ldl", "-o", str(draft)]
        subprocess.run(command, check=True)
        draft.rename(made)  # another process may build it too
    return made


@cache
def compiled() -> Path:
    """Where Triton keeps what it compiles of the kernels as they are, and of no others."""
    kernels = sorted((REPOSITORY / "pyengine" / "kernels").rglob("*.py"))
    named = sha256(b"".join(path.read_bytes() for path in kernels) + str(packages()).encode())
    return BUILT / f"triton-{named.hexdigest()[:16]}"


def on_the_device(**variables: str) -> dict[str, str]:
    """The environment of a process that sees the device, and compiles for it."""
    numbers = step_numbers()
    return environment(
        LD_PRELOAD=str(library()),
        TRITON_LIBCUDA_PATH=str(library().parent),
        TRITON_CACHE_DIR=str(compiled()),
        TRITON_INTERPRET="0",
        FAKE_CUDA_NUM_SAMPLED=str(numbers["num_sampled"]),
        FAKE_CUDA_NUM_FEEDS=str(numbers["num_feeds"]),
        **variables,
    )


def counted() -> Counter[str]:
    """What the device has counted in this process since :func:`forget`."""
    library = ctypes.CDLL(None)
    text = ctypes.create_string_buffer(library.fake_cuda_counters(None, 0) + 4096)
    library.fake_cuda_counters(text, ctypes.c_size_t(len(text)))
    lines = (line.split("\t") for line in text.value.decode().splitlines())
    return Counter({name: int(amount) for name, amount in lines})


def forget() -> None:
    """Count from now on."""
    ctypes.CDLL(None).fake_cuda_reset()


def memory_used() -> int:
    """Bytes of the device that are taken."""
    used = ctypes.CDLL(None).fake_cuda_memory_used
    used.restype = ctypes.c_size_t
    bytes_used: int = used()
    return bytes_used
