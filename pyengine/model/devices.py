"""The runner of a configuration, by its device. Imports torch only when needed."""

import ctypes
import importlib.util
import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from pyengine.errors import ConfigError
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelRunner
from pyengine.settings.config import EngineConfig


def settled(config: EngineConfig) -> EngineConfig:
    """``config`` with the device that ``auto`` is on this machine.

    Raises:
        ConfigError: There is no such device here, or a setting does not fit it.
    """
    if config.device in ("cpu", "simulated"):
        return config
    if config.device == "cuda":
        _require_torch("device", "cuda", "cuda")
    has_gpu = _has_gpu()
    if config.device == "auto":
        return replace(config, device="cuda" if has_gpu else "cpu")
    if not has_gpu:
        raise ConfigError(
            "'device' is cuda, but torch sees no GPU here: it may be built without CUDA, or the"
            " driver is missing (nvidia-smi tells); 'cpu' and 'auto' run without one",
            param="device",
        )
    return config


def sized(config: EngineConfig) -> EngineConfig:
    """``config`` with the limits for this machine's GPU, if that is where the model goes.

    Asks the driver, and imports no torch.
    """
    if config.device not in ("auto", "cuda") or not _torch_has_cuda():
        return config
    return config.sized(_gpu_bytes())


def load_runner(config: EngineConfig, progress: Progress | None = None) -> ModelRunner:
    """The runner of ``config.device``, its weights loaded.

    Args:
        config: ``max_context`` and ``num_blocks`` of None follow from the model and
            ``kv_cache_mib``, or the memory of the GPU.
        progress: Called with (bytes loaded, bytes in all), on this thread.

    Raises:
        ConfigError: There is no such device, or a limit makes no sense.
        ModelLoadError: The model cannot be loaded; says why and what to do.
        EngineDeadError: One of several ranks died.
    """
    if config.device == "simulated":
        from pyengine.model.simulated import SimulatedRunner

        return SimulatedRunner.from_config(config)
    if config.tensor_parallel > 1:
        _require_torch("tensor_parallel", config.tensor_parallel, "torch")
    if config.tensor_parallel > 1 or (config.device != "cpu" and _driver_sees_gpu()):
        _check_model(config)
    config = settled(config)
    # OpenMP reads this when torch loads it. Its threads otherwise spin while they wait, and take
    # the cores from the kernels' threads and from the rest of the engine: on two busy cores a step
    # of 16 sequences took 30 times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if config.tensor_parallel > 1:
        from pyengine.distributed.parallel_runner import ParallelRunner

        return ParallelRunner.start(config, progress)
    if config.device == "cuda":
        from pyengine.model.torch.start.gpu import start_on_gpu

        return start_on_gpu(config, progress)
    from pyengine.model.cpu.runner import CpuRunner

    return CpuRunner.from_config(config, progress)


def _check_model(config: EngineConfig) -> None:
    """Refuse a model that cannot be served, before torch is imported: that takes seconds."""
    from pyengine.model.architectures import find_architecture
    from pyengine.model.spec import describe
    from pyengine.model.weights.loader import open_weights

    spec = describe(config)
    find_architecture(spec.info.architecture)
    open_weights(spec)


def _has_gpu() -> bool:
    if not _driver_sees_gpu():
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _driver_sees_gpu() -> bool:
    """Whether NVIDIA's driver has a GPU for this process; to ask torch takes seconds."""
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


def _gpu_bytes() -> int:
    """Memory of the first GPU that this process sees; 0 where there is none."""
    if not _driver_sees_gpu():
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


def _require_torch(param: str, value: object, extra: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"{param!r} of {value} needs torch, which is not installed here: "
            f"pip install 'pyengine[{extra}]'",
            param=param,
        )
