"""Paged attention on the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyengine._core import CpuStates, CpuStep, CpuTensor
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.cache_groups import places
from pyengine.model.cpu.executor import Executor
from pyengine.model.cpu.pool import Pool
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.runner import ModelInfo


@dataclass
class CpuStepTensors:
    """A step as the kernels see it: views of one set of step buffers.

    Attributes:
        token_ids: int32 [T].
        positions: int32 [T].
        logit_token: int32 [L].
        pool_token: int32 [P].
        prompt_token: int32 [P].
        attention: What attention reads, by page table.
        states_of_rows: What layers with states read; None where no layer has one.
    """

    token_ids: CpuTensor
    positions: CpuTensor
    logit_token: CpuTensor
    pool_token: CpuTensor
    prompt_token: CpuTensor
    attention: list[CpuStep]
    states_of_rows: CpuStates | None

    @property
    def states(self) -> CpuStates:
        """What a layer with a state reads."""
        assert self.states_of_rows is not None, "the layers of the model have no states"
        return self.states_of_rows


class Attention:
    """Causal attention over a paged cache."""

    def __init__(
        self,
        executor: Executor,
        info: ModelInfo,
        layers: Mapping[int, LayerAttention],
        pool: Pool,
    ) -> None:
        self._executor = executor
        self._num_heads = info.num_heads
        caches = {
            layer: (cpu_tensor(keys), cpu_tensor(values))
            for layer, (keys, values) in pool.caches.items()
        }
        tables = {layer: table for layer, (table, _) in places(info.cache_groups).items()}
        # Whose keys and values each layer attends to.
        self._stores = {at: keys.reads is None for at, keys in info.attention_layers.items()}
        sources = {
            at: at if keys.reads is None else keys.reads
            for at, keys in info.attention_layers.items()
        }
        self._caches = {at: (tables[source], *caches[source]) for at, source in sources.items()}
        self._layers = layers
        self._angles = {at: cpu_tensor(layer.angles) for at, layer in layers.items()}
        self._sinks = {
            at: None if layer.sinks is None else cpu_tensor(np.array(layer.sinks, np.float32))
            for at, layer in layers.items()
        }
        self._temperatures = {
            at: None if layer.temperatures is None else cpu_tensor(layer.temperatures)
            for at, layer in layers.items()
        }

    def __call__(
        self, layer: int, step: CpuStepTensors, qkv: Buffer, out: Buffer, tokens: int
    ) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        table, keys, values = self._caches[layer]
        how = self._layers[layer]
        self._executor.program.attend(
            step.attention[table],
            qkv.kernel,
            self._angles[layer],
            keys,
            values,
            out.kernel,
            self._num_heads,
            how.scale,
            window=how.window,
            chunk=how.chunk,
            soft_cap=how.soft_cap,
            sinks=self._sinks[layer],
            temperatures=self._temperatures[layer],
            stores=self._stores[layer],
        )
