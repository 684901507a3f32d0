"""The choice of a device: which runner a configuration gets. Imports torch only when needed."""

import os

from pyengine.config import EngineConfig
from pyengine.errors import ConfigError
from pyengine.model.runner import ModelRunner, Progress


def load_runner(config: EngineConfig, progress: Progress | None = None) -> ModelRunner:
    """The runner of ``config.device``, its weights loaded.

    Args:
        config: ``max_context`` and ``num_blocks`` of None follow from the model and
            ``kv_cache_mib``.
        progress: Called with (bytes loaded, bytes in all), on this thread.

    Raises:
        ConfigError: The device is not one of ours, or a limit makes no sense.
        ModelLoadError: The model cannot be loaded; says why and what to do.
    """
    if config.device == "simulated":
        from pyengine.model.simulated import SimulatedRunner

        return SimulatedRunner.from_config(config)
    if config.device == "cpu":
        # OpenMP reads this when torch loads it. Its threads otherwise spin while they wait, and
        # take the cores from the kernels' threads and from the rest of the engine: on two busy
        # cores a step of 16 sequences took 30 times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

        from pyengine.model.cpu import CpuRunner

        return CpuRunner.from_config(config, progress)
    raise ConfigError(f"'device' must be cpu or simulated, not {config.device!r}", param="device")
