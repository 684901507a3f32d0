"""Models loaded on a torch device, and the runners made of them."""

from dataclasses import dataclass, replace

import torch

from pyengine._core import StepLayout
from pyengine.distributed.group import Group
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import ModelSpec
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device.graphs import Graphs
from pyengine.model.torch.device.memory import GRAPH_MIB
from pyengine.model.torch.device.queue import DeviceQueue
from pyengine.model.torch.draft import TorchDraft
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.model import TorchModel
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class LoadedModels:
    """The models of a configuration on a device, of which runners are made.

    Attributes:
        config: The configuration.
        layout: The layout of the step buffers.
        queue: Where all of them work.
        model: The model.
        draft: The draft model, if there is one.
    """

    config: EngineConfig
    layout: StepLayout
    queue: DeviceQueue
    model: TorchModel
    draft: TorchModel | None

    def runner(
        self,
        spec: ModelSpec,
        device: str,
        notes: dict[str, str],
        graphs: Graphs | None = None,
        draft_graphs: Graphs | None = None,
    ) -> TorchRunner:
        """A runner with the cache that the models have now.

        Args:
            spec: What was loaded, and the blocks of its cache.
            device: The device in words.
            notes: What else was settled.
            graphs: Keeps the graphs of the model.
            draft_graphs: Keeps those of the draft model.
        """
        limits, drafter = self.config.limits, None
        if self.draft is not None and spec.draft is not None:
            drafter = TorchDraft(
                self.draft,
                spec.draft,
                self.layout,
                self.queue,
                vocab_size=spec.info.vocab_size,
                max_sequences=limits.max_sequences,
                max_draft=self.config.max_draft,
                graphs=draft_graphs,
            )
        return TorchRunner(
            self.model,
            replace(spec.info, num_parameters=self.model.num_parameters),
            self.layout,
            self.queue,
            num_blocks=spec.num_blocks,
            max_sequences=limits.max_sequences,
            graphs=graphs,
            draft=drafter,
            expert_layers=self.model.expert_layers,
            device=device,
            notes=notes | spec.notes,
        )


def load_model(
    spec: ModelSpec,
    layout: StepLayout,
    device: torch.device,
    backend: AttentionBackend,
    progress: Progress | None = None,
    group: Group | None = None,
) -> TorchModel:
    """Load a model, or the share of it that this rank has.

    Args:
        spec: The model and its cache.
        layout: The layout of its steps.
        device: Where it goes.
        backend: Attends.
        progress: Called with (bytes loaded, bytes in all).
        group: The ranks that share the model, if it is not alone.

    Raises:
        ModelLoadError: It cannot be loaded; says why.
    """
    fields, info = layout.fields(), spec.info
    parts = TorchParts(
        device,
        TORCH_DTYPES[info.dtype],
        TORCH_DTYPES[info.kv_cache_dtype],
        backend,
        fields["token_ids"][2],
        fields["logit_row"][2],
        spec.num_blocks + spec.spare_pages,
        group,
        expert_parallel=spec.expert_parallel,
    )
    rank, ranks = parts.group.rank, parts.ranks
    with open_weights(spec, rank=rank, ranks=ranks, progress=progress) as weights:
        return TorchModel(spec, layout, parts, weights)


def attention_specs(
    info: ModelInfo, layout: StepLayout, ranks: int = 1
) -> tuple[AttentionSpec, ...]:
    """The attention spec of each kind of layers, as a rank has its share of them."""
    lengths = {name: length for name, (_, _, length) in layout.fields().items()}
    kinds = (
        AttentionSpec(
            num_heads=info.num_heads // ranks,
            num_kv_heads=keys.kv_heads // ranks,
            head_dim=keys.head_dim,
            dtype=info.dtype,
            kv_dtype=str(TORCH_DTYPES[info.kv_cache_dtype]).removeprefix("torch."),
            block_size=info.block_size,
            max_rows=lengths["sample_rows"],
            max_tokens=lengths["token_ids"],
            max_pages=lengths["page_indices"],
            max_context=info.max_context,
            sinks=info.attention_sinks,
            chunks=keys.chunked,
        )
        for keys in info.attention_layers.values()
    )
    return tuple(dict.fromkeys(kinds))


def graph_bytes(config: EngineConfig) -> int:
    """The most memory that CUDA graphs may take."""
    mebibytes = GRAPH_MIB if config.graph_memory_mib is None else config.graph_memory_mib
    return mebibytes << 20
