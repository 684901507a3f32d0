"""A cache of 8-bit floats in units of a checkpoint's scales: which those are, and attention."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.cache_scales import cache_scales
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.attention.triton import TritonAttention
from tests.folders import edit_json
from tests.model.fake_flashinfer import Device
from tests.model.llamas import make_llama, prompts
from tests.model.paged_steps import Step, expected, fill, layer_of, layout_of, random_table, spec_of
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

FLOAT8 = torch.float8_e4m3fn
CPU, ATTENTION = torch.device("cpu"), "model.layers.1.self_attn."
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


class Stored:
    """The scales of a checkpoint, by name."""

    def __init__(self, **scales: float) -> None:
        self.scales = {f"{ATTENTION}{name.replace('__', '.')}": of for name, of in scales.items()}

    def scale(self, names: Sequence[str]) -> float | None:
        return next((self.scales[name] for name in names if name in self.scales), None)


def scales_of(config: dict[str, Any], **stored: float) -> tuple[float, float]:
    weights: Any = Stored(**stored)
    return cache_scales(weights, {"quantization_config": config}, ATTENTION)


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ({"k_scale": 0.5, "v_scale": 2.0}, (0.5, 2.0)),
        ({"k_scale": 0.5, "v_scale": 2.0, "q_scale": 3.0}, (0.5, 2.0)),
        ({"attn__k_scale": 0.5, "attn__v_scale": 2.0}, (0.5, 2.0)),
        ({"k_proj__k_scale": 0.5, "v_proj__v_scale": 2.0}, (0.5, 2.0)),
        ({"k_proj__output_scale": 0.5, "v_proj__output_scale": 2.0}, (0.5, 2.0)),
        ({"kv_scale": 0.25}, (0.25, 0.25)),
        ({}, (1.0, 1.0)),
    ],
    ids=str,
)
def test_scales_go_by_several_names(stored: dict[str, float], found: tuple[float, float]) -> None:
    assert scales_of({}, **stored) == found
    if stored:
        assert scales_of({"kv_cache_scheme": SCHEME}, **stored) == found


@pytest.mark.parametrize(
    ("change", "stored", "message"),
    [
        ({"strategy": "attn_head"}, {"kv_scale": 1.0}, "'strategy' of 'attn_head'"),
        ({"dynamic": True}, {"kv_scale": 1.0}, "'dynamic' of True"),
        ({"num_bits": 4}, {"kv_scale": 1.0}, "'num_bits' of 4"),
        ({"type": "int"}, {"kv_scale": 1.0}, "'type' of 'int'"),
        ({}, {"k_scale": 1.0}, r"lack .*k_scale"),
        ({}, {}, r"lack .*k_scale"),
    ],
    ids=str,
)
def test_tensor_that_is_no_scale_of_a_layer_is_refused(
    change: dict[str, Any], stored: dict[str, float], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        scales_of({"kv_cache_scheme": SCHEME | change}, **stored)


def scaled(folder: Path, values: float, **scales: torch.Tensor) -> None:
    """Change a folder's weights: values become ``values`` times as large; and add ``scales``."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in range(2):
        start = f"model.layers.{layer}.self_attn."
        tensors[f"{start}v_proj.weight"] *= values
        tensors[f"{start}o_proj.weight"] /= values
        tensors |= {f"{start}{name}": scale.clone() for name, scale in scales.items()}
    save_file(tensors, path)


def test_a_model_has_the_logits_of_one_whose_cache_is_exact(tmp_path: Path) -> None:
    """Its values are far beyond the largest 8-bit float; its keys far below the smallest."""
    make_llama(tmp_path, num_hidden_layers=2, initializer_range=0.12)
    scaled(tmp_path, 1e6, k_scale=torch.tensor(0.01), v_scale=torch.tensor([2e4]))
    exact = GreedyRunner(tmp_path)
    ours = GreedyRunner(tmp_path, kv_dtype=FLOAT8)
    for prompt in prompts(3):
        expected, logits = (logits_after(each, prompt, 1000) for each in (exact, ours))
        assert torch.cosine_similarity(logits, expected, dim=0) > 0.98


def test_a_scale_for_each_head_is_refused(tmp_path: Path) -> None:
    make_llama(tmp_path, num_hidden_layers=2)
    scaled(tmp_path, 1.0, k_scale=torch.ones(2), v_scale=torch.ones(2))
    with pytest.raises(ModelLoadError, match=r"k_scale' in .* is not one number above 0"):
        GreedyRunner(tmp_path, kv_dtype=FLOAT8)
    GreedyRunner(tmp_path)  # which asks for none


def test_a_scheme_without_scales_is_refused(tmp_path: Path) -> None:
    make_llama(tmp_path, num_hidden_layers=2)
    given = {"quant_method": "compressed-tensors", "format": "dense", "kv_cache_scheme": SCHEME}
    edit_json(tmp_path / "config.json", quantization_config=given)
    with pytest.raises(ModelLoadError, match="take another 'kv_cache_dtype'"):
        GreedyRunner(tmp_path, kv_dtype=FLOAT8)
    GreedyRunner(tmp_path)


@pytest.mark.parametrize("name", ["torch", "triton", "flashinfer"])
@pytest.mark.parametrize("how", [{}, {"window": 5}, {"soft_cap": 1.5}], ids=str)
def test_attention_multiplies_by_the_scales(name: str, how: dict[str, Any]) -> None:
    if name == "triton":
        pytest.importorskip("triton")
    dtype = torch.bfloat16 if name == "flashinfer" else torch.float32
    spec = spec_of(dtype=str(dtype).removeprefix("torch."), kv_dtype="float8_e4m3fn")
    step: Any = Step(StepBuffers(layout_of(spec)))
    lengths, counts = [9, 6, 20], [1, 5, 2]
    fill(step.host, lengths, counts, random_table(np.random.default_rng(5), lengths, 4, 40))
    step.take()
    generator = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(40, 4, 2, 16, generator=generator).to(FLOAT8) for _ in range(2))
    queries = torch.randn(8, 4, 16, generator=generator).to(dtype)
    scales: dict[str, Any] = {"key_scale": 0.375, "value_scale": 24.0}
    device = Device()
    backends: dict[str, Any] = {
        "torch": lambda: TorchAttention(),
        "triton": lambda: TritonAttention(spec, CPU, processors=2),
        "flashinfer": lambda: FlashInferAttention(spec, CPU, device.library()),
    }
    backend, out = backends[name](), torch.zeros_like(queries)
    backend.plan(step, backend.variant(step), 3, 8, captured=False)
    backend.attend(step, queries, keys, values, out, 8, layer_of(**how, **scales))
    device.finish()
    arrays = {
        field: getattr(step.host, field)
        for field in ("query_start", "kv_length", "page_indptr", "page_indices")
    }
    right = expected(arrays, 3, queries, keys, values, **scales, **how)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out, right, rtol=tolerance, atol=tolerance * 24)
