"""Families whose layers keep states, as :mod:`tests.model.families` has the others."""

from typing import Any

import transformers
from transformers import (
    BailingHybridConfig,
    BambaConfig,
    FalconH1Config,
    FalconMambaConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Lfm3Config,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.model.families import GRANITE, WIDE
from tests.model.llamas import SMALL

DELTA: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}

NEMOTRON_3: dict[str, Any] = WIDE | {
    "layers_block_type": ["mamba", "moe", "attention", "mamba", "moe", "mlp"],
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
    # transformers bounds steps by it in prompts, but not in decodes, nor does NVIDIA.
    "time_step_min": 1e-9,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
}
"""Nemotron 3, whose layers have experts without gates."""

SELECTIVE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "state_size": 8,
    "time_step_rank": 6,
    "pad_token_id": None,
}
"""Mamba of the first version."""

FALCON_H1: dict[str, Any] = MAMBA | {
    "mamba_d_ssm": 96,
    "mamba_d_head": 12,
    "embedding_multiplier": 1.3,
    "lm_head_multiplier": 0.8,
    "mlp_multipliers": [0.6, 1.4],
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.1,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.8, 1.2, 0.9, 1.1, 0.7],
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
}

HYBRIDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen3-next": (
        Qwen3NextConfig,
        WIDE
        | DELTA
        | EXPERTS
        | {
            "mlp_only_layers": [1],
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "qwen3.5": (Qwen3_5TextConfig, WIDE | DELTA | {"tie_word_embeddings": True}),
    "qwen3.5, two layers of three": (
        Qwen3_5TextConfig,
        WIDE
        | DELTA
        | {
            "num_hidden_layers": 6,
            "layer_types": [*["linear_attention"] * 2, "full_attention"] * 2,
        },
    ),
    "qwen3.5, experts": (Qwen3_5MoeTextConfig, WIDE | DELTA | EXPERTS),
    "lfm2": (
        Lfm2Config,
        WIDE | {"layer_types": ["conv", "conv", "full_attention", "conv"], "conv_bias": True},
    ),
    "lfm2, experts": (
        Lfm2MoeConfig,
        WIDE
        | {
            "layer_types": ["conv", "conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "lfm3": (
        Lfm3Config,
        WIDE | {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 24},
    ),
    "olmo-hybrid": (
        OlmoHybridConfig,
        # transformers writes the convolution in three pieces of one size.
        WIDE | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
    "ling 3": (
        BailingHybridConfig,
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "layer_group_size": 2,
            "first_k_dense_replace": 1,
            "head_dim": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "moe_intermediate_size": 24,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "pad_token_id": None,
        },
    ),
    "bamba": (BambaConfig, WIDE | MAMBA | {"attn_layer_indices": [1]}),
    "falcon-h1": (FalconH1Config, WIDE | FALCON_H1),
    "falcon-h1, norms behind gates": (
        FalconH1Config,
        WIDE | FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "granite 4 h": (
        GraniteMoeHybridConfig,
        WIDE
        | MAMBA
        | GRANITE
        | {
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
        },
    ),
    "minimax": (
        MiniMaxConfig,
        WIDE
        | {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "block_size": 16,
            "linear_attn_alpha_factor": 1.5,
            "full_attn_beta_factor": 0.7,
            "mlp_alpha_factor": 1.2,
            "mlp_beta_factor": 0.8,
        },
    ),
    "mamba": (MambaConfig, SELECTIVE | {"use_bias": True}),
    "falcon mamba": (FalconMambaConfig, SELECTIVE),
    "jamba": (
        JambaConfig,
        WIDE
        | {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_proj_bias": True,
        },
    ),
    "mamba 2": (
        Mamba2Config,
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 16,
            "pad_token_id": None,
            "chunk_size": 16,
        },
    ),
    "kimi linear": (
        KimiLinearConfig,
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 6,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "linear_num_heads": 4,
            "linear_head_dim": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "moe_intermediate_size": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "pad_token_id": None,
        },
    ),
    "nemotron-h": (
        NemotronHConfig,
        NEMOTRON_3 | {"layers_block_type": ["mamba", "mlp", "attention", "mamba", "mlp"]},
    ),
    "nemotron 3": (NemotronHConfig, NEMOTRON_3),
    "nemotron 3, narrow experts": (
        NemotronHConfig,
        NEMOTRON_3 | {"moe_latent_size": 32},
    ),
}
"""Name, configuration of transformers, and what is changed of :data:`tests.model.llamas.SMALL`."""

TEXT: dict[str, Any] = SMALL | WIDE | DELTA | {"initializer_range": 0.08}
EYES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
HYBRIDS_WITH_EYES: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen3.5": (
        transformers.Qwen3_5ForConditionalGeneration,
        {"config": Qwen3_5Config, "text_config": TEXT, "vision_config": EYES},
    ),
    "qwen3.5, experts": (
        transformers.Qwen3_5MoeForConditionalGeneration,
        {
            "config": Qwen3_5MoeConfig,
            "text_config": {k: v for k, v in TEXT.items() if k != "intermediate_size"} | EXPERTS,
            "vision_config": EYES,
        },
    ),
}
"""As :data:`tests.model.test_text_part.WITH_EYES`."""
