"""A model that several ranks share, as one runner: rank 0 is in this process.

::

    rank 0   plan ─► launch ─► forward ────────► sample ─► logits, sampler ─► tokens
                       │ step    ▲ sums            │ masks   ▲ shares            of rank 0
    rank 1             └───────► forward ──────────└───────► logits, sampler ─► the same tokens

Every rank has the whole step and all of the logits, and samples the tokens itself: they are a
function of logits, rules, masks, seeds and positions, so no token has to be sent.
"""

import os
from collections.abc import Mapping

from pyengine._core import StepLayout
from pyengine.distributed.group import TorchGroup, host_store
from pyengine.distributed.ranks import Ranks, rank_config
from pyengine.distributed.start import rank_start
from pyengine.distributed.wire import Kind, adapter_message, late, planned
from pyengine.errors import PyengineError
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import StepBuffers
from pyengine.model.cpu.cores import usable_cores
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelInfo, ModelRunner, StepHandle
from pyengine.settings.config import EngineConfig
from pyengine.telemetry.experts import ExpertLoad


class ParallelStep:
    """A step in flight on all ranks; see :class:`pyengine.model.runner.StepHandle`."""

    def __init__(self, runner: "ParallelRunner", buffers: StepBuffers, mine: StepHandle) -> None:
        self._runner = runner
        self._buffers = buffers
        self._mine = mine

    @property
    def start_ns(self) -> int:
        """When rank 0's device began it."""
        return self._mine.start_ns

    @property
    def end_ns(self) -> int:
        """When rank 0's device ended it."""
        return self._mine.end_ns

    @property
    def waited_ns(self) -> tuple[int, int]:
        """From when to when rank 0's device waited for masks or penalties."""
        return self._mine.waited_ns

    def sample(self) -> None:
        """Sample the tokens, on all ranks.

        Raises:
            EngineDeadError: A rank has died, or cannot go on with the others.
        """
        self._runner.send_late(self._buffers)
        try:
            self._mine.sample()
        except Exception as error:
            raise self._runner.blame(error) from error

    def wait(self) -> StepBuffers:
        """The step's buffers with rank 0's results.

        Raises:
            EngineDeadError: A rank has died, or cannot go on with the others.
        """
        try:
            results = self._mine.wait()
        except Exception as error:
            raise self._runner.blame(error) from error
        self._runner.check()
        return results


class ParallelRunner:
    """Runs every step on all ranks; behind :class:`pyengine.model.runner.ModelRunner`.

    A rank that fails ends all: from then on every call raises the error that ended it. Only the
    scheduler's thread may call, but for ``close``.

    Attributes:
        info: The whole model.
        device: The devices in words.
        overlap: Rank 0's.
        num_blocks: KV blocks, of which every rank has its heads' part.
        layout: The layout of the step buffers.
        notes: Rank 0's, and the processes.
        ranks: The other ranks.
    """

    def __init__(self, mine: ModelRunner, ranks: Ranks, group: TorchGroup) -> None:
        """``mine`` runs rank 0's share of the model; ``ranks`` have loaded the others."""
        self.info: ModelInfo = mine.info
        self.device = f"{ranks.size} x {mine.device}"
        self.overlap = mine.overlap
        self.num_blocks = mine.num_blocks
        self.notes: Mapping[str, str] = dict(mine.notes) | {"ranks": _words(ranks, group)}
        self.layout: StepLayout = mine.layout
        self.ranks = ranks
        self._mine = mine
        self._group = group

    @classmethod
    def start(cls, config: EngineConfig, progress: Progress | None = None) -> "ParallelRunner":
        """Start the other ranks, and load the model with them.

        Args:
            config: Its ``tensor_parallel`` is how many ranks there are, its device settled.
            progress: Called with (bytes loaded, bytes in all), on this thread.

        Raises:
            ConfigError: The model cannot be divided so, or there are fewer GPUs.
            ModelLoadError: The model cannot be loaded; names the rank that could not.
            EngineDeadError: A rank died.
        """
        config = rank_config(config, usable_cores())
        starts = rank_start(config)
        device = starts.device(config, 0)
        ranks = Ranks(config)
        try:
            store = host_store()
            ranks.meet(store.port)
            try:
                group = TorchGroup(store, 0, config.tensor_parallel, device)
                ranks.on_failure = group.abort
                ranks.check()
                of_all = ranks.progress(progress) if progress else None
                mine = starts.start(device, config, group, of_all)
            except PyengineError:
                raise
            except Exception as error:
                raise ranks.blame(error) from error
            try:
                ranks.wait_ready()
            except BaseException:
                mine.close()
                raise
            return cls(mine, ranks, group)
        except BaseException:
            ranks.close()
            raise

    def buffers(self) -> StepBuffers:
        """The free set of buffers to plan into.

        Raises:
            EngineDeadError: A rank has died.
        """
        self.check()
        return self._mine.buffers()

    def launch(self, buffers: StepBuffers) -> ParallelStep:
        """Start the forward pass on all ranks.

        Raises:
            EngineDeadError: A rank has died, or cannot go on with the others.
        """
        self.ranks.send(Kind.LAUNCH, planned(self.layout, buffers), buffers.memory)
        try:
            return ParallelStep(self, buffers, self._mine.launch(buffers))
        except Exception as error:
            raise self.blame(error) from error

    def send_late(self, buffers: StepBuffers) -> None:
        """Let the other ranks sample ``buffers``, whose masks and penalties are filled."""
        self.ranks.send(Kind.SAMPLE, late(self.layout, buffers), buffers.memory)

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot on all ranks; returns the bytes on rank 0.

        Raises:
            AdapterError: It does not fit the model.
            EngineDeadError: A rank has died, or could not read it.
        """
        size = self._mine.set_adapter(slot, adapter)
        self.ranks.send_message(adapter_message(slot, adapter))
        return size

    def expert_load(self) -> list[ExpertLoad]:
        """Rank 0's: every rank routes every token.

        Raises:
            EngineDeadError: A rank has died, or cannot go on with the others.
        """
        try:
            return self._mine.expert_load()
        except Exception as error:
            raise self.blame(error) from error

    def check(self) -> None:
        """Raise the error that ended a rank, if there is one."""
        self.ranks.check()

    def blame(self, error: Exception) -> PyengineError:
        """The error to raise for ``error`` in rank 0, after which the ranks are out of step."""
        failure = self.ranks.blame(error)
        self.ranks.failure = failure
        return failure

    def close(self) -> None:
        """Give this rank's memory back and end the others. Idempotent."""
        self.ranks.close()
        if self.ranks.failure is not None:
            self._group.abort()  # or queued work waits for ranks that have ended
        self._mine.close()


def _words(ranks: Ranks, group: TorchGroup) -> str:
    processes = ", ".join(map(str, [os.getpid(), *ranks.pids]))
    return f"{ranks.size}, processes {processes}, joined by {group.exchanges}"
