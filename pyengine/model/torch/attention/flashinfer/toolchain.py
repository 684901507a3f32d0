"""What FlashInfer compiles its kernels with. Imports no torch."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which


def comes_compiled() -> bool:
    """Whether FlashInfer's kernels come compiled, with flashinfer-jit-cache."""
    return find_spec("flashinfer_jit_cache") is not None


def missing_tools() -> tuple[str, ...]:
    """What lacks to have kernels; nothing where they come compiled.

    FlashInfer runs ``ninja`` by its name, which runs nvcc of ``CUDA_HOME``, of ``PATH`` or of
    /usr/local/cuda, and the host's compiler ``CXX``, or else ``c++``.
    """
    if comes_compiled():
        return ()
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = os.environ.get("FLASHINFER_NVCC") or (f"{home}/bin/nvcc" if home else "nvcc")
    tools = {
        "nvcc": which(nvcc) or (not home and which("/usr/local/cuda/bin/nvcc")),
        "ninja": which("ninja") or which(str(_scripts() / "ninja")),
        "a C++ compiler": which(os.environ.get("CXX", "c++")),
    }
    return tuple(name for name, found in tools.items() if not found)


def find_ninja() -> None:
    """Let the ninja beside the interpreter be found by its name.

    An environment that is not activated has its programs in no folder of ``PATH``.
    """
    if which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.getenv("PATH"), str(_scripts()))))


def _scripts() -> Path:
    return Path(sys.executable).parent
