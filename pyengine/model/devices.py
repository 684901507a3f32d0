"""The runner of a configuration, by its device. Imports torch only when needed."""

import os
from dataclasses import replace
from pkgutil import resolve_name
from typing import cast

from pyengine.devices import AUTO, AUTOMATIC
from pyengine.devices.torch_package import without_torch
from pyengine.errors import ConfigError
from pyengine.model.architectures import find_architecture
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelRunner
from pyengine.model.spec import describe
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig


def settled(config: EngineConfig) -> EngineConfig:
    """``config`` with the device that ``auto`` is on this machine, and the limits for its memory.

    A model that cannot be served is refused first: to ask for a device may take seconds.

    Raises:
        ConfigError: There is no such device here, or a setting does not fit it.
        ModelLoadError: The model cannot be served; says why and what to do.
    """
    if config.tensor_parallel > 1:
        _refuse(
            "tensor_parallel", without_torch("tensor_parallel", config.tensor_parallel, "torch")
        )
    if config.nvtx:
        _refuse("nvtx", without_torch("nvtx", True, "torch"))
    if config.device_spec.computes:
        spec = describe(config)
        find_architecture(spec.info.architecture)
        open_weights(spec)
    if config.device == AUTO:
        found = next(device for device in AUTOMATIC if device.missing() is None)
        config = replace(config, device=found.name)
    else:
        _refuse("device", config.device_spec.missing())
    memory_bytes = config.device_spec.memory_bytes
    return config if memory_bytes is None else config.sized(memory_bytes())


def load_runner(config: EngineConfig, progress: Progress | None = None) -> ModelRunner:
    """The runner of ``config.device``, its weights loaded.

    Args:
        config: See :func:`settled`. ``max_context`` and ``num_blocks`` of None follow from the
            model and ``kv_cache_mib``, or the device's memory.
        progress: Called with (bytes loaded, bytes in all), on this thread.

    Raises:
        ConfigError: A limit makes no sense.
        ModelLoadError: The model cannot be loaded; says why and what to do.
        EngineDeadError: One of several ranks died.
    """
    assert config.device != AUTO, "settle the configuration first"
    # OpenMP reads this when torch loads it. Its threads otherwise spin while they wait, and take
    # the cores from the kernels' threads and from the rest of the engine: on two busy cores a step
    # of 16 sequences took 30 times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if config.tensor_parallel > 1:
        from pyengine.distributed.parallel_runner import ParallelRunner

        return ParallelRunner.start(config, progress)
    return cast(ModelRunner, resolve_name(config.device_spec.start)(config, progress))


def _refuse(setting: str, why: str | None) -> None:
    if why is not None:
        raise ConfigError(why, param=setting)
