"""What a runner compiles at its start, and what steps of every kind ask for afterwards: a program,
for Triton is not to interpret here. Nothing is computed; a launch is noted by what Triton would
compile it for.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import Gemma4TextConfig, Llama4TextConfig, LlamaConfig, MixtralConfig
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from pyengine.kernels import feed
from pyengine.kernels.sampling import greedy, penalties, top_logprobs, verify
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.attention.variants import SHORT_QUERIES
from pyengine.model.torch.device.ops import KERNELS
from pyengine.model.torch.layers import packed_weights, parts
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.torch.start.warm_up import compute, rehearse, warm_up
from pyengine.model.weights.float8 import activations_of, step_of
from pyengine.settings.config import EngineConfig
from tests.kernels.machine_code import TARGET
from tests.model import packing
from tests.model.quantized import Pack, make_twins
from tests.models import random_model
from tests.torch_devices import OverlappingQueue

ROWS, TOKENS, LONGEST = 24, 512, 512
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "head_dim": 16, "intermediate_size": 64, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 1, "max_position_embeddings": 2048,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model whose layers ask for kernels of its own.

    Attributes:
        config: What its config.json has besides.
        pack: Quantizes its layers in its files.
        settings: It is served with.
        kind: Of what configuration of transformers it is.
        shape: What is set there besides.
    """

    config: dict[str, Any] = field(default_factory=dict)
    pack: Pack | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    kind: Any = LlamaConfig
    shape: dict[str, Any] = field(default_factory=dict)


MIXTRAL: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2}

MODELS = {
    "plain": Model(),
    "windows": Model({"architectures": ["MistralForCausalLM"], "sliding_window": 64}),
    # Layers of two kinds, each with a backend of its own.
    "chunks": Model(
        kind=Llama4TextConfig,
        shape={
            "num_hidden_layers": 2,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 64,
            "moe_layers": [],
            "intermediate_size_mlp": 64,
            "num_local_experts": 1,
        },
    ),
    "heads by kind": Model(
        kind=Gemma4TextConfig,
        shape={
            "num_hidden_layers": 2,
            "global_head_dim": 32,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "num_global_key_value_heads": 4,
            "attention_k_eq_v": True,
        },
    ),
    "experts": Model(kind=MixtralConfig, shape=MIXTRAL),
    "experts in int4": Model(settings={"quantization": "int4"}, kind=MixtralConfig, shape=MIXTRAL),
    "experts in float8": Model(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        partial(packing.block_fp8, side=128),
        kind=MixtralConfig,
        shape=MIXTRAL,
    ),
    "float8 in blocks": Model(
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        partial(packing.block_fp8, side=128),
    ),
    # With drafts there may be more logits than rows.
    "int4": Model(settings={"quantization": "int4", "speculation": ("ngram",)}),
}


@contextmanager
def noted(found: set[str]) -> Iterator[None]:
    """Launches are noted in ``found``, and not done."""
    backend = make_backend(TARGET)
    binders: dict[Any, Any] = {}

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if self not in binders:
            binders[self] = create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = binders[self](*args, **kwargs, debug=False)
        constants = {param.name: bound[param.name] for param in self.params if param.is_constexpr}
        found.add(f"{self.__name__} {specialization} {options} {constants}")

    with patch.object(JITFunction, "run", note):
        yield


def like_a_gpu() -> list[Any]:
    """Patches by which a runner on the CPU launches the kernels of a GPU."""
    scratch = sampling.SamplingScratch.for_rows(ROWS * 9, 512, "cpu")
    kernels = [
        patch.object(module, f"{name}_reference", getattr(module, name))
        for module, name in (
            (penalties, "apply_penalties"), (penalties, "restore"), (feed, "feed"),
            (greedy, "greedy"), (top_logprobs, "top_logprobs"), (verify, "verify"),
        )
    ]  # fmt: skip
    sample = partial(sampling.sample, scratch=scratch)
    kernels.append(patch.object(sampling_reference, "sample", sample))
    kernels.append(patch.object(packed_weights, "has_products", lambda *_, **__: True))
    return kernels + [
        patch.object(parts, name, as_there)
        for name, as_there in (
            ("torch_ops", lambda _device: KERNELS),
            ("is_packed", lambda *_: False),
            ("DTYPES", {}),  # experts are grouped products
            ("is_blocks", lambda weight, *_: activations_of(weight) and step_of(weight) > 0),
        )
    ]


def start(folder: Path, settings: dict[str, Any]) -> TorchRunner:
    config = EngineConfig(
        model=str(folder), device="cpu", max_sequences=ROWS, max_tokens_per_step=TOKENS,
        num_blocks=512, max_context=LONGEST, **settings,
    )  # fmt: skip
    return start_on_cpu(
        config,
        attention=lambda spec: TritonAttention(spec, torch.device("cpu"), processors=132),
        queue=OverlappingQueue(),
    )


def serve(runner: TorchRunner) -> None:
    """Steps of every number of rows and many of tokens, by every way to attend and to sample."""
    random = np.random.default_rng(0)
    for rows in (1, 2, 3, 5, 8, 13, 21, ROWS):
        compute(runner, [1] * rows)
        compute(runner, [1] * rows, greedy=True)
        compute(runner, [9] * rows)  # as with drafts: logits of every token
        compute(runner, [1] * rows, penalties=2)
        compute(runner, [1] * rows, penalties=1, logprobs=True)
        compute(runner, [1] * rows, logprobs=True)
        variants = ("prompts", "ragged", "ragged_cascade")[: 2 + (rows > 1)]
        few = range(rows, min(TOKENS, 18 * rows) + 1, max(1, rows // 4))
        for tokens in (*few, *random.integers(rows, TOKENS + 1, 4).tolist()):
            for variant in variants[tokens <= SHORT_QUERIES :]:
                rehearse(runner, variant, rows, tokens, LONGEST)
        if rows > 1:
            rehearse(runner, "decode_cascade", rows, rows, LONGEST)


def main() -> None:
    for name, model in MODELS.items():
        started: set[str] = set()
        served: set[str] = set()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            folder.mkdir()
            random_model(folder, model.kind, **SHAPE | model.shape)
            if model.pack is not None:
                folder = make_twins(folder, model.config["quantization_config"], model.pack)[0]
            config = folder / "config.json"
            config.write_text(json.dumps(json.loads(config.read_text()) | model.config))
            patches = like_a_gpu()
            for each in patches:
                each.start()
            runner = start(folder, model.settings)
            with noted(started):
                warm_up(runner, LONGEST)
            with noted(served):
                serve(runner)
            runner.close()
            for each in patches:
                each.stop()
        missing, unneeded = sorted(served - started), sorted(started - served)
        found = {"model": name, "started": len(started), "missing": missing, "unneeded": unneeded}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
