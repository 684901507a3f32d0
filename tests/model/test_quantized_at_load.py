"""``--quantization``: what numbers become, and what stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.errors import ConfigError
from pyengine.model.spec import describe
from pyengine.model.weights.loader import open_weights
from pyengine.model.weights.matrix import Packed
from pyengine.model.weights.quantization.at_load import quantized
from pyengine.model.weights.sharding import RankWeights
from pyengine.settings.config import EngineConfig
from tests.model.llamas import make_llama


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    outputs=st.integers(1, 150),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 50]),
    bits=st.sampled_from([4, 8]),
)
def test_numbers_are_the_nearest_that_there_are(
    seed: int, outputs: int, groups: int, group: int, bits: int
) -> None:
    weight = np.random.default_rng(seed).standard_normal((outputs, groups * group), np.float32)
    weight[0] = 0
    packed = quantized(weight, bits, group)
    assert packed.scales.shape == (outputs, groups)
    error = np.abs(packed.dequantized() - weight).reshape(outputs, groups, group)
    step = np.abs(packed.scales)[..., None]
    # With four bits the largest of the side without a -8 may be half a step further off.
    assert (error <= step * (0.5001 if bits == 8 else 1.0001)).all()
    assert not packed.dequantized()[0].any()
    largest = np.abs(weight).reshape(outputs, groups, group).max(-1)
    assert np.allclose(np.abs(packed.scales) * (127 if bits == 8 else 8), largest, rtol=1e-6)


@pytest.mark.parametrize(("bits", "kind"), [(8, "Q8_0"), (4, "Q4_0")])
def test_quantization_equals_ggufs_arithmetic(bits: int, kind: str) -> None:
    weight = np.random.default_rng(1).standard_normal((64, 128), np.float32)
    number = GGMLQuantizationType[kind]
    theirs = dequantize(quantize(weight, number), number)
    # Their scales are rounded to float16.
    ours = quantized(weight, bits, 32).dequantized()
    close = np.abs(ours - theirs) < 2e-3 * np.abs(weight).max()
    assert close.mean() > 0.99


def opened(folder: Path, **config: Any) -> RankWeights:
    return open_weights(describe(EngineConfig(model=str(folder), **config)))


def test_tables_and_the_head_keep_eight_bits_and_vectors_all(tmp_path: Path) -> None:
    make_llama(tmp_path, hidden_size=64, num_attention_heads=4)
    names = {
        "model.embed_tokens.weight": 8,
        "lm_head.weight": 8,
        "model.layers.0.mlp.down_proj.weight": 4,
    }
    with opened(tmp_path, quantization="int4") as weights:
        for name, bits in names.items():
            shape = (64, 72) if "down" in name else (131, 64)
            (part,) = weights.table(name, *shape).parts
            assert isinstance(part, Packed)
            # 72 inputs cannot be divided into groups of 32 or 16.
            assert (part.bits, part.group) == (bits, 72 if "down" in name else 32)
        assert weights.vector("model.norm.weight", 64).dtype == np.float32


def test_groups_are_not_divided_among_ranks(tmp_path: Path) -> None:
    make_llama(tmp_path, hidden_size=64, num_attention_heads=4, intermediate_size=96)
    spec = describe(EngineConfig(model=str(tmp_path), quantization="int8"))
    weights = open_weights(spec, rank=0, ranks=2)
    with pytest.raises(ConfigError, match="groups of 32 inputs"):
        weights.inputs("model.layers.0.mlp.down_proj.weight", 64, 96)
