"""From a configuration to a runner on a torch device: load, measure, divide the memory.

On a GPU the model is loaded with a cache for its largest step, which is computed once (and with it
kernels are compiled and libraries loaded); what all that took says how large the cache can be.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pyengine._core import StepHeader, StepLayout
from pyengine.distributed.group import Alone, Group
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import ModelInfo, Progress
from pyengine.model.spec import ITEM_BYTES, ModelSpec, describe, make_layout
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.selection import Capabilities, detect
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.attention.warm_up import ready
from pyengine.model.torch.draft import TorchDraft, pass_layout
from pyengine.model.torch.graphs import Capturer, Graphs
from pyengine.model.torch.layers import TorchParts
from pyengine.model.torch.memory import GRAPH_MIB, Measured, Memory, divide, stage
from pyengine.model.torch.model import TorchModel
from pyengine.model.torch.queue import CpuQueue, CudaCapturer, CudaQueue, DeviceQueue
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.weights.loader import open_weights
from pyengine.sampling import MAX_LOGPROBS
from pyengine.settings.config import EngineConfig

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn,
}


def start_on_cpu(
    config: EngineConfig,
    progress: Progress | None = None,
    *,
    attention: Callable[[AttentionSpec], AttentionBackend] | None = None,
    capturer: Capturer | None = None,
    queue: DeviceQueue | None = None,
    group: Group | None = None,
) -> TorchRunner:
    """The runner of ``config`` in torch on the CPU: everything but a GPU, for several ranks and
    for tests.

    Args:
        config: ``device`` is not looked at; a cache without a size is the mode's.
        progress: Called with (bytes loaded, bytes in all).
        attention: Makes what attends, of each model, unless torch.
        capturer: What stands in for CUDA graphs, if anything.
        queue: Where steps are queued, unless they are done at once.
        group: The ranks that share the model, if it is not alone; each of them calls this.

    Raises:
        ConfigError: A limit makes no sense.
        ModelLoadError: The model cannot be loaded; says why.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device, spec = torch.device("cpu"), describe(config)
    layout = make_layout(config, spec.info)
    make = attention or (lambda _: TorchAttention())
    backend = make(attention_spec(spec.info, layout, 1 if group is None else group.size))
    model = _load(spec, layout, device, backend, progress, group)
    queue = queue or CpuQueue()
    draft = None
    if spec.draft is not None:
        # Attention knows the step that it was planned for: each model has its own.
        passes = pass_layout(layout, spec.draft.info)
        drafts = make(attention_spec(spec.draft.info, passes))
        drafter = _load(spec.draft, passes, device, drafts, progress, None)
        draft = _draft(config, spec, layout, drafter, queue, capturer, _graph_bytes(config))
    return TorchRunner(
        model,
        replace(spec.info, num_parameters=model.num_parameters),
        layout,
        queue,
        num_blocks=spec.num_blocks,
        max_sequences=config.limits.max_sequences,
        graphs=None if capturer is None else Graphs(capturer, _graph_bytes(config)),
        draft=draft,
        one_size=group is not None,
        device=f"cpu, {spec.info.dtype}, torch",
        notes={"attention": backend.name},
    )


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
    # What another engine of this process had is not taken by others.
    gc.collect()
    torch.cuda.empty_cache()
    free_before, total = torch.cuda.mem_get_info(device)
    spec = describe(config)
    layout = make_layout(config, spec.info)
    longest = min(spec.info.max_context, config.limits.max_tokens_per_step)
    probe = replace(spec, num_blocks=-(-longest // config.block_size))
    group = group or Alone()
    asks = attention_spec(spec.info, layout, group.size)
    with stage(
        f"the weights and attention of {spec.info.name}",
        "Take a smaller model, or free the memory that others hold.",
        "model",
    ):
        backend, why, machine = ready(asks, device, detect(device), config.attention)
        model = _load(probe, layout, device, backend, progress, group)
        drafter = _load_drafter(config, probe, layout, device, machine, progress)
    # What loading needed on its way is not what steps need.
    torch.cuda.empty_cache()
    built = _Built(config, layout, model, CudaQueue(device), why, drafter)
    with stage(
        f"a step of {config.limits.max_tokens_per_step} tokens",
        "Lower 'max_tokens_per_step' or 'max_sequences'.",
        "max_tokens_per_step",
    ):
        runner = built.runner(probe)
        warm_up(runner, longest)
        if isinstance(runner.draft, TorchDraft):
            warm_up(runner.draft, longest)
    taken = free_before - torch.cuda.mem_get_info(device)[0]
    # The one that stays takes buffers of the same sizes: these are counted once.
    del runner
    # Every rank has its heads' part of each block.
    block_bytes = spec.info.block_bytes // group.size
    weights = model.num_parameters // group.size * ITEM_BYTES[spec.info.dtype]
    if drafter is not None and spec.draft is not None:
        weights += drafter.num_parameters * ITEM_BYTES[spec.draft.info.dtype]
    memory = divide(
        measured(total, free_before, taken, weights, probe.num_blocks * block_bytes),
        fraction=config.gpu_memory_fraction,
        graphs=_graph_bytes(config) if backend.captures else 0,
        block_bytes=block_bytes,
        block_size=spec.info.block_size,
        blocks=spec.num_blocks if config.num_blocks or config.kv_cache_mib else None,
    )
    blocks = group.least(memory.num_blocks)
    memory = replace(memory, num_blocks=blocks, cache=blocks * block_bytes)
    with stage("the KV cache", "Lower 'gpu_memory_fraction'.", "gpu_memory_fraction"):
        model.resize_cache(blocks)
        if drafter is not None:
            drafter.resize_cache(blocks)
    return built.runner(describe(config, blocks), memory)


def _load_drafter(
    config: EngineConfig,
    spec: ModelSpec,
    layout: StepLayout,
    device: torch.device,
    machine: Capabilities,
    progress: Progress | None,
) -> TorchModel | None:
    """The draft model on a GPU, if there is one: attention knows the step that it was planned for,
    so that it has its own.
    """
    if spec.draft is None:
        return None
    passes = pass_layout(layout, spec.draft.info)
    asks = attention_spec(spec.draft.info, passes)
    backend = ready(asks, device, machine, config.attention).backend
    draft = replace(spec.draft, num_blocks=spec.num_blocks)
    return _load(draft, passes, device, backend, progress, None)


def _draft(
    config: EngineConfig,
    spec: ModelSpec,
    layout: StepLayout,
    model: TorchModel,
    queue: DeviceQueue,
    capturer: Capturer | None,
    graph_bytes: int,
) -> TorchDraft:
    """The drafter of ``spec``'s draft model, which is loaded."""
    assert spec.draft is not None
    return TorchDraft(
        model,
        spec.draft.info,
        layout,
        queue,
        num_blocks=spec.num_blocks,
        vocab_size=spec.info.vocab_size,
        max_sequences=config.limits.max_sequences,
        max_draft=config.max_draft,
        graphs=Graphs(capturer, graph_bytes) if capturer is not None and graph_bytes else None,
    )


def measured(total: int, free: int, taken: int, weights: int, cache: int) -> Measured:
    """What of a GPU is whose, in bytes.

    Args:
        total: All that it has.
        free: What was free before the engine began.
        taken: What was taken since.
        weights: Of the model.
        cache: Of the KV cache that it had meanwhile.
    """
    weights = min(weights, taken)
    return Measured(total, total - free, weights, max(0, taken - weights - cache))


def attention_spec(info: ModelInfo, layout: StepLayout, ranks: int = 1) -> AttentionSpec:
    """What a rank's share of the model asks of attention."""
    lengths = {name: length for name, (_, _, length) in layout.fields().items()}
    return AttentionSpec(
        num_heads=info.num_heads // ranks,
        num_kv_heads=info.num_kv_heads // ranks,
        head_dim=info.head_dim,
        dtype=info.dtype,
        kv_dtype=str(TORCH_DTYPES[info.kv_cache_dtype]).removeprefix("torch."),
        block_size=info.block_size,
        max_rows=lengths["sample_rows"],
        max_tokens=lengths["token_ids"],
        max_pages=lengths["page_indices"],
        max_context=info.max_context,
    )


@dataclass(frozen=True)
class _Built:
    """What runners on a GPU have in common: the one that is measured, and the one that stays."""

    config: EngineConfig
    layout: StepLayout
    model: TorchModel
    queue: CudaQueue
    attention: str
    drafter: TorchModel | None

    def runner(self, spec: ModelSpec, memory: Memory | None = None) -> TorchRunner:
        """With the cache of ``spec``; graphs and figures only when the memory is divided."""
        notes = {"attention": self.attention}
        graphs = None
        if memory is not None:
            notes["memory"] = str(memory)
            graphs = Graphs(CudaCapturer(), memory.graphs) if memory.graphs else None
        name = torch.cuda.get_device_name(self.queue.device)
        draft = None
        if self.drafter is not None:
            # The passes of a small model have small graphs.
            most = 0 if memory is None else memory.graphs // 4
            capturer = CudaCapturer() if most else None
            draft = _draft(self.config, spec, self.layout, self.drafter, self.queue, capturer, most)
            if graphs is not None:
                graphs.limit -= most
        return TorchRunner(
            self.model,
            replace(spec.info, num_parameters=self.model.num_parameters),
            self.layout,
            self.queue,
            num_blocks=spec.num_blocks,
            max_sequences=self.config.limits.max_sequences,
            graphs=graphs,
            draft=draft,
            one_size=self.config.tensor_parallel > 1,
            device=f"cuda, {name}, {spec.info.dtype}",
            notes=notes,
        )


def warm_up(runner: TorchRunner, longest: int) -> None:
    """Compute the largest step that there may be, and small ones of each power of two: what
    kernels depend on the number of rows is compiled now, and not while others wait for tokens.

    Args:
        runner: With blocks for ``longest`` tokens, which all rows share: what is stored is rubbish.
        longest: Tokens of the longest row.
    """
    fields = runner.layout.fields()
    most_rows, most_tokens = fields["sample_rows"][2], fields["token_ids"][2]
    most = min(most_tokens, most_rows * longest)
    lengths = [longest] * (most // longest) + [most % longest] * (most % longest > 0)
    _compute(runner, lengths)
    for power in range(min(most_rows, most_tokens).bit_length()):
        _compute(runner, [1] * (1 << power))
    for logprobs in (False, True):
        _compute(runner, [1], penalties=1, logprobs=logprobs)


def _compute(
    runner: TorchRunner, lengths: list[int], *, penalties: int = 0, logprobs: bool = False
) -> None:
    """One step of rows of so many tokens, one of them sampled."""
    buffers = runner.buffers()
    logits = min(runner.layout.fields()["logit_row"][2], sum(lengths))
    write_step(buffers, lengths, runner.info.block_size, logits)
    buffers.num_penalties = penalties
    buffers.header[StepHeader.MAX_LOGPROBS_AND_ONE] = MAX_LOGPROBS + 1 if logprobs else 0
    # Of the first row, one that changes nothing.
    buffers.penalty_start[: logits + 1] = [0, *[penalties] * logits]
    buffers.penalty_token[:penalties], buffers.penalty_factor[:penalties] = 0, 1.0
    buffers.penalty_add[:penalties] = 0.0
    step = runner.launch(buffers)
    step.sample()
    step.wait()


def write_step(buffers: StepBuffers, lengths: Sequence[int], block_size: int, logits: int) -> None:
    """Plan a step of rows of so many tokens from position 0 on, all in the blocks from 0 on.

    One of them samples, ``logits`` rows' worth of drafts counted in.
    """
    tokens = sum(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pages = [np.arange(-(-length // block_size)) for length in lengths]
    positions = np.concatenate([np.arange(length) for length in lengths])
    indices = np.concatenate(pages)
    rows = len(lengths)
    buffers.token_ids[:tokens] = 0
    buffers.positions[:tokens] = buffers.slot_mapping[:tokens] = positions
    buffers.query_start[: rows + 1] = starts
    buffers.kv_length[:rows] = lengths
    buffers.page_indptr[: rows + 1] = np.concatenate([[0], np.cumsum([len(p) for p in pages])])
    buffers.page_indices[: len(indices)] = indices
    buffers.row_sequence[:rows] = buffers.sample_rows[:1] = buffers.sample_sequence[:1] = 0
    buffers.temperature[0], buffers.top_p[0], buffers.min_p[0] = 1.0, 0.9, 0.0
    buffers.top_k[0] = buffers.seed[0] = buffers.sample_position[0] = 0
    buffers.logit_start[:2] = 0, 1
    buffers.logit_row[:logits] = 0
    buffers.logit_token[:logits] = np.arange(logits) % tokens
    buffers.mask_row[:logits] = -1
    buffers.header[:] = 0
    buffers.num_rows, buffers.num_tokens, buffers.num_pages = rows, tokens, len(indices)
    buffers.num_decode_rows = rows if tokens == rows else 0
    buffers.max_query_length = buffers.max_kv_length = max(lengths)
    buffers.num_sampled, buffers.num_logits = 1, logits


def _load(
    spec: ModelSpec,
    layout: StepLayout,
    device: torch.device,
    backend: AttentionBackend,
    progress: Progress | None,
    group: Group | None,
) -> TorchModel:
    fields, info = layout.fields(), spec.info
    parts = TorchParts(
        device,
        TORCH_DTYPES[info.dtype],
        TORCH_DTYPES[info.kv_cache_dtype],
        backend,
        fields["token_ids"][2],
        fields["logit_row"][2],
        spec.num_blocks,
        group,
    )
    rank, ranks = parts.group.rank, parts.ranks
    with open_weights(spec, device, rank=rank, ranks=ranks, progress=progress) as weights:
        return TorchModel(spec, layout, parts, weights)


def _graph_bytes(config: EngineConfig) -> int:
    mebibytes = GRAPH_MIB if config.graph_memory_mib is None else config.graph_memory_mib
    return mebibytes << 20
