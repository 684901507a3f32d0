"""Divides the machine among replicas: GPUs, or cores."""

import os
from dataclasses import dataclass
from pathlib import Path

from pyengine.errors import ConfigError
from pyengine.settings.config import EngineConfig

GPU_DRIVER = Path("/dev/nvidiactl")
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Share:
    """Devices and memory of one replica.

    Attributes:
        gpus: Names for ``CUDA_VISIBLE_DEVICES``; none where the model runs elsewhere.
        cores: Numbers of CPUs; None is all of them.
    """

    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the replica's process."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}

    def __str__(self) -> str:
        if self.gpus:
            return f"GPU {', '.join(self.gpus)}"
        return "all cores" if self.cores is None else f"cores {', '.join(map(str, self.cores))}"


def shares(config: EngineConfig, replicas: int) -> list[Share]:
    """The share of each replica: GPUs if the model runs there, else cores.

    Replicas on GPUs, and simulated ones, use all cores.

    Raises:
        ConfigError: There are not enough GPUs.
    """
    gpus = visible_gpus() if config.device in ("auto", "cuda") else []
    if gpus:
        each = config.tensor_parallel
        if len(gpus) < replicas * each:
            raise ConfigError(
                f"{replicas} replicas on {each} GPUs each need {replicas * each} GPUs; there are "
                f"{len(gpus)}",
                param="replicas",
            )
        return [Share(gpus=tuple(gpus[at * each : (at + 1) * each])) for at in range(replicas)]
    if config.device == "simulated":
        return [Share()] * replicas
    return [Share(cores=part) for part in divided(by_neighbourhood(), replicas)]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    if not GPU_DRIVER.exists():
        return []
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def by_neighbourhood() -> list[int]:
    """The CPUs of this process, those of one package, and of one core, beside each other."""

    def place(cpu: int) -> tuple[int, int, int]:
        folder = TOPOLOGY / f"cpu{cpu}" / "topology"
        try:
            package = int((folder / "physical_package_id").read_text())
            core = int((folder / "core_id").read_text())
        except (OSError, ValueError):
            return 0, cpu, cpu
        return package, core, cpu

    return sorted(os.sched_getaffinity(0), key=place)


def divided(cpus: list[int], parts: int) -> list[tuple[int, ...] | None]:
    """Splits ``cpus`` into even parts; each gets all of them if there are fewer than parts."""
    if len(cpus) < parts:
        return [None] * parts
    ends = [len(cpus) * part // parts for part in range(parts + 1)]
    return [tuple(cpus[ends[part] : ends[part + 1]]) for part in range(parts)]
