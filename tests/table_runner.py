"""A runner whose model is a table of logits: everything of a step but the model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyengine._core import StepLayout
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.runner import ModelInfo
from pyengine.model.step_fields import sampling_rows
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.graphs import Capturer, Graphs
from pyengine.model.torch.device.queue import CpuQueue, CudaCapturer, CudaQueue, DeviceQueue
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.warm_up import write_step
from tests.model.draws import Step, on_cpu, penalty_arrays, random_logits, random_step
from tests.torch_devices import OverlappingQueue, PaddedAttention, RecordingCapturer

VOCABULARY = 90


class Table:
    """A model without layers: the logits of a step are those in a table, by logits row."""

    def __init__(self, rows_per_call: int = 1000, device: str = "cpu") -> None:
        self.log: list[Any] = []
        self.backend: Any = NoAttention(self.log)
        self.rows_per_call = rows_per_call
        self.table = torch.zeros(64, VOCABULARY, device=device)
        self.fail: str | None = None

    def forward(self, step: DeviceStep, tokens: int) -> None:
        self.log.append(("forward", tokens))
        if self.fail == "forward":
            raise RuntimeError("no forward pass")

    def logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        self.log.append(("logits", rows, first))
        if self.fail == "logits":
            raise RuntimeError("no logits")
        return self.table[first : first + rows]

    def prompt_logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        return self.logits(step, rows, first)

    def states(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        raise RuntimeError("no layers, no states")

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        raise RuntimeError("no layers, no adapters")


class NoAttention(PaddedAttention):
    """Only plans."""

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        self.log.append(("plan", variant, rows, tokens, captured))


INFO = ModelInfo(
    name="table",
    folder=Path(),
    architecture="none",
    vocab_size=VOCABULARY,
    max_context=64,
    eos_token_ids=(),
    hidden_size=8,
    num_heads=1,
    dtype="float32",
    block_size=16,
    block_bytes=0,
)


def table_runner(
    model: Table | None = None,
    *,
    overlap: bool = False,
    graphs: int | None = None,
    queue: DeviceQueue | None = None,
) -> tuple[TorchRunner, Table]:
    model = model or Table()
    queue = queue or (OverlappingQueue() if overlap else CpuQueue())
    capturer: Capturer = RecordingCapturer(log=model.log)
    if model.table.is_cuda:
        queue, capturer = CudaQueue(model.table.device), CudaCapturer()
    runner = TorchRunner(
        model,
        INFO,
        StepLayout(64, 16, 64, max_draft=4, vocab_size=VOCABULARY),
        queue,
        num_blocks=32,
        max_sequences=16,
        graphs=None if graphs is None else Graphs(capturer, graphs),
    )
    return runner, model


def plan(runner: TorchRunner, rows: int, tokens_each: int = 1, masks: int = 0) -> Any:
    """A step of so many rows that decode, each sampling behind its last token."""
    buffers = runner.buffers()
    write_step(buffers, [tokens_each] * rows, 16, rows)
    buffers.num_sampled = buffers.num_greedy = buffers.num_decode_rows = rows
    buffers.num_masks = buffers.num_masked_logits = masks
    buffers.sample_sequence[:rows] = range(rows)
    buffers.sampling[:rows] = sampling_rows(rows, temperature=0.0)
    buffers.logit_start[: rows + 1] = range(rows + 1)
    buffers.logit_row[:rows] = range(rows)
    buffers.logit_token[:rows] = np.arange(1, rows + 1) * tokens_each - 1
    return buffers


def run(runner: TorchRunner, rows: int, tokens_each: int = 1) -> list[int]:
    step = runner.launch(plan(runner, rows, tokens_each))
    step.sample()
    tokens: list[int] = step.wait().tokens.tolist()
    return tokens


def fill(buffers: Any, drawn: Step, arrays: dict[str, Any]) -> None:
    count, tokens = len(arrays["logit_row"]), len(drawn.token_ids)
    rows = drawn.rows
    buffers.header[:] = 0
    write_step(buffers, [1], 16, 1)
    for name, values in arrays.items():
        if name != "mask":
            getattr(buffers, name)[: len(values)] = values
    masks = 0 if drawn.mask is None else len(drawn.mask)
    buffers.token_ids[:tokens] = drawn.token_ids
    buffers.sample_sequence[:rows] = range(rows)
    buffers.num_sampled, buffers.num_logits, buffers.num_masks = rows, count, masks
    buffers.num_masked_logits = count if masks else 0
    buffers.num_greedy = int((arrays["sampling"]["temperature"] == 0).sum())
    buffers.num_penalized_rows = int(drawn.penalties is not None)


def assert_samples_as_rust(runner: TorchRunner, model: Table) -> None:
    """Steps with drafts, masks, penalties and rules of any kind; some are greedy throughout."""
    random = np.random.default_rng(5)
    for number in range(12):
        drawn = random_step(random, 9, VOCABULARY)
        if number % 3 == 0:
            drawn.temperature = 0.0
        arrays = drawn.arrays()
        count = len(arrays["logit_row"])
        if count > 48:
            continue
        logits = random_logits(random, count, VOCABULARY)
        if number % 2:
            factor = np.where(random.random(logits.shape) < 0.1, 1.5, 1.0)
            add = np.where(random.random(logits.shape) < 0.1, random.normal(0, 2, logits.shape), 0)
            add[random.random(logits.shape) < 0.05] = -np.inf
            drawn.penalties = factor, add
        expected, counts = on_cpu(drawn, logits)
        model.table[:count] = torch.from_numpy(logits)
        buffers = runner.buffers()
        fill(buffers, drawn, arrays)
        step = runner.launch(buffers)
        if drawn.mask is not None:
            # As the planner does: masks are filled while the forward pass runs.
            buffers.mask[: len(drawn.mask)] = drawn.mask
        if drawn.penalties is not None:
            penalties = penalty_arrays(*drawn.penalties)
            for name, values in penalties.items():
                getattr(buffers, f"penalty_{name}")[: len(values)] = values
            buffers.num_penalties = len(penalties["token"])
        step.sample()
        sampled = step.wait()
        assert sampled.tokens.tolist() == expected.tolist()
        assert sampled.counts.tolist() == counts.tolist()
        last = arrays["logit_start"][:-1] + counts - 1
        assert runner._sampler.last_token[: drawn.rows].tolist() == [
            max(int(token), 0) for token in expected[last]
        ]
