"""The start of one rank: its device, and its share of the model."""

from pkgutil import resolve_name
from typing import Protocol, cast

import torch

from pyengine.distributed.group import Group
from pyengine.errors import ConfigError
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.torch.start.gpu import start_on_gpu
from pyengine.settings.config import EngineConfig


class RankStart(Protocol):
    """How the ranks of a device start; see ``DeviceSpec.ranks``."""

    def device(self, config: EngineConfig, rank: int) -> torch.device:
        """The device of ``rank``.

        Raises:
            ConfigError: There are fewer devices than ranks.
        """

    def start(
        self, device: torch.device, config: EngineConfig, group: Group, progress: Progress | None
    ) -> ModelRunner:
        """The runner of one rank; all ranks call this at the same time.

        Args:
            device: That of the rank.
            config: The engine's.
            group: The ranks.
            progress: Called with (bytes loaded, bytes in all), on this thread.

        Raises:
            ConfigError: A limit makes no sense, or the model cannot be divided so.
            ModelLoadError: The model cannot be loaded; says why.
        """


class CpuRanks:
    """Ranks that compute in torch on the CPU."""

    def device(self, config: EngineConfig, rank: int) -> torch.device:
        """The CPU, for all ranks."""
        return torch.device("cpu")

    def start(
        self,
        device: torch.device,
        config: EngineConfig,
        group: Group,
        progress: Progress | None = None,
    ) -> ModelRunner:
        """See :class:`RankStart`."""
        return start_on_cpu(config, progress, group=group)


class CudaRanks:
    """Ranks that have a GPU each."""

    def device(self, config: EngineConfig, rank: int) -> torch.device:
        """The GPU of the rank's number."""
        if torch.cuda.device_count() < config.tensor_parallel:
            raise ConfigError(
                f"'tensor_parallel' is {config.tensor_parallel}, but torch sees "
                f"{torch.cuda.device_count()} GPUs",
                param="tensor_parallel",
            )
        return torch.device("cuda", rank)

    def start(
        self,
        device: torch.device,
        config: EngineConfig,
        group: Group,
        progress: Progress | None = None,
    ) -> ModelRunner:
        """See :class:`RankStart`."""
        torch.cuda.set_device(device)
        return start_on_gpu(config, progress, group=group)


def rank_start(config: EngineConfig) -> RankStart:
    """How the ranks of ``config.device`` start."""
    named = config.device_spec.ranks
    assert named is not None, "the configuration refuses several ranks"
    return cast(RankStart, resolve_name(named)())
