"""The families whose GGUF files are read, by the architecture that a file names."""

from collections.abc import Mapping
from typing import Any

from pyengine.model.weights.gguf import derived
from pyengine.model.weights.gguf.family import GgufFamily, Layout
from pyengine.model.weights.gguf.layouts import (
    HEADS_TOGETHER,
    NEIGHBOURS,
    TILED,
    TILED_COLUMNS,
    of_both,
)

COUNT = "expert_count"
EXPERTS = {
    "num_experts": COUNT,
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
LOCAL_EXPERTS = {"num_local_experts": COUNT, "num_experts_per_tok": "expert_used_count"}
SHARED = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
ROUTED = EXPERTS | {
    "n_routed_experts": COUNT,
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}
BEHIND_ATTENTION = {"post_attention_layernorm": "post_attention_norm"}
"""Of families whose norm of that name is behind attention, not before the feed-forward layer."""
GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
SHARED_LINEAR = {
    "shared_mlp.input_linear": "ffn_gate_shexp+ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
LAYER_EPSILON = "attention.layer_norm_epsilon"


STATES = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "full_attention_interval": "full_attention_interval",
}
MAMBA = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_conv": "ssm.conv_kernel",
}
PLAIN_MAMBA = {
    "state_size": "ssm.state_size",
    "n_groups": "ssm.group_count",
    "conv_kernel": "ssm.conv_kernel",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
}
LFM2 = {"conv_L_cache": "shortconv.l_cache", "norm_eps": "attention.layer_norm_rms_epsilon"}
GEMMA4 = {
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": COUNT,
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
CAPS = {"final_logit_softcapping": "final_logit_softcapping"}


def _qwen3_5(
    architecture: str,
    fields: Mapping[str, str],
    names: Mapping[str, str],
    rows: Mapping[str, Layout],
    columns: Mapping[str, Layout],
) -> GgufFamily:
    return GgufFamily(
        architecture,
        {**STATES, **fields},
        flags={"attention_bias": "attn_q.bias"},
        more=derived.value_dim("linear_value_head_dim"),
        names={**BEHIND_ATTENTION, **names},
        rows=rows,
        columns=columns,
        ones=True,
    )


def _nemotron_h(fields: Mapping[str, str]) -> GgufFamily:
    return GgufFamily(
        "NemotronHForCausalLM",
        {
            **PLAIN_MAMBA,
            "ssm_state_size": "ssm.state_size",
            "mamba_num_heads": "ssm.time_step_rank",
            **fields,
        },
        flags=BIASES | {"use_conv_bias": "ssm_conv1d.bias"},
        more=derived.nemotron_h,
    )


def _cohere(architecture: str, **own: Any) -> GgufFamily:
    return GgufFamily(
        architecture,
        {"layer_norm_eps": LAYER_EPSILON, "logit_scale": "logit_scale"},
        flags={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        **own,
    )


def _hybrid_granite(names: Mapping[str, str], **fields: str) -> GgufFamily:
    return GgufFamily(
        "GraniteMoeHybridForCausalLM",
        {**GRANITE, **MAMBA, **fields},
        flags=BIASES | {"mamba_conv_bias": "ssm_conv1d.bias"},
        more=derived.attending("linear_attention", derived.granite_h),
        names=names,
        rows=NEIGHBOURS,
    )


def _gemma_4() -> GgufFamily:
    return GgufFamily(
        "Gemma4ForCausalLM", GEMMA4, more=derived.gemma4, names=BEHIND_ATTENTION, values=True
    )


def _lfm2(architecture: str, fields: Mapping[str, str], **known: Any) -> GgufFamily:
    return GgufFamily(
        architecture,
        {**LFM2, **fields},
        {"block_auto_adjust_ff_dim": False, **known},
        {"conv_bias": "shortconv.conv.bias", "use_expert_bias": "exp_probs_b.bias"},
        derived.attending("conv"),
    )


FAMILIES = {
    "cohere2": _cohere("Cohere2ForCausalLM", more=derived.windows_but_every(4)),
    "command-r": _cohere("CohereForCausalLM"),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM", flags={"use_bias": "attn_q.bias"}),
    "exaone4": GgufFamily("Exaone4ForCausalLM", more=derived.windows, names=BEHIND_ATTENTION),
    "falcon": GgufFamily(
        "FalconForCausalLM",
        {"layer_norm_epsilon": LAYER_EPSILON, "num_kv_heads": "attention.head_count_kv"},
        {"new_decoder_architecture": True},
        {"bias": "attn_qkv.bias"},
        derived.falcon,
        {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"},
        HEADS_TOGETHER,
    ),
    "falcon-h1": GgufFamily(
        "FalconH1ForCausalLM",
        {**MAMBA, "mamba_d_ssm": "ssm.inner_size"},
        {"mamba_norm_before_gate": False},
        {"mamba_rms_norm": "ssm_norm.weight", "mamba_conv_bias": "ssm_conv1d.bias"},
        derived.value_dim("mamba_d_head"),
        {"pre_ff_layernorm": "=ffn_norm"},
    ),
    "gemma": GgufFamily("GemmaForCausalLM", ones=True),
    "gemma2": GgufFamily(
        "Gemma2ForCausalLM",
        {**CAPS, "attn_logit_softcapping": "attn_logit_softcapping"},
        more=derived.gemma2,
        names=BEHIND_ATTENTION,
        ones=True,
    ),
    "gemma3": GgufFamily(
        "Gemma3ForCausalLM", CAPS, more=derived.gemma3, names=BEHIND_ATTENTION, ones=True
    ),
    "gemma4": _gemma_4(),
    "granite": GgufFamily("GraniteForCausalLM", GRANITE, flags=BIASES, rows=NEIGHBOURS),
    "granitehybrid": _hybrid_granite(
        {
            "shared_mlp.input_linear": "ffn_gate+ffn_up",
            "shared_mlp.output_linear": "ffn_down",
        }
    ),
    "lfm2": _lfm2("Lfm2ForCausalLM", {}),
    "llama": GgufFamily(
        "LlamaForCausalLM", flags={"attention_bias": "blk.0.attn_q.bias"}, rows=NEIGHBOURS
    ),
    "mamba2": GgufFamily(
        "Mamba2ForCausalLM",
        {**PLAIN_MAMBA, "num_heads": "ssm.time_step_rank"},
        flags={"use_conv_bias": "ssm_conv1d.bias"},
        more=derived.mamba2,
    ),
    "mistral3": GgufFamily("Ministral3ForCausalLM", more=derived.ministral, rows=NEIGHBOURS),
    "nemotron": GgufFamily(
        "NemotronForCausalLM", {"norm_eps": LAYER_EPSILON}, flags=BIASES, ones=True
    ),
    "nemotron_h": _nemotron_h({}),
    "olmo": GgufFamily("OlmoForCausalLM", rows=NEIGHBOURS),
    "olmo2": GgufFamily(
        "Olmo2ForCausalLM",
        flags={"attention_bias": "attn_q.bias"},
        more=derived.olmo2,
        names=BEHIND_ATTENTION,
    ),
    "phi2": GgufFamily("PhiForCausalLM", {"layer_norm_eps": LAYER_EPSILON}),
    "phi3": GgufFamily("Phi3ForCausalLM"),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "qwen35": _qwen3_5("Qwen3_5ForCausalLM", {}, {}, TILED, TILED_COLUMNS),
    "seed_oss": GgufFamily(
        "SeedOssForCausalLM",
        flags=BIASES | {"attention_out_bias": "attn_output.bias"},
        names=BEHIND_ATTENTION,
    ),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", flags=BIASES, rows=NEIGHBOURS),
    "stablelm": GgufFamily(
        "StableLmForCausalLM",
        {"layer_norm_eps": LAYER_EPSILON, "use_parallel_residual": "use_parallel_residual"},
        flags={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
    ),
    "starcoder2": GgufFamily(
        "Starcoder2ForCausalLM", {"norm_epsilon": LAYER_EPSILON}, flags={"use_bias": "attn_q.bias"}
    ),
}
"""Those without experts."""

MIXTURES = {
    "deepseek2": GgufFamily(
        "DeepseekV2ForCausalLM",
        ROUTED | {"q_lora_rank": "attention.q_lora_rank", "kv_lora_rank": "attention.kv_lora_rank"},
        flags={"attention_bias": "attn_kv_a_mqa.bias"},
        more=derived.deepseek,
        values=True,
    ),
    "ernie4_5-moe": GgufFamily(
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": COUNT,
            "moe_k": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
        },
    ),
    "gemma4": _gemma_4(),
    "glm4moe": GgufFamily(
        "Glm4MoeForCausalLM",
        ROUTED,
        flags={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        names=BEHIND_ATTENTION,
    ),
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        {**LOCAL_EXPERTS, "intermediate_size": "expert_feed_forward_length"},
        {"model_type": "gpt_oss", "attention_bias": True},
        names=BEHIND_ATTENTION,
    ),
    "granitehybrid": _hybrid_granite(SHARED_LINEAR, num_experts_per_tok="expert_used_count"),
    "granitemoe": GgufFamily(
        "GraniteMoeSharedForCausalLM",
        {
            **GRANITE,
            **LOCAL_EXPERTS,
            "shared_intermediate_size": "expert_shared_feed_forward_length",
        },
        flags=BIASES,
        names=SHARED_LINEAR,
        rows=NEIGHBOURS,
    ),
    "lfm2moe": _lfm2(
        "Lfm2MoeForCausalLM",
        {
            **EXPERTS,
            "num_dense_layers": "leading_dense_block_count",
            "routed_scaling_factor": "expert_weights_scale",
        },
    ),
    "llama": GgufFamily("MixtralForCausalLM", LOCAL_EXPERTS, rows=NEIGHBOURS),
    "nemotron_h_moe": _nemotron_h(
        {
            **ROUTED,
            "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
            "moe_latent_size": "moe_latent_size",
        }
    ),
    "olmoe": GgufFamily("OlmoeForCausalLM", EXPERTS, {"norm_topk_prob": False}),
    "qwen2moe": GgufFamily("Qwen2MoeForCausalLM", EXPERTS | SHARED, {"norm_topk_prob": False}),
    "qwen35moe": _qwen3_5("Qwen3_5MoeForCausalLM", EXPERTS | SHARED, {}, TILED, TILED_COLUMNS),
    "qwen3moe": GgufFamily("Qwen3MoeForCausalLM", EXPERTS, {"norm_topk_prob": True}),
    "qwen3next": _qwen3_5(
        "Qwen3_5MoeForCausalLM",
        EXPERTS | SHARED,
        {"linear_attn.in_proj_a": "ssm_ba", "linear_attn.in_proj_b": "ssm_ba"},
        {"linear_attn.in_proj_b": of_both(0), "linear_attn.in_proj_a": of_both(1)},
        {},
    ),
}
"""Those with experts."""
