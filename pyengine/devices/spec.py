"""The declaration of a device: everything that the engine asks about it before it starts."""

from collections.abc import Callable
from dataclasses import dataclass

# Settings that only a GPU of torch's has.
GPU_SETTINGS = ("kv_cache_dtype", "attention", "gpu_memory_fraction", "graph_memory_mib")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A device that ``EngineConfig.device`` may name.

    Code is named as ``module:attribute`` and imported when it is needed, so that reading a
    configuration imports no device.

    Attributes:
        name: The name in the configuration, and the first word of its runners' ``device``.
        start: A function of an :class:`EngineConfig` and a ``Progress`` or None that returns a
            :class:`pyengine.model.runner.ModelRunner` with its weights loaded.
        ranks: A :class:`pyengine.distributed.start.RankStart`, by which several processes share a
            model; None refuses ``tensor_parallel``.
        missing: Says why this machine has no such device, and what to do; None where it has one.
        memory_bytes: Bytes of memory that the device has apart from the host's, 0 if unknown. The
            KV cache then takes what is left of it. None where there is only the host's memory.
        dtype: The type of weights and computation that ``auto`` is.
        dtypes: All types that it computes in.
        lacks: Settings of :class:`EngineConfig` that it refuses.
        computes: False where it has no weights and generates tokens at random.
        prefill_beside_decodes: The default of that setting; 0 is the whole budget.
        host_stages: Stages of a step in which it computes on the scheduler's thread.
    """

    name: str
    start: str
    ranks: str | None = None
    missing: Callable[[], str | None] = lambda: None
    memory_bytes: Callable[[], int] | None = None
    dtype: str = "float32"
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    lacks: tuple[str, ...] = GPU_SETTINGS
    computes: bool = True
    prefill_beside_decodes: int = 0
    host_stages: tuple[str, ...] = ()
