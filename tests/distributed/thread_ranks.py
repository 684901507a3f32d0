"""Ranks on threads of this process: what processes do, without the time that they take to start."""

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not listed

from pyengine._core import Mailbox, MailboxClosed
from pyengine.distributed.group import TorchGroup
from pyengine.distributed.parallel_runner import ParallelRunner
from pyengine.distributed.rank_main import Follower
from pyengine.distributed.ranks import Ranks
from pyengine.distributed.start import CpuRanks
from pyengine.distributed.wire import RING_BYTES
from pyengine.errors import EngineDeadError
from pyengine.model.progress import Progress
from pyengine.settings.config import EngineConfig

CPU = torch.device("cpu")
Result = TypeVar("Result")


def together(
    size: int, work: Callable[[TorchGroup], Result], device: torch.device = CPU
) -> list[Result]:
    """What ``work`` returns on each of ``size`` ranks; raises what one of them does."""
    store = HashStore()
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(TorchGroup(store, rank, size, device))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


class ThreadRank:
    """What of a rank its steps need."""

    def __init__(self) -> None:
        self.ring = Mailbox(RING_BYTES)
        self.loaded = 0


class ThreadRanks(Ranks):
    """Other ranks on threads, each with a runner of its own."""

    def __init__(self, config: EngineConfig) -> None:
        self.size, self.failure, self.on_failure = config.tensor_parallel, None, None
        self._changed = threading.Condition()
        self._ranks = [ThreadRank() for _ in range(1, self.size)]  # type: ignore[misc]
        self.store = HashStore()
        self._threads = [
            threading.Thread(target=self._run, args=[number, rank, config])
            for number, rank in enumerate(self._ranks, 1)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        for rank in self._ranks:
            rank.ring.close()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, rank: ThreadRank, config: EngineConfig) -> None:
        try:
            group = TorchGroup(self.store, number, self.size, CPU)
            Follower(rank.ring, CpuRanks().start(CPU, config, group)).run()
        except MailboxClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - as a process says it
            with self._changed:
                self.failure = EngineDeadError(f"rank {number}: {error}")
                self._changed.notify_all()


def thread_runner(config: EngineConfig, progress: Progress | None = None) -> ParallelRunner:
    """As ``ParallelRunner.start``, on threads."""
    ranks = ThreadRanks(config)
    group = TorchGroup(ranks.store, 0, config.tensor_parallel, CPU)
    try:
        return ParallelRunner(CpuRanks().start(CPU, config, group, progress), ranks, group)
    except BaseException:
        ranks.close()
        raise
