"""What config.json means by keys that it leaves out, and by keys that its family does not have."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    AfmoeConfig,
    Cohere2MoeConfig,
    FlintConfig,
    Gemma3TextConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    Qwen3Config,
)

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.layer_norm.cohere import cohere2_moe_config
from pyengine.model.architectures.families.mixtures.afmoe import afmoe_config
from pyengine.model.architectures.families.mixtures.flint import flint_config
from pyengine.model.config_defaults import PATH
from pyengine.model.positions import rotary_by_kind, rotary_parameters
from pyengine.model.text_part import text_part
from tests.model.families import make_family
from tests.model.llamas import SMALL, make_llama, make_model, make_runner, prompts
from tests.model.test_architectures import edit
from tests.model.test_torch_model import logits_after
from tools import config_defaults

PROMPT = (prompts(1)[0] * 5)[:60]


def apart(folder: Path, model: Any) -> float:
    """How far logits are from those of transformers' ``model``, in deviations."""
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0, -1].float()
    found = logits_after(make_runner(folder), PROMPT, 1000)
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.slow
def test_the_table_is_that_of_transformers() -> None:
    assert PATH.read_text(encoding="utf-8") == config_defaults.text()


def test_gemma_3_as_google_publishes_it(tmp_path: Path) -> None:
    """Neither base of positions is there, and the scaling is of the layers without window."""
    scaling = {"factor": 8.0, "rope_type": "linear"}
    own: dict[str, Any] = {
        "num_hidden_layers": 6,
        "head_dim": 16,
        "sliding_window": 16,
        "pad_token_id": None,
    }
    model = make_model(tmp_path, Gemma3TextConfig, rope_scaling=scaling, **own)
    names = ("hidden_size", "intermediate_size", "model_type", "num_hidden_layers")
    text = {name: model.config.to_dict()[name] for name in names} | {
        "rope_scaling": scaling,
        "sliding_window": 16,
        # Of a tiny one that is not as the class has it.
        **{name: model.config.to_dict()[name] for name in ("vocab_size", "head_dim")},
        **{name: SMALL[name] for name in ("num_attention_heads", "num_key_value_heads")},
    }
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert apart(tmp_path, model) < 1e-3
    read = text_part(config)
    assert rotary_by_kind(read, "full_attention")["rope_theta"] == 1e6
    assert rotary_by_kind(read, "sliding_attention")["rope_theta"] == 1e4
    assert rotary_by_kind(read, "sliding_attention")["rope_type"] == "default"


def test_a_scaling_that_is_added_wins_and_leaves_the_base(tmp_path: Path) -> None:
    """As Qwen's cards say it, beside the rope_parameters that transformers 5 writes."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    base = {"rope_type": "default", "rope_theta": 1e6}
    model = make_model(
        tmp_path, Qwen3Config, head_dim=16, rope_parameters=yarn | {"rope_theta": 1e6}
    )
    edit(tmp_path, rope_parameters=base, rope_scaling=yarn)
    assert apart(tmp_path, model) < 1e-3
    read = rotary_parameters({"rope_parameters": base, "rope_scaling": yarn})
    assert (read["rope_type"], read["rope_theta"]) == ("yarn", 1e6)


def test_hyperclova_x_multiplies_its_logits(tmp_path: Path) -> None:
    model = make_model(tmp_path, HyperCLOVAXConfig, logits_scaling=0.125, pad_token_id=None)
    assert apart(tmp_path, model) < 1e-3


def test_keys_that_a_family_ignores_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_llama(tmp_path)
    edit(tmp_path, sliding_window=16, layer_types=["sliding_attention"] * 3)
    with caplog.at_level(logging.WARNING, "pyengine"):
        assert apart(tmp_path, model) < 1e-3
    assert "'layer_types', 'sliding_window' is ignored" in caplog.text


@pytest.mark.parametrize("given", [None, [], "LlamaForCausalLM"])
def test_without_a_list_of_architectures_model_type_counts(given: Any, tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    edit(tmp_path, architectures=given)
    assert apart(tmp_path, model) < 1e-3
    edit(tmp_path, architectures=[], model_type="yours")
    with pytest.raises(ModelLoadError, match="no 'architectures', and 'model_type' of 'yours'"):
        make_runner(tmp_path)


def rewritten(folder: Path, **tensors: Any) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path)


@pytest.mark.parametrize(
    ("family", "changes", "left"),
    [
        ("glm 4", {"attention_bias": False}, "q_proj.bias"),
        ("glm 4.5", {"n_shared_experts": 0}, "shared_experts"),
        ("qwen2", {"num_hidden_layers": 2, "layer_types": None}, "model.layers.2."),
        ("qwen2", {"tie_word_embeddings": True}, "lm_head.weight"),
    ],
)
def test_tensors_that_nothing_asked_for_are_an_error(
    family: str, changes: dict[str, Any], left: str, tmp_path: Path
) -> None:
    make_family(tmp_path, family)
    edit(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=f"tensors that config.json gives no use: .*{left}"):
        make_runner(tmp_path)


def test_buffers_towers_and_a_head_that_is_the_table_may_be_left(tmp_path: Path) -> None:
    make_llama(tmp_path, tie_word_embeddings=True)
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    one = table[:1].copy()
    rewritten(
        tmp_path,
        **{
            "lm_head.weight": table,
            "model.layers.0.self_attn.rotary_emb.inv_freq": one,
            "vision_tower.layers.0.weight": one,
            "mtp.layers.0.weight": one,
        },
    )
    assert make_runner(tmp_path).info.num_heads == LlamaConfig(**SMALL).num_attention_heads
    rewritten(tmp_path, **{"model.layers.0.self_attn.surprise.weight": one})
    with pytest.raises(ModelLoadError, match="surprise"):
        make_runner(tmp_path)


@pytest.mark.parametrize(
    ("kind", "read", "changes"),
    [
        (AfmoeConfig, afmoe_config, {"global_attn_every_n_layers": 3}),
        (Cohere2MoeConfig, cohere2_moe_config, {"first_k_dense_replace": 2}),
        (
            Cohere2MoeConfig,
            cohere2_moe_config,
            {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2},
        ),
        (FlintConfig, flint_config, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_windows_that_are_left_out_are_those_of_transformers(
    kind: Any, read: Any, changes: dict[str, Any]
) -> None:
    given = {"num_hidden_layers": 9, **changes}
    assert read(given)["layer_types"] == kind(**given).layer_types
