"""Llamas by other names: their files, made of a Llama's of transformers, give its logits.

transformers has none of these families; what their own code computes is a Llama, or a Granite.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Glm4MoeConfig,
    GraniteConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3MoeConfig,
    StableLmConfig,
)

from tests.model.llamas import make_model, make_runner, prompts
from tests.model.test_torch_model import logits_after

Tensors = dict[str, torch.Tensor]
WIDE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
PROMPT = (prompts(1)[0] * 5)[:60]


def replaced(tensors: Tensors, **names: str) -> Tensors:
    """The tensors by other names: parts of names, and what stands in their place."""

    def other(name: str) -> str:
        for part, instead in names.items():
            name = re.sub(rf"\b{part}\b", instead, name)
        return name

    return {other(name): tensor for name, tensor in tensors.items()}


def internlm2(tensors: Tensors) -> Tensors:
    made = replaced(
        tensors, self_attn="attention", o_proj="wo", mlp="feed_forward", gate_proj="w1",
        up_proj="w3", down_proj="w2", input_layernorm="attention_norm", lm_head="output",
        post_attention_layernorm="ffn_norm", embed_tokens="tok_embeddings",
    )  # fmt: skip
    for name in [each for each in made if "q_proj" in each]:
        query, key, value = (made.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv")
        by_head = [
            torch.cat(
                (query[32 * at : 32 * at + 32], key[8 * at : 8 * at + 8], value[8 * at :][:8])
            )
            for at in range(2)
        ]
        made[name.replace("q_proj", "wqkv")] = torch.cat(by_head)
    return made


def exaone(tensors: Tensors) -> Tensors:
    made = replaced(
        tensors, self_attn="attn.attention", o_proj="out_proj", gate_proj="c_fc_0",
        up_proj="c_fc_1", down_proj="c_proj", input_layernorm="ln_1", layers="h",
        post_attention_layernorm="ln_2", embed_tokens="wte", model="transformer",
    )  # fmt: skip
    return {re.sub(r"^transformer\.norm", "transformer.ln_f", k): v for k, v in made.items()}


def bailing(tensors: Tensors) -> Tensors:
    made = replaced(
        tensors, self_attn="attention", o_proj="dense", q_norm="query_layernorm",
        k_norm="key_layernorm", embed_tokens="word_embeddings",
        e_score_correction_bias="expert_bias",
    )  # fmt: skip
    for name in [each for each in made if "q_proj" in each]:
        kinds = [made.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"]
        made[name.replace("q_proj", "query_key_value")] = torch.cat(kinds)
    return made


def narrow(model: Any) -> None:
    """Make parts of a Llama's layers of no account, which a DeciLM leaves out."""
    first, second, third = model.model.layers
    for projection in (first.self_attn.k_proj, first.self_attn.v_proj):
        projection.weight[8:] = projection.weight[:8]
    first.mlp.down_proj.weight[:, 256:] = 0
    second.self_attn.o_proj.weight.zero_()
    third.mlp.down_proj.weight.zero_()


def deci(tensors: Tensors) -> Tensors:
    left = ("1.self_attn", "1.input_layernorm", "2.mlp", "2.post_attention_layernorm")
    made = {name: x for name, x in tensors.items() if not any(each in name for each in left)}
    for name in made:
        if re.search(r"0\.self_attn\.[kv]_proj", name):
            made[name] = made[name][:8]
        elif re.search(r"0\.mlp\.(gate|up)_proj", name):
            made[name] = made[name][:256]
        elif "0.mlp.down_proj" in name:
            made[name] = made[name][:, :256]
    return made


BLOCKS = [
    {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 6.0}},
    {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 12.0}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True, "ffn_mult": None}},
]


def with_drafting_layers(tensors: Tensors) -> Tensors:
    return tensors | {"model.mtp_layers.0.input_proj.weight": torch.zeros(64, 128)}


EXPERTS: dict[str, Any] = {
    "head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
}
FAMILIES: dict[str, tuple[str, Any, dict[str, Any], Callable[[Tensors], Tensors], Any]] = {
    "internlm 2": ("InternLM2ForCausalLM", LlamaConfig, {}, internlm2, {"bias": False}),
    "exaone 3": (
        "ExaoneForCausalLM",
        LlamaConfig,
        {},
        exaone,
        {"num_layers": 3, "activation_function": "silu", "layer_norm_epsilon": 1e-6},
    ),
    "internlm 3": (
        "InternLM3ForCausalLM",
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True},
        dict,
        {"qkv_bias": True, "bias": True},
    ),
    "iquest-coder": ("IQuestCoderForCausalLM", LlamaConfig, {}, dict, {}),
    "xverse": ("XverseForCausalLM", LlamaConfig, {}, dict, {}),
    "mimo": ("MiMoForCausalLM", Qwen2Config, {}, with_drafting_layers, {"attention_bias": True}),
    "orion": (
        "OrionForCausalLM",
        StableLmConfig,
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 1,
            }
        },
        dict,
        {"rms_norm_eps": 1e-5},
    ),
    "llama-nemotron": (
        "DeciLMForCausalLM",
        LlamaConfig,
        {"intermediate_size": 512},
        deci,
        {"block_configs": BLOCKS, "num_key_value_heads": None, "intermediate_size": None},
    ),
    "ling 1": (
        "BailingMoeForCausalLM",
        Qwen3MoeConfig,
        {
            "head_dim": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
        bailing,
        {"use_qk_norm": True, "num_experts": 8, "num_shared_experts": 0},
    ),
    "ling 2": (
        "BailingMoeV2ForCausalLM",
        Glm4MoeConfig,
        EXPERTS | {"use_qk_norm": True, "n_group": 4, "topk_group": 2},
        bailing,
        {
            "num_experts": 8,
            "num_shared_experts": 1,
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
        },
    ),
    "minicpm": (
        "MiniCPMForCausalLM",
        GraniteConfig,
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / math.sqrt(3),
            "logits_scaling": 64 / 16,
            "attention_multiplier": 8**-0.5,
        },
        dict,
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16},
    ),
}
LEFT_OUT = {
    "model_type", "n_routed_experts", "n_shared_experts", "attention_bias", "mlp_bias",
    "embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_model_by_usual_names(name: str, tmp_path: Path) -> None:
    architecture, kind, own, rename, keys = FAMILIES[name]
    model = make_model(tmp_path, kind, **WIDE, **own)
    if rename is deci:
        with torch.no_grad():
            narrow(model)
        model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT]), use_cache=False).logits[0, -1].float()
    config = json.loads((tmp_path / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in LEFT_OUT}
    if name == "exaone 3":
        config = {k: v for k, v in config.items() if k not in ("num_hidden_layers", "hidden_act")}
    config |= {"model_type": name, "architectures": [architecture], **keys}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = tmp_path / "model.safetensors"
    save_file({k: v.contiguous() for k, v in rename(load_file(file)).items()}, file)
    found = logits_after(make_runner(tmp_path), PROMPT, 1000)
    assert torch.allclose(found, expected, atol=1e-3, rtol=0)
