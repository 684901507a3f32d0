"""NVIDIA's GPUs, by torch. Asks the driver where it can: importing torch takes seconds."""

import ctypes
from importlib.metadata import PackageNotFoundError, version

from pyengine.devices.spec import DeviceSpec
from pyengine.devices.torch_package import without_torch


def _missing() -> str | None:
    """Why torch cannot compute on a GPU of this machine."""
    if (why := without_torch("device", "cuda", "cuda")) is not None:
        return why
    if _has_gpu():
        return None
    return (
        "'device' is cuda, but torch sees no GPU here: it may be built without CUDA, or the driver"
        " is missing (nvidia-smi tells); 'cpu' and 'auto' run without one"
    )


def _has_gpu() -> bool:
    if not _driver_sees_gpu():
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _driver_sees_gpu() -> bool:
    """Whether NVIDIA's driver has a GPU for this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )


def _memory_bytes() -> int:
    """Memory of the first GPU that this process sees; 0 where torch can use none."""
    if not _torch_has_cuda() or not _driver_sees_gpu():
        return 0
    driver, device, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.c_size_t(0)
    if driver.cuDeviceGet(ctypes.byref(device), 0):
        return 0
    return 0 if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) else size.value


def _torch_has_cuda() -> bool:
    """Whether torch is installed, in a build that is not the CPU's own."""
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


CUDA = DeviceSpec(
    name="cuda",
    start="pyengine.model.torch.start.gpu:start_on_gpu",
    ranks="pyengine.distributed.start:CudaRanks",
    missing=_missing,
    memory_bytes=_memory_bytes,
    dtype="bfloat16",
    lacks=("threads",),
)
