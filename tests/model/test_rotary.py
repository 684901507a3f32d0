"""Rotary tables are those of transformers, whatever the scaling."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.rotary import rotary_table
from tests.model.llamas import SMALL

CONTEXT = 512

LINEAR = st.fixed_dictionaries(
    {"rope_type": st.just("linear"), "factor": st.floats(1, 16), "rope_theta": st.floats(100, 1e6)}
)
LLAMA3 = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "rope_theta": st.floats(100, 1e6),
        "factor": st.floats(1, 16),
        "low_freq_factor": st.floats(0.5, 2),
        "high_freq_factor": st.floats(3, 8),
        "original_max_position_embeddings": st.integers(16, 8192),
    }
)
YARN = st.fixed_dictionaries(
    {
        "rope_type": st.just("yarn"),
        "rope_theta": st.floats(100, 1e6),
        "factor": st.floats(1, 64),
    },
    optional={
        "original_max_position_embeddings": st.integers(256, 65_536),
        "beta_fast": st.floats(4, 64),
        "beta_slow": st.floats(0.5, 3),
        "truncate": st.booleans(),
        "attention_factor": st.floats(0.5, 2),
        "mscale": st.floats(0.5, 1.5),
        "mscale_all_dim": st.floats(0.5, 1.5),
    },
)


def theirs(parameters: dict[str, Any], head_dim: int) -> torch.Tensor:
    config = LlamaConfig(**SMALL | {"head_dim": head_dim, "rope_parameters": dict(parameters)})
    cosines, sines = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(CONTEXT)[None])
    half = head_dim // 2
    return torch.cat((cosines[0, :, :half], sines[0, :, :half]), dim=1)


@settings(max_examples=150, deadline=None)
@given(parameters=LINEAR | LLAMA3 | YARN, head_dim=st.sampled_from([8, 64, 96, 128]))
def test_the_table_of_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    config = SMALL | {"rope_parameters": parameters}
    ours = rotary_table(config, head_dim, CONTEXT)
    assert ours.shape == (CONTEXT, head_dim)
    # A frequency may differ in its last bit, and its angle is up to CONTEXT of that.
    np.testing.assert_allclose(ours, theirs(parameters, head_dim).numpy(), rtol=1e-4, atol=2e-4)


def test_scaled_is_not_plain() -> None:
    plain = rotary_table(SMALL, 64, CONTEXT)
    for kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
        scaled = rotary_table(SMALL | {"rope_scaling": scaling}, 64, CONTEXT)
        assert np.abs(scaled - plain).max() > 0.5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rope_type": "axial", "factor": 2.0},
            "'axial' is not .* default, dynamic, factors, linear, .* yarn",
        ),
        ({"type": "longrope"}, "'longrope' in config.json lacks 'short_factor'"),
        ({"rope_type": "yarn"}, "'yarn' in config.json lacks 'factor'"),
        ({"rope_type": "linear", "factor": "two"}, "'linear' in config.json: could not convert"),
        ({"partial_rotary_factor": 1.25}, "'partial_rotary_factor' of 1.25"),
        ({"full_attention": {"rope_type": "default"}}, "differ between layers"),
        ([1], "must be an object"),
    ],
)
def test_unsupported_rope_is_refused_by_name(parameters: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        rotary_table({"rope_scaling": parameters, "max_position_embeddings": 64}, 64, 8)


def test_element_that_does_not_rotate_has_the_angle_0() -> None:
    config = {"rope_scaling": {"partial_rotary_factor": 0.25}, "max_position_embeddings": 64}
    table = rotary_table(config, 64, 8)
    assert (table[:, 8:32] == 1).all()
    assert (table[:, 40:] == 0).all()
    whole = rotary_table({"max_position_embeddings": 64}, 16, 8)
    assert np.array_equal(np.concatenate((table[:, :8], table[:, 32:40]), 1), whole)
