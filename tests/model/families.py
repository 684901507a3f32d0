"""The architectures beside Llama: small ones of each, by what sets it apart."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AfmoeConfig,
    ApertusConfig,
    ArceeConfig,
    AriaTextConfig,
    BioGptConfig,
    Cohere2Config,
    Cohere2MoeConfig,
    CohereConfig,
    CwmConfig,
    Dots1Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Exaone4Config,
    ExaoneMoeConfig,
    FalconConfig,
    FlexOlmoConfig,
    FlintConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Gemma4UnifiedTextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    GraniteMoeSWAConfig,
    GraniteSWAConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HunYuanMoEV1Config,
    HyperCLOVAXConfig,
    HYV3Config,
    Jais2Config,
    Llama4TextConfig,
    MellumConfig,
    MiniMaxM2Config,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    NanoChatConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SeedOssConfig,
    SmolLM3Config,
    SolarOpenConfig,
    StableLmConfig,
    Starcoder2Config,
    VaultGemmaConfig,
)

from tests.model.latents import LATENTS
from tests.model.llamas import make_model

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": 512,
}
WIDE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
ALTERNATING: dict[str, Any] = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0,
}
GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "logits_scaling": 2.0,
}
BIASES: dict[str, Any] = {"attention_bias": True, "mlp_bias": True}

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral, heads apart, a window": (MistralConfig, {"sliding_window": 24, "head_dim": 16}),
    "qwen2": (Qwen2Config, {"sliding_window": 8}),
    "qwen2, a window above the first layer": (
        Qwen2Config,
        {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen2, five windows to one": (
        Qwen2Config,
        {
            "num_hidden_layers": 6,
            "sliding_window": 40,
            "use_sliding_window": True,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        },
    ),
    "qwen2, tied, yarn": (Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3, biases, tied, yarn": (
        Qwen3Config,
        {
            "head_dim": 24,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ),
    "phi3": (Phi3Config, {"pad_token_id": None}),
    "apertus": (
        ApertusConfig,
        WIDE
        | {"attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "arcee": (ArceeConfig, WIDE | BIASES),
    "cohere": (CohereConfig, WIDE | {"attention_bias": True, "logit_scale": 0.25}),
    "cohere2": (Cohere2Config, WIDE | ALTERNATING | {"logit_scale": 0.25}),
    "ernie 4.5": (Ernie4_5Config, WIDE | {"head_dim": 16, "use_bias": True}),
    "exaone 4": (Exaone4Config, WIDE | ALTERNATING),
    "gemma": (GemmaConfig, WIDE | {"head_dim": 16}),
    "gemma 2": (
        Gemma2Config,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma 3": (
        Gemma3TextConfig,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma 4": (
        Gemma4TextConfig,
        WIDE
        | GEMMA4
        | {
            "num_key_value_heads": 2,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 2600,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma 4, keys as values, experts": (
        Gemma4TextConfig,
        WIDE
        | GEMMA4
        | {
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "glm": (GlmConfig, WIDE | {"head_dim": 16, "attention_bias": True}),
    "glm 4": (Glm4Config, WIDE | {"head_dim": 16, "attention_bias": True}),
    "gpt-oss": (
        GptOssConfig,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "swiglu_limit": 0.6,
            "rope_parameters": YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
        },
    ),
    "granite": (
        GraniteConfig,
        WIDE | BIASES | GRANITE,
    ),
    "helium": (HeliumConfig, WIDE | {"head_dim": 8}),
    "ministral": (MinistralConfig, WIDE | ALTERNATING | {"head_dim": 16}),
    "mixtral": (
        MixtralConfig,
        WIDE | {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 24},
    ),
    "minimax-m2": (
        MiniMaxM2Config,
        WIDE
        | {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "olmoe": (OlmoeConfig, WIDE | {"num_experts": 6, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        WIDE
        | {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "glm 4.5": (
        Glm4MoeConfig,
        WIDE
        | {
            "head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "dots.llm1": (
        Dots1Config,
        WIDE
        | {
            "head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 24,
        },
    ),
    "ernie 4.5, experts": (
        Ernie4_5_MoeConfig,
        WIDE
        | {
            "head_dim": 16,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_layer_start_index": 1,
        },
    ),
    "granite, experts": (
        GraniteMoeConfig,
        WIDE
        | GRANITE
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
        },
    ),
    "llama 4": (
        Llama4TextConfig,
        WIDE
        | {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 24,
            "floor_scale": 16,
            "attn_scale": 0.5,
        },
    ),
    "ministral 3": (
        Ministral3Config,
        WIDE
        | {
            "head_dim": 16,
            "rope_parameters": YARN
            | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5},
        },
    ),
    "qwen2-moe": (
        Qwen2MoeConfig,
        WIDE
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
        },
    ),
    "nemotron": (NemotronConfig, WIDE | BIASES),
    "olmo": (OlmoConfig, WIDE | {"attention_bias": True}),
    "olmo 2": (Olmo2Config, WIDE | {"attention_bias": True}),
    "olmo 3": (Olmo3Config, WIDE | ALTERNATING),
    "phi 4 mini": (
        Phi3Config,
        WIDE
        | {
            "pad_token_id": None,
            "num_attention_heads": 4,
            "original_max_position_embeddings": 512,
            "rope_parameters": LONGROPE,
        },
    ),
    "seed-oss": (
        SeedOssConfig,
        WIDE | {"head_dim": 16, "attention_out_bias": False} | BIASES,
    ),
    "smollm 3": (SmolLM3Config, WIDE | BIASES),
    "stablelm": (StableLmConfig, WIDE | {"use_qkv_bias": True}),
    "stablelm, parallel": (StableLmConfig, WIDE | {"use_parallel_residual": True}),
    "cwm": (CwmConfig, WIDE | ALTERNATING | {"head_dim": 16, "bos_token_id": 1}),
    "granite, windows": (
        GraniteSWAConfig,
        WIDE
        | ALTERNATING
        | GRANITE
        | {
            "layer_rope_theta": [1e4, 0, 1e5, 0],
        },
    ),
    "falcon": (
        FalconConfig,
        WIDE | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 72},
    ),
    "falcon, blocks in sequence": (
        FalconConfig,
        WIDE | {"multi_query": False, "parallel_attn": False, "bias": True, "ffn_hidden_size": 72},
    ),
    "gpt-neox": (GPTNeoXConfig, WIDE | {"num_attention_heads": 2}),
    "gpt-neox, blocks in sequence": (
        GPTNeoXConfig,
        WIDE | {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0},
    ),
    "gpt-2": (GPT2Config, WIDE | {"scale_attn_weights": False}),
    "gpt-bigcode": (GPTBigCodeConfig, WIDE | {"multi_query": False}),
    "gpt-j": (GPTJConfig, WIDE | {"num_attention_heads": 2, "rotary_dim": 8}),
    "gpt-neo": (
        GPTNeoConfig,
        WIDE | {"attention_types": [[["global", "local"], 2]], "window_size": 24},
    ),
    "granite, a shared expert": (
        GraniteMoeSharedConfig,
        WIDE
        | GRANITE
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
        },
    ),
    "phi": (PhiConfig, WIDE),
    "granite 4, dense": (
        GraniteMoeHybridConfig,
        WIDE
        | GRANITE
        | {
            "layer_types": ["full_attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
        },
    ),
    "granite 4, experts, no positions": (
        GraniteMoeHybridConfig,
        WIDE
        | GRANITE
        | {
            "layer_types": ["full_attention"] * 4,
            "num_local_experts": 6,
            "shared_intermediate_size": 40,
            "position_embedding_type": "nope",
            "mamba_n_heads": 8,
        },
    ),
    "granite, windows, experts": (
        GraniteMoeSWAConfig,
        WIDE
        | ALTERNATING
        | GRANITE
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "layer_rope_theta": [1e4, 0, 1e5, 0],
        },
    ),
    "hunyuan": (HunYuanDenseV1Config, WIDE | {"head_dim": 16, "attention_bias": True}),
    "hunyuan, experts": (
        HunYuanMoEV1Config,
        WIDE
        | {
            "head_dim": 16,
            "num_experts": 6,
            "moe_topk": [2, 2, 2, 2],
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 1e4,
                "alpha": 50.0,
                "factor": 1.0,
            },
        },
    ),
    "opt": (OPTConfig, WIDE | {"ffn_dim": 72, "word_embed_proj_dim": 64}),
    "hyperclova x": (HyperCLOVAXConfig, WIDE | {"residual_multiplier": 0.5}),
    "jais 2": (Jais2Config, WIDE | {"head_dim": 16}),
    "k-exaone": (
        ExaoneMoeConfig,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "mellum": (
        MellumConfig,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_layer_types": ["dense", *["sparse"] * 3],
        },
    ),
    "solar open": (
        SolarOpenConfig,
        WIDE
        | {
            "head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
        },
    ),
    "vaultgemma": (
        VaultGemmaConfig,
        WIDE
        | ALTERNATING
        | {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "starcoder 2": (Starcoder2Config, WIDE | {"sliding_window": None}),
    **LATENTS,
    "afmoe": (
        AfmoeConfig,
        WIDE
        | {
            "head_dim": 16,
            "num_hidden_layers": 5,
            "sliding_window": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "route_scale": 1.5,
            "mup_enabled": True,
        },
    ),
    "aria, the text part": (AriaTextConfig, WIDE | {"moe_num_experts": 6, "moe_topk": 2}),
    "biogpt": (BioGptConfig, WIDE),
    "cohere2, experts": (
        Cohere2MoeConfig,
        WIDE
        | ALTERNATING
        | {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid",
            "prefix_dense_intermediate_size": 40,
            "mlp_layer_types": ["dense", *["sparse"] * 3],
        },
    ),
    "flex-olmo": (FlexOlmoConfig, WIDE | {"num_experts": 6, "num_experts_per_tok": 2}),
    "flint": (
        FlintConfig,
        WIDE
        | {
            "head_dim": 16,
            "num_hidden_layers": 5,
            "sliding_window": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "hunyuan 3": (
        HYV3Config,
        WIDE
        | {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma 4, unified, the text part alone": (
        Gemma4UnifiedTextConfig,
        WIDE | GEMMA4 | {"num_key_value_heads": 2, "num_global_key_value_heads": 2},
    ),
    "nanochat": (NanoChatConfig, WIDE | {"final_logit_softcapping": 3.0}),
}
"""Name, configuration of transformers, and what is changed of :data:`tests.model.llamas.SMALL`."""

ONE_OF_EACH = ("mistral", "qwen2", "qwen3", "phi3")
"""Those whose tests are quick, and in which nearly all parts are."""

ALL_PARTS = (
    "apertus",
    "afmoe",
    "cohere",
    "deepseek-v2-lite",
    "gemma 4",
    "gemma 4, keys as values, experts",
    "glm 4",
    "gpt-2",
    "gpt-oss",
    "llama 4",
    "mixtral",
    "nemotron",
    "olmo 2",
    "opt",
    "phi3",
    "qwen3-moe",
)
"""Those that together have every part; ``tests/test_models_page.py`` holds them to it. What costs
seconds a family, and depends on parts alone, is shown of these.
"""

QUICK = (*list(FAMILIES)[:7], "gemma 3", "cohere2", "qwen3-moe")


MIXTURES = (
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3, halves rotated",
    "afmoe",
    "aria, the text part",
    "cohere2, experts",
    "flex-olmo",
    "flint",
    "hunyuan 3",
    "dots.llm1",
    "ernie 4.5, experts",
    "gemma 4, keys as values, experts",
    "glm 4.5",
    "glm 4.7 flash",
    "gpt-oss",
    "granite 4, experts, no positions",
    "granite, a shared expert",
    "granite, experts",
    "granite, windows, experts",
    "hunyuan, experts",
    "k-exaone",
    "llama 4",
    "mellum",
    "minimax-m2",
    "mixtral",
    "olmoe",
    "qwen2-moe",
    "qwen3-moe",
    "solar open",
)
"""Those with experts."""


def families(*quick: str) -> list[Any]:
    """All families as parameters of a test, slow but for the ``quick`` ones."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in FAMILIES]


def make_family(folder: Path, name: str, **changes: Any) -> Any:
    """Save a random model of a family to ``folder`` and return transformers' own."""
    kind, own = FAMILIES[name]
    return make_model(folder, kind, **own, **changes)
