"""FlashInfer's backend over the fakes of its wrappers: steps that are in flight, compared later."""

from typing import Any

import numpy as np
import torch

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from tests.model.fake_flashinfer import Device
from tests.model.paged_steps import (
    FIELDS,
    Step,
    expected,
    fill,
    layer_of,
    layout_of,
    pad,
    random_table,
    spec_of,
)

BLOCKS = 80
LONG: dict[str, Any] = {"max_tokens": 512, "max_context": 512, "max_pages": 512}
"""A model with room for prompts."""

FLOAT8_CACHE: dict[str, Any] = {"kv_dtype": "float8_e4m3fn", "head_dim": 128}


class Bench:
    """A backend over the fakes, two sets of buffers that take turns, and one layer."""

    def __init__(self, *layers: dict[str, Any], hopper: bool = True, **spec: Any) -> None:
        self.layers = layers or ({},)
        self.spec = spec_of(**{"dtype": "bfloat16", "kv_dtype": "bfloat16"} | spec)
        self.device = Device(hopper=hopper)
        self.backend = FlashInferAttention(self.spec, torch.device("cpu"), self.device.library())
        layout = layout_of(self.spec)
        self.sets = [StepBuffers(layout) for _ in range(2)]
        self.step: Any = Step(self.sets[0])
        cache = (BLOCKS, self.spec.block_size, self.spec.num_kv_heads, self.spec.head_dim)
        kv_dtype = getattr(torch, self.spec.kv_dtype)
        self.keys, self.values = (torch.randn(cache).to(kv_dtype) for _ in range(2))
        self.pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self.random = np.random.default_rng(1)

    def launch(
        self,
        lengths: list[int],
        counts: list[int],
        *,
        variant: str | None = None,
        bucket: tuple[int, int] | None = None,
        decodes: int | None = None,
    ) -> str:
        """A step, as a runner queues it; ``bucket`` is the rows and tokens of its graph."""
        host = self.sets.pop(0)
        self.sets.append(host)
        self.step.host = host
        table = random_table(self.random, lengths, self.spec.block_size, BLOCKS)
        fill(host, lengths, counts, table)
        if decodes is not None:
            host.num_decode_rows = decodes
        chosen = self.backend.variant(self.step) if variant is None else variant
        rows, tokens = bucket or (len(lengths), sum(counts))
        pad(host, rows, tokens)
        # The copy of the step comes after the plan or before: the plan must not care.
        self.backend.plan(self.step, chosen, rows, tokens, captured=bucket is not None)
        frozen = {name: getattr(host, name).copy() for name in FIELDS}
        self.device.add(lambda: self._arrive(frozen))
        spec = self.spec
        queries = torch.randn(tokens, spec.num_heads, spec.head_dim).to(torch.bfloat16)
        for how in self.layers:
            out = torch.full_like(queries, float("nan"))
            layer = layer_of(**{"scale": spec.head_dim**-0.5} | how)
            self.backend.attend(self.step, queries, self.keys, self.values, out, tokens, layer)
            right = expected(frozen, len(lengths), queries, self.keys, self.values, **how)
            self.pending.append((out, right, sum(counts)))
        return chosen

    def _arrive(self, frozen: dict[str, Any]) -> None:
        for name, values in frozen.items():
            getattr(self.step, name).copy_(torch.from_numpy(values))

    def check(self, tolerance: float = 0.03) -> None:
        """Let the device finish, and compare all steps."""
        self.device.finish()
        assert self.pending
        for out, right, tokens in self.pending:
            torch.testing.assert_close(out[:tokens], right[:tokens], rtol=0, atol=tolerance)
        self.pending.clear()


def all_calls() -> Device:
    """A device that was called in every way there is."""
    bench = Bench({}, {"key_scale": 0.5, "value_scale": 2.0}, **LONG)
    for bucket in (None, (4, 128)):
        bench.launch([9, 99], [1, 90], bucket=bucket)
        bench.launch([9, 7], [1, 3], bucket=bucket)
    bench.launch([9, 7], [1, 1], bucket=(2, 2))
    small = Bench({"value_scale": 2.0}, **FLOAT8_CACHE, **LONG)
    small.launch([9, 99], [1, 90])
    bench.device.bound |= small.device.bound
    return bench.device
