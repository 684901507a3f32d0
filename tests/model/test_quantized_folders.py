"""Folders of quantized weights: what formats mean, bit for bit, and that models run on them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from transformers import LlamaConfig, Phi3Config, Qwen3Config, YoutuConfig

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.spec import describe
from pyengine.model.weights.float8 import Float8Activations, activations_of
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig
from tests.folders import edit_json
from tests.model import packing
from tests.model.llamas import make_model, make_runner, prompts
from tests.model.quantized import Pack, is_linear, make_twins
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "qwen3": (Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "phi3": (Phi3Config, {"pad_token_id": None}),
    "youtu": (
        YoutuConfig,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 48,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "tie_word_embeddings": False,
        },
    ),
}


def compressed(
    compressor: Any, args: dict[str, Any], rng: np.random.Generator, outputs: int, inputs: int
) -> tuple[dict[str, Any], Any]:
    """A layer as the compressed-tensors package compresses it, and as it decompresses that."""
    weights = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    weight = torch.from_numpy(rng.standard_normal((outputs, inputs)).astype(np.float32) * 0.2)
    group = {"tensor": weight.numel(), "channel": inputs}.get(weights.strategy, weights.group_size)
    groups = weight.reshape(-1, group)
    scale, zero = calculate_qparams(groups.min(1).values, groups.max(1).values, weights)
    scale, zero = (value.reshape(-1, max(1, inputs // group)) for value in (scale, zero))
    if weights.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    state = {"weight": weight, "weight_scale": scale.to(torch.float32), "weight_zero_point": zero}
    packed = compressor.compress(state, scheme)
    theirs = compressor.decompress(packed, scheme)["weight"].to(torch.float32)
    return packed, theirs.numpy()


def by_package(
    compressor: Any, kind: str, activations: dict[str, Any] | None = None, **weights: Any
) -> tuple[dict[str, Any], Pack]:
    """The quantization_config of a folder of compressed-tensors, and what packs its layers."""
    group = {
        "targets": ["Linear"],
        "weights": QuantizationArgs(**weights).model_dump(mode="json"),
        "input_activations": activations
        and QuantizationArgs(**activations).model_dump(mode="json"),
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return config, partial(compressed, compressor, weights)


PACKED, INT, FLOAT = (
    PackedQuantizationCompressor,
    IntQuantizationCompressor,
    FloatQuantizationCompressor,
)
GROUPS: dict[str, Any] = {"type": "int", "strategy": "group", "group_size": 16}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
ROWS8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}

FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "pack-quantized, 4 bits": by_package(PACKED, "pack-quantized", num_bits=4, **GROUPS),
    "pack-quantized, 8 bits": by_package(PACKED, "pack-quantized", num_bits=8, **GROUPS),
    "pack-quantized, 4 bits, zeros": by_package(
        PACKED, "pack-quantized", num_bits=4, symmetric=False, **GROUPS
    ),
    "pack-quantized, 8 bits, zeros, channels": by_package(
        PACKED, "pack-quantized", num_bits=8, symmetric=False, type="int", strategy="channel"
    ),
    "int-quantized, channels": by_package(
        INT, "int-quantized", num_bits=8, type="int", strategy="channel"
    ),
    "int-quantized, zeros": by_package(
        INT, "int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False
    ),
    "float-quantized, channels": by_package(
        FLOAT, "float-quantized", num_bits=8, type="float", strategy="channel"
    ),
    "float-quantized, tensor, W8A8": by_package(
        FLOAT, "float-quantized", ROWS8, num_bits=8, type="float", strategy="tensor"
    ),
    "awq": (AWQ, partial(packing.awq, group=16)),
    "gptq": (GPTQ, partial(packing.gptq, group=16)),
    "gptq, 8 bits": (GPTQ | {"bits": 8}, partial(packing.gptq, group=16, bits=8)),
    "gptq, desc_act": (GPTQ, partial(packing.gptq, group=16, desc_act=True)),
    "gptq v2": (
        GPTQ | {"checkpoint_format": "gptq_v2"},
        partial(packing.gptq, group=16, version=2),
    ),
    "gptq v2 that says it is v1": (
        GPTQ | {"sym": True, "checkpoint_format": "gptq"},
        partial(packing.gptq, group=16, version=2, symmetric=True),
    ),
    "gptq v1 that says it is v2": (
        GPTQ | {"sym": True, "checkpoint_format": "gptq_v2"},
        partial(packing.gptq, group=16, version=1, symmetric=True),
    ),
    "fp8 in blocks": (FP8, partial(packing.block_fp8, side=32)),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200}, packing.fbgemm_fp8),
}


def twins(tmp_path: Path, family: str, kind: str) -> tuple[Path, Path]:
    make, changes = FAMILIES[family]
    make_model(tmp_path / "model", make, **SIZES | changes)
    config, pack = FORMATS[kind]
    return make_twins(tmp_path / "model", config, pack)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_are_those_of_the_oracle(kind: str, ranks: int, tmp_path: Path) -> None:
    packed, dense = twins(tmp_path, "llama", kind)
    wanted = {n: t for n, t in load_file(dense / "model.safetensors").items() if is_linear(n)}
    spec = describe(EngineConfig(model=str(packed)))
    shares = [open_weights(spec, rank=rank, ranks=ranks) for rank in range(ranks)]
    for name, tensor in wanted.items():
        outputs, inputs = tensor.shape
        rows, columns = (
            [ask(weights, name).dequantized(np.dtype(np.float32)) for weights in shares]
            for ask in (
                lambda weights, name: weights.outputs({name: outputs}, inputs),  # noqa: B023
                lambda weights, name: weights.inputs(name, outputs, inputs),  # noqa: B023
            )
        )
        assert np.array_equal(np.concatenate(rows), tensor.numpy())
        assert np.array_equal(np.concatenate(columns, 1), tensor.numpy())
    assert len(wanted) == 14


@pytest.mark.parametrize(
    ("kind", "changes", "activations"),
    [
        ("float-quantized, channels", {}, None),
        ("float-quantized, tensor, W8A8", {}, Float8Activations()),
        ("fp8 in blocks", {}, Float8Activations()),
        ("fp8 in blocks", {"activation_scheme": None}, None),
        ("fp8 in blocks", {"dequantize": True}, None),
        ("fbgemm_fp8", {}, Float8Activations(1200.0)),
        ("fbgemm_fp8", {"activation_scale_ub": 3}, Float8Activations(3.0)),
    ],
)
def test_rows_become_8_bits_where_the_folder_means_them_to(
    kind: str, changes: dict[str, Any], activations: Float8Activations | None, tmp_path: Path
) -> None:
    """Whatever a rank cuts of a layer."""
    packed, _ = twins(tmp_path, "llama", kind)
    path = packed / "config.json"
    given = json.loads(path.read_text())
    given["quantization_config"] |= changes
    path.write_text(json.dumps(given))
    weights = open_weights(describe(EngineConfig(model=str(packed))), rank=1, ranks=2)
    layer = "model.layers.0.self_attn."
    for matrix in (
        weights.outputs({f"{layer}q_proj.weight": 64, f"{layer}k_proj.weight": 32}, 64),
        weights.inputs(f"{layer}o_proj.weight", 64, 64).reordered(np.arange(64)[::-1]),
    ):
        assert activations_of(matrix) == activations


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_model_says_what_its_dense_twin_says(kind: str, family: str, tmp_path: Path) -> None:
    packed, dense = twins(tmp_path, family, kind)
    ours, twin = make_runner(packed), make_runner(dense)
    in_torch = GreedyRunner(packed) if family == "llama" else None
    for prompt in prompts(3, longest=20):
        logits, expected = logits_after(ours, prompt, 1000), logits_after(twin, prompt, 1000)
        if kind.startswith(("float-quantized", "fp8", "fbgemm")) or "desc_act" in kind:
            assert torch.equal(logits, expected)  # they are dense in memory
        else:  # activations are rounded to 8 bits
            assert torch.cosine_similarity(logits, expected, dim=0) > 0.98
        if in_torch is not None:
            difference = logits_after(in_torch, prompt, 1000) - logits
            assert difference.abs().max() < 1e-4 * logits.std()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' are not supported; there are: awq, co"),
        ({"quant_method": "aqlm"}, "'aqlm' are not"),
        ({"quant_method": "hqq"}, "'hqq' are not"),
        ({"quant_method": "spqr"}, "'spqr' are not"),
        (GPTQ | {"bits": 3}, "'bits' of 3 are not supported; there are: 4, 8"),
        (AWQ | {"version": "gemv"}, "'version' of 'gemv'"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 0}, "a number above 0, not 0"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "'nvfp4-pack"),
    ],
)
def test_unsupported_scheme_is_named(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_model(tmp_path, LlamaConfig, **SIZES)
    edit_json(tmp_path / "config.json", quantization_config=config)
    with pytest.raises(ModelLoadError, match=message):
        open_weights(describe(EngineConfig(model=str(tmp_path))))


def test_groups_are_not_divided_among_ranks(tmp_path: Path) -> None:
    packed, _ = twins(tmp_path, "llama", "awq")
    spec = describe(EngineConfig(model=str(packed)))
    weights = open_weights(spec, rank=1, ranks=3)
    with pytest.raises(ConfigError, match="groups of 16 inputs"):
        weights.inputs("model.layers.0.self_attn.o_proj.weight", 64, 64)


def test_quantized_weights_are_not_quantized_again(tmp_path: Path) -> None:
    packed, _ = twins(tmp_path, "llama", "awq")
    with pytest.raises(ConfigError, match="quantized already"):
        open_weights(describe(EngineConfig(model=str(packed), quantization="int8")))
