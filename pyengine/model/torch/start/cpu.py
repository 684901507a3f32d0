"""The start of torch on the CPU: everything but a GPU, for several ranks and for tests."""

from collections.abc import Callable

import torch

from pyengine.distributed.group import Group
from pyengine.model.progress import Progress
from pyengine.model.spec import describe, make_layout
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.by_kind import joined
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.device.graphs import Capturer, Graphs
from pyengine.model.torch.device.queue import CpuQueue, DeviceQueue
from pyengine.model.torch.draft import pass_layout
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.loading import (
    LoadedModels,
    attention_specs,
    graph_bytes,
    load_model,
)
from pyengine.settings.config import EngineConfig


def start_on_cpu(
    config: EngineConfig,
    progress: Progress | None = None,
    *,
    attention: Callable[[AttentionSpec], AttentionBackend] | None = None,
    capturer: Capturer | None = None,
    queue: DeviceQueue | None = None,
    group: Group | None = None,
) -> TorchRunner:
    """The runner of ``config`` in torch on the CPU.

    Args:
        config: ``device`` is not looked at; a cache without a size is the mode's.
        progress: Called with (bytes loaded, bytes in all).
        attention: Makes the attention backend of each kind of layers; None is torch's.
        capturer: Stands in for CUDA graphs; None is without graphs.
        queue: Where steps are queued; None computes them at once.
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
    specs = attention_specs(spec.info, layout, 1 if group is None else group.size)
    backend = joined(specs, [make(each) for each in specs])
    model = load_model(spec, layout, device, backend, progress, group)
    draft = None
    if spec.draft is not None:
        # Attention knows the step that it was planned for: each model has its own.
        passes = pass_layout(layout, spec.draft.info)
        specs = attention_specs(spec.draft.info, passes)
        draft_backend = joined(specs, [make(each) for each in specs])
        draft = load_model(spec.draft, passes, device, draft_backend, progress)
    models = LoadedModels(config, layout, queue or CpuQueue(), model, draft)
    limit, graphs, draft_graphs = graph_bytes(config), None, None
    if capturer is not None:
        graphs = Graphs(capturer, limit)
        draft_graphs = Graphs(capturer, limit) if limit else None
    name, notes = f"cpu, {spec.info.dtype}, torch", {"attention": backend.name}
    if group is not None:
        group.limit(config.step_timeout_s)
    return models.runner(spec, name, notes, graphs, draft_graphs)
