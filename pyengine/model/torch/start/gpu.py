"""The start on a GPU: load, measure, divide the memory.

The models are loaded with a cache for their largest step, which is computed once and makes torch
compile kernels and load libraries; smaller steps reach the kernels that it does not. The memory
that all this took determines the size of the cache. Then graphs of decodes are captured.
"""

import gc
from dataclasses import replace

import torch

from pyengine.distributed.group import Alone, Group
from pyengine.model.cache_groups import tables_of
from pyengine.model.progress import Progress
from pyengine.model.spec import ModelSpec, describe, make_layout
from pyengine.model.torch.attention.by_kind import ready_by_kind
from pyengine.model.torch.attention.selection import detect
from pyengine.model.torch.device.graphs import Graphs
from pyengine.model.torch.device.memory import Measured, Memory, divide, stage
from pyengine.model.torch.device.queue import CudaCapturer, CudaQueue
from pyengine.model.torch.draft import TorchDraft, pass_layout
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.loading import (
    LoadedModels,
    attention_specs,
    graph_bytes,
    load_model,
)
from pyengine.model.torch.start.warm_up import capture_graphs, warm_up
from pyengine.settings.config import EngineConfig


def start_on_gpu(
    config: EngineConfig, progress: Progress | None = None, *, group: Group | None = None
) -> TorchRunner:
    """The runner of ``config`` on the current GPU.

    Args:
        config: Its device is ``cuda``.
        progress: Called with (bytes loaded, bytes in all).
        group: The ranks that share the model, if it is not alone; each of them calls this, and
            their caches get as many blocks as there is room for on all of their GPUs.

    Raises:
        ConfigError: A limit makes no sense, or the GPU's memory is not enough: says for what, and
            which setting to change.
        ModelLoadError: The model cannot be loaded; says why.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    # Memory of an earlier engine in this process does not count as taken by others.
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    spec, group = describe(config), group or Alone()
    longest = min(spec.info.max_context, config.limits.max_tokens_per_step)
    # All tables have all of its pages: its blocks are computed at once.
    blocks = -(-longest // config.block_size)
    pages = blocks * tables_of(spec.info.cache_groups) + spec.info.state_pages
    probe = replace(spec, num_blocks=pages)
    models, chosen = _load(config, probe, device, group, progress)
    name = f"cuda, {torch.cuda.get_device_name(device)}, {spec.info.dtype}"
    with stage(
        f"a step of {config.limits.max_tokens_per_step} tokens",
        "Lower 'max_tokens_per_step' or 'max_sequences'.",
        "max_tokens_per_step",
    ):
        runner = models.runner(probe, name, {})
        warm_up(runner, longest)
        if isinstance(runner.draft, TorchDraft):
            warm_up(runner.draft, longest)
    taken = free - torch.cuda.mem_get_info(device)[0]
    # The runner that stays takes buffers of the same sizes: they are counted once.
    del runner
    weights = sum(each.weight_bytes for each in (models.model, models.draft) if each is not None)
    cache = probe.num_blocks * (spec.info.block_bytes // group.size)
    memory = _divide(models, spec, group, measured(total, free, taken, weights, cache))
    with stage("the KV cache", "Lower 'gpu_memory_fraction'.", "gpu_memory_fraction"):
        models.model.resize_cache(memory.num_blocks)
        if models.draft is not None and spec.draft is not None:
            models.draft.resize_cache(memory.num_blocks + spec.draft.spare_pages)
    runner = models.runner(
        describe(config, memory.num_blocks),
        name,
        chosen | {"memory": str(memory)},
        *_graphs(memory.graphs, group, drafts=models.draft is not None),
    )
    for each in (runner, runner.draft):
        if isinstance(each, TorchRunner):
            capture_graphs(each)
    runner.count_experts_anew()
    group.limit(config.step_timeout_s)
    return runner


def measured(total: int, free: int, taken: int, weights: int, cache: int) -> Measured:
    """How a GPU's memory was found divided, in bytes.

    Args:
        total: All that it has.
        free: What was free before the engine began.
        taken: What was taken since.
        weights: The bytes of the models' weights.
        cache: The bytes of the KV cache that the models had meanwhile.
    """
    weights = min(weights, taken)
    return Measured(total, total - free, weights, max(0, taken - weights - cache))


def _load(
    config: EngineConfig,
    spec: ModelSpec,
    device: torch.device,
    group: Group,
    progress: Progress | None,
) -> tuple[LoadedModels, dict[str, str]]:
    """Load the models with the cache of ``spec``; and a note of what attends."""
    layout = make_layout(config, spec.info)
    asked, draft = attention_specs(spec.info, layout, group.size), None
    with stage(
        f"the weights and attention of {spec.info.name}",
        "Take a smaller model, or free the memory that others hold.",
        "model",
    ):
        backend, why, machine = ready_by_kind(asked, device, detect(device), config.attention)
        model = load_model(spec, layout, device, backend, progress, group)
        if spec.draft is not None:
            # Attention knows the step that it was planned for: each model has its own.
            passes = pass_layout(layout, spec.draft.info)
            asked = attention_specs(spec.draft.info, passes)
            draft_backend = ready_by_kind(asked, device, machine, config.attention).backend
            draft_spec = replace(spec.draft, num_blocks=spec.num_blocks)
            draft = load_model(draft_spec, passes, device, draft_backend, progress)
    # Memory that only loading needed is not needed by steps.
    torch.cuda.empty_cache()
    return LoadedModels(config, layout, CudaQueue(device), model, draft), {"attention": why}


def _divide(models: LoadedModels, spec: ModelSpec, group: Group, found: Measured) -> Memory:
    """The division of the memory that was ``found``, with as many blocks as every rank can have."""
    config = models.config
    # Every rank has its heads' part of each block.
    block_bytes = spec.info.block_bytes // group.size
    memory = divide(
        found,
        fraction=config.gpu_memory_fraction,
        graphs=graph_bytes(config) if models.model.backend.captures else 0,
        block_bytes=block_bytes,
        block_size=spec.info.block_size,
        blocks=spec.num_blocks if config.num_blocks or config.kv_cache_mib else None,
    )
    blocks = group.least(memory.num_blocks)
    return replace(memory, num_blocks=blocks, cache=blocks * block_bytes)


def _graphs(limit: int, group: Group, *, drafts: bool) -> tuple[Graphs | None, Graphs | None]:
    """The graphs of the model and of the draft model, in ``limit`` bytes together."""
    # The passes of a small model have small graphs.
    small = limit // 4 if drafts else 0

    def most(size: int) -> int:
        return -group.least(-size)

    return (
        Graphs(CudaCapturer(), limit - small, most) if limit else None,
        Graphs(CudaCapturer(), small) if small else None,
    )
