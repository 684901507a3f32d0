"""The text part of models that also see: its settings, its weights, and what it says."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    Gemma3Config,
    Gemma4Config,
    Gemma4UnifiedConfig,
    Idefics3Config,
    InternVLConfig,
    Llama4Config,
    LlavaConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    SmolVLMConfig,
    VoxtralConfig,
)

from pyengine.errors import ModelLoadError
from pyengine.model.text_part import plain_name, text_part
from tests.model.families import ALTERNATING, GEMMA4, WIDE, YARN
from tests.model.latents import LATENTS_WITH_EYES
from tests.model.llamas import SMALL, Loop, make_runner, prompts
from tests.model.test_torch_model import logits_after

TEXT: dict[str, Any] = SMALL | WIDE | {"head_dim": 16, "pad_token_id": None}
EYES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_EYES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}

LLAMA: dict[str, Any] = TEXT | {"model_type": "llama"}
NO_HEAD_DIM = {key: value for key, value in TEXT.items() if key != "head_dim"}
QWEN25_EYES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [0],
}

WITH_EYES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma 3": (
        transformers.Gemma3ForConditionalGeneration,
        {
            "config": Gemma3Config,
            "text_config": TEXT | ALTERNATING | {"model_type": "gemma3_text"},
            "vision_config": EYES,
        },
    ),
    "gemma 4": (
        transformers.Gemma4ForConditionalGeneration,
        {
            "config": Gemma4Config,
            "text_config": TEXT
            | GEMMA4
            | {
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 131,
                "pad_token_id": 0,
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
            },
            "audio_config": None,
        },
    ),
    "llama 4": (
        transformers.Llama4ForConditionalGeneration,
        {
            "config": Llama4Config,
            "text_config": TEXT
            | {
                "num_local_experts": 4,
                "intermediate_size_mlp": 48,
                "attention_chunk_size": 24,
                "floor_scale": 16,
                "attn_scale": 0.5,
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "vision_output_dim": 32,
            },
        },
    ),
    "ministral 3": (
        transformers.Mistral3ForConditionalGeneration,
        {
            "config": Mistral3Config,
            "text_config": TEXT
            | {
                "model_type": "ministral3",
                "rope_parameters": YARN
                | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5},
            },
            "vision_config": EYES | {"model_type": "pixtral", "head_dim": 16},
        },
    ),
    "qwen3-vl, experts": (
        transformers.Qwen3VLMoeForConditionalGeneration,
        {
            "config": Qwen3VLMoeConfig,
            "text_config": TEXT
            | {
                "rope_parameters": MROPE,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
            },
            "vision_config": QWEN_EYES,
        },
    ),
    "qwen2-vl": (
        transformers.Qwen2VLForConditionalGeneration,
        {
            "config": Qwen2VLConfig,
            "text_config": NO_HEAD_DIM | {"rope_parameters": MROPE | {"mrope_section": [2, 1, 1]}},
            "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
        },
    ),
    "qwen2.5-vl": (
        transformers.Qwen2_5_VLForConditionalGeneration,
        {
            "config": Qwen2_5_VLConfig,
            "text_config": NO_HEAD_DIM | {"rope_parameters": MROPE | {"mrope_section": [2, 1, 1]}},
            "vision_config": QWEN25_EYES,
        },
    ),
    "gemma 4, unified": (
        transformers.Gemma4UnifiedForConditionalGeneration,
        {
            "config": Gemma4UnifiedConfig,
            "text_config": TEXT | GEMMA4 | {"pad_token_id": 0},
        },
    ),
    "llava": (
        transformers.LlavaForConditionalGeneration,
        {
            "config": LlavaConfig,
            "text_config": LLAMA,
            "vision_config": EYES | {"model_type": "clip_vision_model"},
        },
    ),
    "llava next": (
        transformers.LlavaNextForConditionalGeneration,
        {
            "config": LlavaNextConfig,
            "text_config": LLAMA,
            "vision_config": EYES | {"model_type": "clip_vision_model"},
            "image_grid_pinpoints": [[28, 28]],
        },
    ),
    "llava onevision": (
        transformers.LlavaOnevisionForConditionalGeneration,
        {
            "config": LlavaOnevisionConfig,
            "text_config": NO_HEAD_DIM | {"model_type": "qwen2"},
            "vision_config": EYES | {"model_type": "siglip_vision_model"},
            "image_grid_pinpoints": [[28, 28]],
        },
    ),
    "idefics 3": (
        transformers.Idefics3ForConditionalGeneration,
        {"config": Idefics3Config, "text_config": LLAMA, "vision_config": EYES},
    ),
    "voxtral": (
        transformers.VoxtralForConditionalGeneration,
        {
            "config": VoxtralConfig,
            "text_config": LLAMA,
            "audio_config": {
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        },
    ),
    "internvl": (
        transformers.InternVLForConditionalGeneration,
        {
            "config": InternVLConfig,
            "text_config": TEXT | {"model_type": "qwen3"},
            "vision_config": EYES | {"image_size": [28, 28], "patch_size": [14, 14]},
        },
    ),
    "smolvlm": (
        transformers.SmolVLMForConditionalGeneration,
        {"config": SmolVLMConfig, "text_config": LLAMA, "vision_config": EYES},
    ),
    "mistral small 3": (
        transformers.Mistral3ForConditionalGeneration,
        {
            "config": Mistral3Config,
            "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
            "vision_config": EYES | {"model_type": "pixtral", "head_dim": 16},
        },
    ),
    "qwen3-vl": (
        transformers.Qwen3VLForConditionalGeneration,
        {
            "config": Qwen3VLConfig,
            "text_config": TEXT | {"rope_parameters": MROPE},
            "vision_config": QWEN_EYES,
        },
    ),
} | LATENTS_WITH_EYES


def make(folder: Path, name: str) -> Any:
    kind, given = WITH_EYES[name]
    settings = {key: value for key, value in given.items() if key != "config"}
    torch.manual_seed(3)
    model = kind(given["config"](**settings, tie_word_embeddings=False)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EYES)
def test_text_part_equals_transformers(name: str, tmp_path: Path) -> None:
    model = make(tmp_path, name)
    runner = make_runner(tmp_path)
    for prompt in prompts(4):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].float()
        ours = logits_after(runner, prompt, 16)
        assert (ours - logits).abs().max() < 1e-4 * logits.std()
    assert len(Loop(runner).generate(prompts(2), 4)[0]) == 4


def test_its_settings_go_before_what_stands_outside() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "hidden_size": 1,
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "head_dim": None},
    }
    part = text_part(config)
    assert part["hidden_size"] == 2560
    assert part["head_dim"] == 256
    assert part["architectures"] == ["Gemma3ForConditionalGeneration"]
    assert part["eos_token_id"] == [1, 106]
    with pytest.raises(ModelLoadError, match="'text_config' must be an object"):
        text_part({"text_config": 3})


def test_names_of_weights_lose_what_says_that_they_are_its() -> None:
    for name in ("model.language_model.norm.weight", "language_model.model.norm.weight"):
        assert plain_name(name) == "model.norm.weight"
    assert plain_name("language_model.lm_head.weight") == "lm_head.weight"
    for wrapped in ("module.model.norm.weight", "_orig_mod.module.model.norm.weight"):
        assert plain_name(wrapped) == "model.norm.weight"
    for name in ("model.norm.weight", "model.visual.norm.weight"):
        assert plain_name(name) == name
