"""The start on a GPU, on a CPU that passes for one: late, with graphs, its memory measured."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.distributed.group import Alone
from pyengine.errors import ConfigError
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.runner import ModelRunner
from pyengine.model.torch.attention.selection import Capabilities
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.attention.warm_up import Ready, warm_up
from pyengine.model.torch.model import TorchModel
from pyengine.model.torch.start import gpu as start_gpu
from pyengine.model.torch.start import loading
from pyengine.queues import EngineInfo
from pyengine.settings.config import EngineConfig
from tests.late_device import LateQueue, queue_kernels

CPU = torch.device("cpu")
MIB = 1 << 20
TOTAL, BEFORE = 400 * MIB, 100 * MIB


class Gpu:
    """What the start asks torch of a GPU: a CPU, and so much memory that tensors take."""

    def __init__(self) -> None:
        self.taken = BEFORE
        self.queues: list[LateQueue] = []
        self.cuda = SimpleNamespace(
            current_device=lambda: 0,
            mem_get_info=lambda device: (TOTAL - self.taken, TOTAL),
            empty_cache=lambda: None,
            get_device_name=lambda device: "CPU in disguise",
        )

    def device(self, *_: object) -> torch.device:
        return CPU

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def queue(self, device: torch.device) -> LateQueue:
        self.queues.append(LateQueue())
        return self.queues[-1]

    def load(self, *given: Any) -> TorchModel:
        model: TorchModel = LOAD(*given)
        self.taken += 4 * model.num_parameters
        return model


LOAD = loading.load_model


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    queue_kernels(monkeypatch)
    found = Gpu()

    def ready_by_kind(
        specs: tuple[AttentionSpec, ...],
        device: torch.device,
        machine: Capabilities,
        asked: str,
    ) -> Ready:
        (spec,) = specs
        backend = TritonAttention(spec, device, processors=8)
        warm_up(backend, spec, device)
        return Ready(backend, "triton of the CPU", machine)

    monkeypatch.setattr(start_gpu, "torch", found)
    monkeypatch.setattr(start_gpu, "ready_by_kind", ready_by_kind)
    monkeypatch.setattr(start_gpu, "load_model", found.load)
    monkeypatch.setattr(start_gpu, "CudaQueue", found.queue)
    monkeypatch.setattr(start_gpu, "CudaCapturer", lambda: found.queues[-1])

    def load(config: EngineConfig, progress: object = None) -> ModelRunner:
        if config.device == "cuda":
            return start_gpu.start_on_gpu(config)
        return CpuRunner.from_config(config)

    monkeypatch.setattr("pyengine.engine.settled", lambda config: config)
    monkeypatch.setattr("pyengine.engine.load_runner", load)
    return found


async def ask(**config: Any) -> tuple[list[tuple[int, ...]], EngineInfo]:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    settings: dict[str, Any] = {
        "max_sequences": 8, "max_tokens_per_step": 128, "dtype": "float32", "speculation": (),
    }  # fmt: skip
    async with AsyncEngine(**settings | config) as engine:
        answers = [await engine.generate(f"Number {n}", params) for n in range(3)]
        return [tuple(answer.token_ids) for answer in answers], engine.info


DISGUISED: dict[str, Any] = {"device": "cuda", "graph_memory_mib": 100}


async def test_cache_takes_the_memory_that_is_left(gpu: Gpu) -> None:
    expected, _ = await ask(device="cpu", kv_cache_mib=16)
    answers, info = await ask(**DISGUISED)
    assert answers == expected
    assert info.device == "cuda, CPU in disguise, float32"
    notes = info.notes
    assert notes["attention"] == "triton of the CPU"
    assert "experts" not in notes
    assert notes["memory"].startswith("0.39 GiB: weights 0.")
    assert "graphs 0.10" in notes["memory"]
    assert "others 0.10" in notes["memory"]
    (queue,) = gpu.queues
    assert queue.replays > 3 * 20  # forward passes and sampling, from the first step on
    assert queue.done == queue.asked


class Ranks(Alone):
    """A group of one that notes what it is asked."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.limits: list[float] = []

    def least(self, number: int) -> int:
        self.numbers.append(number)
        return number

    def limit(self, seconds: float) -> None:
        assert self.numbers
        self.limits.append(seconds)


@pytest.mark.usefixtures("gpu")
def test_decodes_have_graphs_before_the_first_request() -> None:
    """On which ranks agree, one by one; from then on an exchange may take as long as a step."""
    group = Ranks()
    config = EngineConfig(
        device="cuda", dtype="float32", max_sequences=9, max_tokens_per_step=64, speculation=(),
        graph_memory_mib=100, kv_cache_mib=8, max_context=64, step_timeout_s=77.0,
    )  # fmt: skip
    runner = start_gpu.start_on_gpu(config, group=group)
    graphs = runner.graphs
    assert graphs is not None
    kept = [key for key in graphs._kept if isinstance(key, tuple) and key[0] == "forward"]
    assert kept == [("forward", "decode", rows) for rows in (1, 2, 4, 8, 9)]
    assert len([size for size in group.numbers if size < 0]) == graphs.captures == len(graphs)
    assert group.limits == [77.0]
    runner.close()


@pytest.mark.slow
async def test_a_draft_model_has_its_share_of_cache_and_graphs(gpu: Gpu) -> None:
    expected, _ = await ask(device="cpu", kv_cache_mib=16)
    drafting: dict[str, Any] = {
        "draft_model": "demo", "speculation": ("draft_model",), "_adaptive_drafts": False,
    }  # fmt: skip
    answers, _ = await ask(**DISGUISED, **drafting)
    assert answers == expected
    assert gpu.queues[0].replays > 10


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"kv_cache_mib": 4000}, "kv_cache_mib"),
        ({"gpu_memory_fraction": 0.3}, "gpu_memory_fraction"),
    ],
)
async def test_more_than_there_is_is_refused(config: dict[str, Any], param: str, gpu: Gpu) -> None:
    with pytest.raises(ConfigError, match=r"the GPU has 0\.39 GiB") as raised:
        await ask(**DISGUISED, **config)
    assert raised.value.param == param
