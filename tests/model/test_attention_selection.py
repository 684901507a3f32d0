"""Which attention backend a model gets, and why."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyengine.errors import ConfigError
from pyengine.model.torch.attention import selection, warm_up
from pyengine.model.torch.attention.flashinfer import toolchain
from pyengine.model.torch.attention.flashinfer.library import load_library
from pyengine.model.torch.attention.selection import (
    NAMES,
    Capabilities,
    _not_imported,
    detect,
    refusal,
    select,
)
from pyengine.model.torch.attention.torch import TorchAttention
from tests.model.paged_steps import spec_of

H200 = Capabilities("cuda", (9, 0), triton="3.6.0", flashinfer="0.7.2")
LLAMA = spec_of(num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", kv_dtype="bfloat16")


def test_the_best_that_the_machine_has_is_taken() -> None:
    assert select(LLAMA, H200).name == "flashinfer"
    assert select(LLAMA, H200).why == "flashinfer 0.7.2"
    without = select(LLAMA, replace(H200, flashinfer=None))
    assert without.name == "triton"
    assert without.why == "triton 3.6.0 (flashinfer: flashinfer-python is not installed)"
    bare = select(LLAMA, Capabilities("cuda", (9, 0)))
    assert bare.name == "torch"
    assert "triton is not installed" in bare.why
    assert select(LLAMA, Capabilities("cpu", None, "3.6.0", "0.7.2")).name == "torch"


@pytest.mark.parametrize(
    ("name", "spec", "machine", "why"),
    [
        ("flashinfer", {"dtype": "float32", "kv_dtype": "float32"}, {}, "float32"),
        ("flashinfer", {"head_dim": 80}, {}, "80"),
        ("flashinfer", {}, {"flashinfer": "0.6.14"}, "is not one of >=0.7.2,<0.8"),
        ("flashinfer", {}, {"flashinfer": "0.5.20+cu130"}, "is not one of >=0.7.2,<0.8"),
        ("flashinfer", {}, {"flashinfer": "0.8.0"}, "is not one of >=0.7.2,<0.8"),
        ("flashinfer", {}, {"lacks": ("nvcc", "ninja")}, "there is no nvcc, no ninja"),
        ("flashinfer", {}, {"faults": {"flashinfer": "it cannot be imported: No tvm"}}, "No tvm"),
        ("flashinfer", {}, {"compute_capability": (7, 5)}, "8.0, and this GPU has 7.5"),
        ("triton", {"head_dim": 768}, {}, "768"),
        ("flashinfer", {"head_dim": 512}, {}, "512"),
        ("flashinfer", {"chunks": True}, {}, "in chunks"),
        ("triton", {"kv_dtype": "float8_e4m3fn"}, {"compute_capability": (8, 6)}, "8.9 for"),
        ("triton", {}, {"compute_capability": (7, 0)}, "8.0"),
        ("triton", {}, {"device": "cpu", "compute_capability": None}, "NVIDIA"),
        ("triton", {"kv_dtype": "float16"}, {}, "a cache of float16"),
        ("torch", {"num_heads": 30}, {}, "30 heads"),
    ],
)
def test_impossible_backend_is_refused_with_the_reason(
    name: str, spec: dict[str, Any], machine: dict[str, Any], why: str
) -> None:
    wanted, has = replace(LLAMA, **spec), replace(H200, **machine)
    reason = refusal(name, wanted, has)
    assert reason is not None
    assert why in reason
    with pytest.raises(ConfigError, match="attention") as raised:
        select(wanted, has, asked=name)
    assert reason in str(raised.value)
    if name != "torch" and "cache" not in why:
        selected = select(wanted, has)  # auto goes on to another
        assert selected.name != name


def test_possible_backend_can_be_forced() -> None:
    for name in NAMES:
        assert refusal(name, LLAMA, H200) is None
        selected = select(LLAMA, H200, asked=name)
        assert selected.name == name
        assert selected.why.endswith("as asked")
    fp8 = replace(LLAMA, kv_dtype="float8_e4m3fn")
    assert all(refusal(name, fp8, H200) is None for name in NAMES)
    newer = replace(H200, flashinfer="0.7.10.post1")
    assert select(LLAMA, newer).name == "flashinfer"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, flashinfer, triton, torch, not 'flash'"):
        select(LLAMA, H200, asked="flash")


def test_selecting_imports_no_torch() -> None:
    program = (
        "import sys, pyengine.model.torch.attention.selection; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_backend_installed_without_its_needs_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _not_imported.cache_clear()
    (tmp_path / "flashinfer.py").write_text("import tvm_ffi_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    machine = detect(torch.device("cuda"))
    assert machine.flashinfer is not None
    reason = refusal("flashinfer", LLAMA, replace(machine, lacks=(), flashinfer="0.7.2"))
    assert reason is not None
    assert reason.endswith("No module named 'tvm_ffi_of_nobody'")
    assert detect(torch.device("cpu")).faults == {}  # it is not asked for there
    _not_imported.cache_clear()


def test_missing_compiler_is_a_fact_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "missing_tools", lambda: ("ninja", "a C++ compiler"))
    assert detect(torch.device("cpu")).lacks == ("ninja", "a C++ compiler")


def test_tools_are_looked_for_where_flashinfer_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that is not activated has its ninja beside the interpreter, on no path."""
    scripts, home = tmp_path / "venv", tmp_path / "cuda"
    for program in (scripts / "python", scripts / "ninja", home / "bin" / "nvcc", scripts / "cc1"):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    assert set(toolchain.missing_tools()) >= {"ninja", "a C++ compiler"}
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolchain.missing_tools() == ("nvcc", "a C++ compiler")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("CXX", str(scripts / "cc1"))
    assert toolchain.missing_tools() == ()
    assert which("ninja") is None
    wrappers = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
    installed = SimpleNamespace(**dict.fromkeys((*wrappers, "merge_state_in_place")))
    monkeypatch.setitem(sys.modules, "flashinfer", installed)
    load_library()  # before anything is planned, and so compiled
    assert which("ninja") == str(scripts / "ninja")
    monkeypatch.setenv("PATH", str(scripts))
    toolchain.find_ninja()
    assert os.environ["PATH"] == str(scripts)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: name == "flashinfer_jit_cache")
    assert toolchain.missing_tools() == ()  # its kernels come compiled


def test_backend_that_fails_to_get_ready_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def make(name: str, spec: Any, device: torch.device) -> Any:
        tried.append(name)
        if name != "torch":
            raise RuntimeError("Ninja build failed.\nand much more")
        return TorchAttention()

    monkeypatch.setattr(warm_up, "make_backend", make)
    cpu = torch.device("cpu")
    spec = replace(spec_of(), dtype="bfloat16", kv_dtype="bfloat16", head_dim=64)
    found = warm_up.ready(spec, cpu, H200)
    assert isinstance(found.backend, TorchAttention)
    assert tried == ["flashinfer", "triton", "torch"]
    assert "flashinfer: it does not work here: RuntimeError: Ninja build failed.;" in found.why
    # A second model, such as the one that drafts, does not try again.
    warm_up.ready(spec, cpu, found.machine)
    assert tried[3:] == ["torch"]
    with pytest.raises(ConfigError, match="does not work here") as raised:
        warm_up.ready(spec, cpu, H200, "flashinfer")
    assert raised.value.param == "attention"
