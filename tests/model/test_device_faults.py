"""A device that does no work any more ends the engine; one that only failed a step does not."""

import asyncio
from pathlib import Path

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ConfigError, EngineDeadError, RequestFailedError
from pyengine.model.torch.attention import warm_up
from pyengine.model.torch.attention.selection import Capabilities
from pyengine.model.torch.device.queue import HostMark, probe
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.settings.config import EngineConfig
from tests.model.paged_steps import spec_of
from tests.table_runner import plan, run, table_runner
from tests.torch_devices import OverlappingQueue, start

CPU = torch.device("cpu")


class Mark(HostMark):
    def __init__(self, queue: "Faulty") -> None:
        super().__init__()
        self._queue = queue

    def wait(self) -> bool:
        self._queue.call()
        return super().wait()


class Faulty(OverlappingQueue):
    """A device that fails as CUDA does: once, or, its context dead, at every call from then on.

    Attributes:
        fails: Calls that fail, from the next one on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails = 0

    def call(self) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("an illegal memory access was encountered")

    def mark(self) -> Mark:
        return Mark(self)

    def finish(self) -> None:
        self.call()

    def probe(self) -> None:
        self.call()


FOR_EVER = 1 << 30


@pytest.mark.parametrize("part", ["forward", "logits", "wait"])
def test_a_dead_device_is_told_from_a_failed_step(part: str) -> None:
    queue = Faulty()
    runner, model = table_runner(queue=queue)
    run(runner, 2)

    def step(fails: int) -> None:
        model.fail = part if part != "wait" else None
        buffers = plan(runner, 2)
        queue.fails = fails if part != "wait" else 0
        step = runner.launch(buffers)
        step.sample()
        queue.fails = fails
        step.wait()

    with pytest.raises(RuntimeError):
        step(1)
    queue.fails, model.fail = 0, None
    assert len(run(runner, 3)) == 3  # its set is free again
    with pytest.raises(EngineDeadError, match="a new process") as raised:
        step(FOR_EVER)
    assert raised.value.__cause__ is not None
    runner.close()


def test_memory_that_is_out_is_the_steps_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, model = table_runner(queue=Faulty())
    monkeypatch.setattr(model, "forward", _out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        runner.launch(plan(runner, 2))


@pytest.mark.parametrize("fault", [None, "memory", "sync", "work"])
def test_a_gpu_is_probed_by_a_little_work(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was queued before has ended by then. Memory that is out is no death."""
    asked = []

    def synchronize(device: torch.device) -> None:
        asked.append("sync")
        if fault == "sync":
            raise RuntimeError("an illegal memory access was encountered")

    def ones(count: int, *, device: torch.device) -> torch.Tensor:
        asked.append("work")
        if fault == "memory":
            raise torch.OutOfMemoryError("out of memory")
        if fault == "work":
            raise RuntimeError("device-side assert triggered")
        return torch.zeros(count)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "ones", ones)
    gpu = torch.device("cuda", 0)
    if fault in ("sync", "work"):
        with pytest.raises(RuntimeError):
            probe(gpu)
    else:
        probe(gpu)
    assert asked == (["sync"] if fault == "sync" else ["sync", "work"])


def _out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("out of memory")


async def test_a_dead_device_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so `/ready` says no, and a placement with a process of its own starts another."""
    queue, runners = Faulty(), list[TorchRunner]()

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        runners.append(start_on_cpu(config, queue=queue))
        return runners[-1]

    monkeypatch.setattr("pyengine.engine.load_runner", load)
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    async with AsyncEngine(max_sequences=4) as engine:
        failed = [engine.generate("Go on", long) for _ in range(2)]
        # Only the requests of the failing step end with it.
        for generation in failed:
            await anext(generation)
        queue.fails = 1
        with pytest.raises(RequestFailedError):
            await failed[0]
        with pytest.raises(RequestFailedError):
            await failed[1]
        running = [engine.generate("Go on", long) for _ in range(3)]
        await anext(running[0])
        queue.fails = FOR_EVER
        for generation in running:
            with pytest.raises(EngineDeadError, match="the device of the engine fails every call"):
                await asyncio.wait_for(generation, 60)
        with pytest.raises(EngineDeadError):
            await engine.generate("Go on", long)


def test_a_backend_that_kills_the_device_leaves_no_other_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton would fail in the same context, and say what is not its fault."""
    spec = spec_of(dtype="bfloat16", kv_dtype="bfloat16", head_dim=64)
    machine = Capabilities("cuda", (9, 0), triton="3.6.0", flashinfer="0.7.2")
    made: list[str] = []

    def make(name: str, *_: object) -> None:
        made.append(name)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(warm_up, "make_backend", make)
    monkeypatch.setattr(warm_up, "probe", _dead)
    with pytest.raises(ConfigError, match="fails every call of this process") as raised:
        warm_up.ready(spec, CPU, machine)
    assert made == ["flashinfer"]
    assert raised.value.param == "attention"
    made.clear()
    monkeypatch.setattr(warm_up, "probe", lambda _: None)
    with pytest.raises(RuntimeError, match="illegal"):
        warm_up.ready(spec, CPU, machine)
    assert made == ["flashinfer", "triton", "torch"]


def test_memory_that_is_out_at_the_start_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend would not be what is missing."""
    made: list[str] = []

    def make(name: str, *_: object) -> None:
        made.append(name)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(warm_up, "make_backend", make)
    machine = Capabilities("cuda", (9, 0), triton="3.6.0", flashinfer="0.7.2")
    with pytest.raises(torch.OutOfMemoryError):
        warm_up.ready(spec_of(dtype="bfloat16", kv_dtype="bfloat16", head_dim=64), CPU, machine)
    assert made == ["flashinfer"]


def _dead(_: object) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_the_cpu_works(tmp_path: Path) -> None:
    runner = start(EngineConfig(device="cpu", num_blocks=8), "overlapping")
    runner._queue.probe()
    runner.close()
