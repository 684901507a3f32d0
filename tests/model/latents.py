"""Families whose layers keep latents, as :mod:`tests.model.families` has the others."""

from typing import Any

import transformers
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    DeepseekV32Config,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    Kimi_K25Config,
    MiniCPM3Config,
    Mistral3Config,
    Mistral4Config,
    YoutuConfig,
)

HEADS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "pad_token_id": None,
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
}
INDEX: dict[str, Any] = {"index_topk": 512, "index_n_heads": 2, "index_head_dim": 16}
LATENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "deepseek-v2-lite": (
        DeepseekV2Config,
        HEADS | EXPERTS | {"q_lora_rank": None, "rope_parameters": YARN},
    ),
    "deepseek-v2": (
        DeepseekV2Config,
        HEADS
        | EXPERTS
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek-v3": (
        DeepseekV3Config,
        HEADS
        | EXPERTS
        | {"attention_bias": True, "n_group": 4, "topk_group": 2, "rope_parameters": YARN},
    ),
    "deepseek-v3, halves rotated": (
        DeepseekV3Config,
        HEADS
        | EXPERTS
        | {
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "deepseek-v3.2": (
        DeepseekV32Config,
        HEADS | EXPERTS | INDEX | {"n_group": 4, "topk_group": 2, "rope_parameters": YARN},
    ),
    "glm 5": (GlmMoeDsaConfig, HEADS | EXPERTS | INDEX | {"n_group": 1, "topk_group": 1}),
    "glm 4.7 flash": (
        Glm4MoeLiteConfig,
        {k: v for k, v in (HEADS | EXPERTS).items() if k != "first_k_dense_replace"},
    ),
    "minicpm3": (
        MiniCPM3Config,
        HEADS
        | {
            "v_head_dim": None,
            "scale_emb": 3,
            "dim_model_base": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 2.0, 3.0, 4.0],
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "youtu": (YoutuConfig, HEADS),
}
"""Name, configuration of transformers, and what is changed of :data:`tests.model.llamas.SMALL`."""

MISTRAL4: dict[str, Any] = (
    HEADS
    | EXPERTS
    | {
        "vocab_size": 131,
        "intermediate_size": 72,
        "max_position_embeddings": 256,
        "initializer_range": 0.25,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": YARN
        | {
            "llama_4_scaling_beta": 0.4,
            "original_max_position_embeddings": 8,
            "partial_rotary_factor": 8 / 20,
        },
    }
)
LATENTS_WITH_EYES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mistral 4": (
        transformers.Mistral3ForConditionalGeneration,
        {
            "config": Mistral3Config,
            "text_config": MISTRAL4 | {"model_type": "mistral4"},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "head_dim": 16,
                "image_size": 28,
                "patch_size": 14,
            },
        },
    ),
    "mistral 4, alone": (transformers.Mistral4ForCausalLM, {"config": Mistral4Config} | MISTRAL4),
    "kimi k2.5": (
        transformers.Kimi_K25ForConditionalGeneration,
        {
            "config": Kimi_K25Config,
            "text_config": MISTRAL4
            | {
                "model_type": "deepseek_v3",
                "n_group": 4,
                "topk_group": 2,
                "rope_parameters": YARN,
                "tie_word_embeddings": False,
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        },
    ),
}
"""As :data:`tests.model.test_text_part.WITH_EYES`."""
