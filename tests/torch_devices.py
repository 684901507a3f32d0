"""Runners in torch on the CPU, as a GPU's would be: with graphs, and with steps that overlap."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.queue import CpuQueue
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.settings.config import EngineConfig


@dataclass
class Recorded:
    """What was captured: replayed, it is done again, on the memory as it is then."""

    work: Callable[[], None]
    log: list[Any]

    def replay(self) -> None:
        self.log.append("replay")
        self.work()


@dataclass
class RecordingCapturer:
    """Stands in for CUDA's: ``work`` is not done as it is captured."""

    size: int = 1 << 20
    log: list[Any] = field(default_factory=list)
    fails: bool = False

    def capture(self, work: Callable[[], None]) -> tuple[Recorded, int]:
        self.log.append("capture")
        if self.fails:
            raise RuntimeError("an operation that no graph takes")
        return Recorded(work, self.log), self.size


class PaddedAttention(TorchAttention):
    """Attends to what a graph's bucket has: padded rows too, by what is written for them."""

    name = "padded"
    captures = True

    def __init__(self, log: list[Any] | None = None) -> None:
        super().__init__()
        self.log = [] if log is None else log

    def variant(self, step: DeviceStep) -> str:
        return "decode" if step.host.num_rows == step.host.num_tokens else "ragged"

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        self.log.append(("plan", variant, rows, tokens, captured))
        host = step.host
        starts = host.query_start.tolist()
        assert starts[rows] <= tokens
        assert variant == "ragged" or starts[rows] == tokens == rows
        self._rows = []
        for table in host.page_tables:
            pages, padding = table.page_indptr.tolist(), tokens - host.num_tokens
            assert table.slot_mapping[host.num_tokens : tokens].tolist() == [-1] * padding
            self._rows.append(
                [
                    (
                        *starts[row:][:2],
                        length,
                        step.page_indices[slice(*pages[row:][:2])],
                        int(host.positions[starts[row + 1] - 1]),
                    )
                    for row, length in enumerate(table.kv_length[:rows].tolist())
                    if starts[row] < starts[row + 1]
                ]
            )


class OverlappingQueue(CpuQueue):
    """Steps in memory of their own, planned and launched before the one before is committed."""

    overlap = 1


KINDS = ("plain", "graphs", "overlapping")


def start(config: EngineConfig, kind: str = "plain") -> TorchRunner:
    """A runner of one of :data:`KINDS`."""
    if kind == "plain":
        return start_on_cpu(config)
    log: list[Any] = []
    return start_on_cpu(
        config,
        attention=lambda _: PaddedAttention(log),
        capturer=RecordingCapturer(log=log),
        queue=OverlappingQueue() if kind == "overlapping" else None,
    )


def use_torch(monkeypatch: pytest.MonkeyPatch, kind: str = "plain") -> list[TorchRunner]:
    """Engines that are started in threads get such runners, which the list then has."""
    runners: list[TorchRunner] = []

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        runners.append(start(config, kind))
        return runners[-1]

    monkeypatch.setattr("pyengine.engine.settled", lambda config: config)
    monkeypatch.setattr("pyengine.engine.load_runner", load)
    return runners


def caches(runner: TorchRunner) -> list[torch.Tensor]:
    """Keys and values of all layers."""
    return [cache for layer in runner._model.pool.caches for cache in layer]  # type: ignore[union-attr]
