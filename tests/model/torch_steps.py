"""The least runner of a torch model, for :class:`llamas.Loop`: forward, and the likeliest token."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pyengine._core import StepLayout
from pyengine.distributed.group import Group
from pyengine.model.batch import StepBuffers
from pyengine.model.spec import describe, in_one_page
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.model import TorchModel
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig


class GreedyRunner:
    """Computes steps at once, and chooses the likeliest token at each of its logits."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str = "float32",
        kv_dtype: torch.dtype | None = None,
        max_tokens: int = 512,
        max_rows: int = 16,
        num_blocks: int = 96,
        block_size: int = 16,
        group: Group | None = None,
        load_format: str = "auto",
        quantization: str | None = None,
        expert_parallel: bool = False,
        cpu_kernels: bool = False,
    ) -> None:
        config = EngineConfig(
            model=str(folder),
            load_format=load_format,  # type: ignore[arg-type]
            quantization=quantization,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            num_blocks=num_blocks,
            block_size=block_size,
        )
        spec = describe(config)
        spec = replace(spec, info=in_one_page(spec.info))  # its loop knows one page table
        if kv_dtype is not None:
            kv_name = {torch.float8_e4m3fn: "float8_e4m3"}.get(kv_dtype, dtype)
            spec = replace(spec, info=replace(spec.info, kv_cache_dtype=kv_name))
        self.info, self.num_blocks = spec.info, spec.num_blocks
        pages = -(-spec.info.max_context // block_size)
        vocab_size = spec.info.vocab_size
        layout = StepLayout(
            max_tokens,
            max_rows,
            max_rows * pages,
            max_draft=8,
            vocab_size=vocab_size,
            states=spec.info.state_pages > 0,
        )
        kind = getattr(torch, dtype)
        parts = TorchParts(
            torch.device("cpu"),
            kind,
            kv_dtype or kind,
            TorchAttention(),
            max_tokens,
            layout.fields()["logit_row"][2],
            spec.num_blocks,
            group,
            expert_parallel=expert_parallel,
            cpu_kernels=cpu_kernels,
        )
        rank, ranks = parts.group.rank, parts.ranks
        with open_weights(spec, rank=rank, ranks=ranks) as weights:
            self.model = TorchModel(spec, layout, parts, weights)
        self.host = StepBuffers(layout)
        self.step = DeviceStep(layout, parts.device, self.host)
        self.logits = torch.empty(0)

    def buffers(self) -> StepBuffers:
        return self.host

    def launch(self, buffers: StepBuffers) -> Any:
        tokens, count = buffers.num_tokens, buffers.num_logits
        backend = self.model.backend
        variant = backend.variant(self.step)
        backend.plan(self.step, variant, buffers.num_rows, tokens, captured=False)
        self.model.forward(self.step, tokens)
        per_call = self.model.rows_per_call
        self.logits = torch.empty(count, self.info.vocab_size)
        for first in range(0, count, per_call):
            rows = min(per_call, count - first)
            self.logits[first : first + rows] = self.model.logits(self.step, rows, first)
        buffers.tokens[:] = self.logits.argmax(-1).to(torch.int32).numpy()
        buffers.counts[:] = 1
        return SimpleNamespace(sample=lambda: None, wait=lambda: buffers)
