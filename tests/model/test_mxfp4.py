"""gpt-oss as it is published: experts in MXFP4."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.cpu.linear import pack
from pyengine.model.spec import describe
from pyengine.model.weights.loader import open_weights
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.microscaled import NO_NUMBER, Microscaled
from pyengine.settings.config import EngineConfig
from tests.model.families import make_family
from tests.model.llamas import Loop, make_runner, prompts
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
EXPERTS = ("gate_up_proj", "down_proj")


def packed(rng: np.random.Generator, *shape: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Random blocks and scales of weights [experts, out, in], and the weights that they mean."""
    codes = rng.integers(0, 16, shape, np.uint8)
    exponents = rng.integers(122, 126, (*shape[:2], shape[2] // 32), np.uint8)
    signs: NDArray[np.float32] = np.where(codes & 8, np.float32(-1), np.float32(1))
    scales = np.exp2(exponents.astype(np.float32) - 127).repeat(32, axis=2)
    pairs = codes.reshape(*shape[:2], -1, 16, 2)
    tensors = {
        "blocks": torch.from_numpy(pairs[..., 0] | pairs[..., 1] << 4),
        "scales": torch.from_numpy(exponents),
    }
    return tensors, torch.from_numpy(signs * NUMBERS[codes & 7] * scales)


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """A small gpt-oss with experts in MXFP4, and a dense one of the same numbers."""
    make_family(tmp_path / "model", "gpt-oss", intermediate_size=64)
    rng = np.random.default_rng(3)
    dense = load_file(tmp_path / "model/model.safetensors")
    quantized = dict(dense)
    for name in [name for name in dense if name.endswith(EXPERTS)]:
        experts, inputs, outputs = quantized.pop(name).shape
        tensors, weights = packed(rng, experts, outputs, inputs)
        dense[name] = weights.transpose(1, 2).contiguous()
        quantized |= {f"{name}_{kind}": tensor for kind, tensor in tensors.items()}
    places = tmp_path / "packed", tmp_path / "dense"
    for place, tensors in zip(places, (quantized, dense), strict=True):
        shutil.copytree(tmp_path / "model", place)
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
    path = places[0] / "config.json"
    method = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    path.write_text(json.dumps(json.loads(path.read_text()) | method))
    return places


@pytest.mark.parametrize("ranks", [1, 2])
def test_its_numbers_are_those_that_are_meant(twins: tuple[Path, Path], ranks: int) -> None:
    for rank in range(ranks):
        found = []
        for folder in twins:
            weights = open_weights(
                describe(EngineConfig(model=str(folder))), rank=rank, ranks=ranks
            )
            start = "model.layers.1.mlp.experts."
            down = weights.inputs(f"{start}down_proj[4].T", 64, 64)
            gate_up = weights.outputs({f"{start}gate_up_proj[2].T": 128}, 64)
            found.append([one.dequantized(np.dtype(np.float32)) for one in (down, gate_up)])
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_weights_keep_their_bits(twins: tuple[Path, Path]) -> None:
    bits = 4 + 8 / 32
    with open_weights(describe(EngineConfig(model=str(twins[0])))) as weights:
        matrix = weights.inputs("model.layers.1.mlp.experts.down_proj[4].T", 64, 64)
    assert pack(matrix, None, np.dtype(np.float32)).nbytes == 64 * 64 * bits / 8 + 64 * 4  # a bias


def test_a_scale_that_is_no_number_is_refused() -> None:
    values, exponents = np.zeros((64, 16), np.uint8), np.full((64, 1), 127, np.uint8)
    exponents[7] = NO_NUMBER
    part = Microscaled(values, exponents)
    meant = part.dequantized()
    assert np.isnan(meant[7]).all()
    assert not meant[8].any()
    with pytest.raises(ModelLoadError, match="a scale of weights in MXFP4 is not a number"):
        pack(Matrix((part,)), None, np.dtype(np.float32))


def test_ranks_do_not_divide_a_group() -> None:
    part = Microscaled(np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.uint8))
    assert part.columns(slice(32, 64)).shape == (4, 32)
    with pytest.raises(ConfigError, match="groups of 32 inputs"):
        part.columns(slice(0, 48))


def test_model_equals_its_dense_twin(twins: tuple[Path, Path]) -> None:
    packed, dense = twins
    asked = prompts(4)
    expected = Loop(make_runner(dense)).generate(asked, 12)
    assert Loop(GreedyRunner(packed)).generate(asked, 12) == expected
    # Integer layers round what goes in.
    runners = make_runner(packed), make_runner(dense)
    for prompt in asked:
        ours, theirs = (logits_after(runner, prompt, 16) for runner in runners)
        assert (ours - theirs).abs().max() < 0.1 * theirs.std()
