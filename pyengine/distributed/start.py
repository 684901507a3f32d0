"""The start of one rank: its device, and its share of the model."""

import torch

from pyengine.distributed.group import Group
from pyengine.errors import ConfigError
from pyengine.model.progress import Progress
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.torch.start.gpu import start_on_gpu
from pyengine.settings.config import EngineConfig


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """The device of ``rank``: the CPU, or the GPU of that number.

    Raises:
        ConfigError: There are fewer GPUs than ranks.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.device_count() < config.tensor_parallel:
        raise ConfigError(
            f"'tensor_parallel' is {config.tensor_parallel}, but torch sees "
            f"{torch.cuda.device_count()} GPUs",
            param="tensor_parallel",
        )
    return torch.device("cuda", rank)


def start_rank(
    device: torch.device, config: EngineConfig, group: Group, progress: Progress | None = None
) -> TorchRunner:
    """The runner of one rank; all ranks call this at the same time.

    Args:
        device: See :func:`rank_device`.
        config: The engine's.
        group: The ranks.
        progress: Called with (bytes loaded, bytes in all), on this thread.

    Raises:
        ConfigError: A limit makes no sense, or the model cannot be divided so.
        ModelLoadError: The model cannot be loaded; says why.
    """
    if device.type == "cpu":
        return start_on_cpu(config, progress, group=group)
    torch.cuda.set_device(device)
    return start_on_gpu(config, progress, group=group)
