"""The attention backend of layers: selected by what they need and the machine can run.

Imports torch only to look at the machine and to make what was selected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyengine.errors import ConfigError
from pyengine.model.torch.attention.flashinfer.toolchain import comes_compiled, missing_tools
from pyengine.model.torch.attention.spec import AttentionSpec

if TYPE_CHECKING:
    import torch

    from pyengine.model.torch.attention.backend import AttentionBackend

FLOAT8 = "float8_e4m3fn"
FLASHINFER_VERSIONS = ((0, 7, 2), (0, 8))
"""The first version whose plans are made without a loop over rows in Python, and the first that the
calls here were not held against."""


@dataclass(frozen=True)
class Capabilities:
    """The backends and data types that a machine can run.

    Attributes:
        device: ``cuda`` or ``cpu``.
        compute_capability: The compute capability of the GPU.
        triton: Its version; None where it is not installed.
        flashinfer: The same of flashinfer-python.
        lacks: What there is not to have FlashInfer's kernels compiled with, as they are needed.
        faults: By backend, what is wrong with it here though it is installed: tried and failed.
        compiled: Whether FlashInfer's kernels come compiled.
    """

    device: str
    compute_capability: tuple[int, int] | None = None
    triton: str | None = None
    flashinfer: str | None = None
    lacks: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False


@dataclass(frozen=True)
class Selection:
    """A backend and why it is this one.

    Attributes:
        name: ``flashinfer``, ``triton`` or ``torch``.
        why: A line for the summary at the start.
    """

    name: str
    why: str


def detect(device: "torch.device") -> Capabilities:
    """The software and hardware of this machine for models on ``device``.

    On a GPU FlashInfer is imported, if it is installed: pip leaves it behind without what it needs.
    """
    import torch

    flashinfer = _version("flashinfer-python", "flashinfer")
    faults = {}
    if flashinfer is not None and device.type == "cuda" and (why := _not_imported("flashinfer")):
        faults["flashinfer"] = why
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return Capabilities(
        device=device.type,
        compute_capability=capability,
        triton=_version("triton"),
        flashinfer=flashinfer,
        lacks=missing_tools(),
        faults=faults,
        compiled=comes_compiled(),
    )


@cache
def _not_imported(module: str) -> str | None:
    """Why ``module`` cannot be imported; asked once, for to find out may take seconds."""
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever it is, there are other backends
        return f"it cannot be imported: {fault(error)}"
    return None


def fault(error: Exception) -> str:
    """``error`` in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _version(package: str, module: str | None = None) -> str | None:
    if find_spec(module or package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:  # built from source
        return "of unknown version"


def gpu_refusal(machine: Capabilities, least: tuple[int, int], why: str = "") -> str | None:
    """Why the GPU, if there is one, is none of compute capability ``least`` or later."""
    if machine.device != "cuda" or machine.compute_capability is None:
        return "it runs on NVIDIA GPUs"
    if machine.compute_capability < least:
        has, wanted = (".".join(map(str, each)) for each in (machine.compute_capability, least))
        return f"it needs compute capability {wanted}{why}, and this GPU has {has}"
    return None


def _heads(spec: AttentionSpec) -> str | None:
    if spec.num_kv_heads < 1 or spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} heads cannot share {spec.num_kv_heads} key and value heads"
    if spec.kv_dtype not in (spec.dtype, FLOAT8):
        return f"a cache of {spec.kv_dtype} does not go with a model of {spec.dtype}"
    return None


def _torch(spec: AttentionSpec, machine: Capabilities) -> str | None:
    return _heads(spec)


def _triton(spec: AttentionSpec, machine: Capabilities) -> str | None:
    if machine.triton is None:
        return "triton is not installed"
    if spec.head_dim > 512:
        return f"heads of {spec.head_dim} elements are too large for it: at most 512"
    fp8 = spec.kv_dtype == FLOAT8
    least, why = ((8, 9), " for a cache of float8") if fp8 else ((8, 0), "")
    return gpu_refusal(machine, least, why) or _heads(spec)


def flashinfer_refusal(machine: Capabilities) -> str | None:
    """Why nothing of FlashInfer can be used, whatever for; None where it can be tried."""
    if machine.flashinfer is None:
        return "flashinfer-python is not installed"
    numbers = machine.flashinfer.split("+")[0].split(".")[:3]
    known = all(number.isdigit() for number in numbers)
    first, end = FLASHINFER_VERSIONS
    if known and not first <= tuple(map(int, numbers)) < end:
        wanted, behind = (".".join(map(str, version)) for version in (first, end))
        return f"flashinfer-python {machine.flashinfer} is not one of >={wanted},<{behind}"
    if machine.lacks:
        return f"its kernels cannot be had: there is no {', no '.join(machine.lacks)}"
    return None


def _flashinfer(spec: AttentionSpec, machine: Capabilities) -> str | None:
    if why := flashinfer_refusal(machine):
        return why
    if spec.dtype not in ("bfloat16", "float16"):
        return f"it does not compute in {spec.dtype}"
    if spec.head_dim not in (64, 128, 256):
        return f"heads of {spec.head_dim} elements are not among its sizes: 64, 128, 256"
    if spec.sinks:
        return "attention sinks are not asked of it here"
    if spec.chunks:
        return "layers that attend in chunks are not asked of it here"
    return gpu_refusal(machine, (8, 0)) or _heads(spec)


_REFUSALS: dict[str, Callable[[AttentionSpec, Capabilities], str | None]] = {
    "flashinfer": _flashinfer,
    "triton": _triton,
    "torch": _torch,
}
NAMES = tuple(_REFUSALS)
"""All backends, the first that can be taken first."""


def refusal(name: str, spec: AttentionSpec, machine: Capabilities) -> str | None:
    """Why backend ``name`` cannot be used; None where it can."""
    return _REFUSALS[name](spec, machine) or machine.faults.get(name)


def select(spec: AttentionSpec, machine: Capabilities, asked: str = "auto") -> Selection:
    """The backend ``asked`` for, or the first that can do it.

    Raises:
        ConfigError: The one asked for cannot; says why, and which can.
    """
    if asked != "auto" and asked not in _REFUSALS:
        known = ", ".join(("auto", *NAMES))
        raise ConfigError(f"'attention' is one of {known}, not {asked!r}", param="attention")
    reasons = {name: refusal(name, spec, machine) for name in NAMES}
    able = [name for name in NAMES if reasons[name] is None]
    if asked != "auto":
        if reasons[asked] is not None:
            others = f"; there is {', '.join(able)}" if able else ""
            raise ConfigError(f"attention {asked!r}: {reasons[asked]}{others}", param="attention")
        return Selection(asked, f"{_named(asked, machine)}, as asked")
    if not able:
        raise ConfigError(f"no attention backend can: {reasons['torch']}", param="attention")
    selected = able[0]
    passed = [f"{name}: {reasons[name]}" for name in NAMES[: NAMES.index(selected)]]
    return Selection(
        selected, _named(selected, machine) + (f" ({'; '.join(passed)})" if passed else "")
    )


def _named(name: str, machine: Capabilities) -> str:
    versions = {"flashinfer": machine.flashinfer, "triton": machine.triton, "torch": None}
    return f"{name} {versions[name]}" if versions[name] else name


def make_backend(name: str, spec: AttentionSpec, device: "torch.device") -> "AttentionBackend":
    """Backend ``name`` with its memory on ``device``; it was selected, so it can."""
    if name == "flashinfer":
        from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention

        return FlashInferAttention(spec, device)
    if name == "triton":
        from pyengine.model.torch.attention.triton import TritonAttention

        return TritonAttention(spec, device)
    from pyengine.model.torch.attention.torch import TorchAttention

    return TorchAttention()
