"""GGUF files of random models, as llama.cpp's converter writes them: tensors by the names of the
package ``gguf``, laid out anew where the architecture's graph wants that.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.model import families, hybrids, latents

Arrays = dict[str, NDArray[np.float32]]
Config = dict[str, Any]


def permuted(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Queries or keys as llama.cpp's converter has them for Llama."""
    split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def like_llama(arrays: Arrays, config: Config) -> Arrays:
    """With the rows of queries and keys as Llama's."""
    found = dict(arrays)
    for name, array in arrays.items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, count in heads.items():
            if f"self_attn.{part}" in name:
                found[name] = permuted(array, config[count])
    return found


def with_ones(arrays: Arrays, config: Config) -> Arrays:
    """With 1 added to the weights of norms."""
    return {
        name: array + 1
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
        else array
        for name, array in arrays.items()
    }


def pieces(arrays: Arrays, config: Config) -> Arrays:
    """With gates and ups apart, and the experts of a layer in one tensor."""
    found: Arrays = {}
    experts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, array in arrays.items():
        one = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        both = re.fullmatch(r"(.*)\.(?:experts\.gate_up_proj|input_linear)(?:\.weight)?", name)
        if one:
            stem = one[1].replace("model.", "") if one[3][0] == "w" else one[1]
            experts.setdefault(f"{stem}.{one[3]}", {})[int(one[2])] = array
        elif both and "gemma4" not in config["model_type"]:
            half = array.shape[-2] // 2
            found[in_parts(both[1], "gate", config)] = array[..., :half, :]
            found[in_parts(both[1], "up", config)] = array[..., half:, :]
        elif name.endswith("output_linear.weight"):
            found[in_parts(name.rpartition(".output")[0], "down", config)] = array
        else:
            found[name] = array
    return found | {name: np.stack([of[at] for at in sorted(of)]) for name, of in experts.items()}


def experts_of_qwen(arrays: Arrays, config: Config) -> Arrays:
    """With the experts of a layer named as llama.cpp's converter calls them, for all families."""
    return {
        re.sub(r"backbone(.*)\.mixer\.experts", r"model\1.mlp.experts", name): array
        for name, array in arrays.items()
    }


def in_parts(module: str, part: str, config: Config) -> str:
    """The name of gates, ups or outputs of experts, or of a layer beside them."""
    if "shared_mlp" not in module:
        return f"{module.replace('block_sparse_moe', 'mlp')}.experts.{part}_proj.weight"
    shared = "mlp.shared_experts" if config["num_local_experts"] else "mlp"
    return f"{module.replace('shared_mlp', shared)}.{part}_proj.weight"


def states(arrays: Arrays, config: Config) -> Arrays:
    """With the parameters of recurrences as graphs use them."""
    found: Arrays = {}
    groups: int = config.get("n_groups") or config.get("mamba_n_groups") or 1
    for name, array in arrays.items():
        mamba = ".linear_attn." not in name
        if name.endswith("A_log"):
            found[name] = -np.exp(array).reshape(-1, *[1] * mamba)
        elif name.endswith(".D"):
            found[name] = array.reshape(-1, 1)
        elif name.endswith("dt_bias"):
            found[name.replace("dt_bias", "dt_proj.bias")] = array
        elif re.search(r"\.(mamba|mixer)\.norm\.weight", name):
            found[name] = array.reshape(groups, -1)
        elif "conv1d.weight" in name or "conv.conv.weight" in name:
            found[name] = array.squeeze(1)
        else:
            found[name] = array
    return found


def tiled_values(arrays: Arrays, config: Config) -> Arrays:
    """Qwen3.5, with heads of values in the order that ggml repeats keys in."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dim, first = config["linear_value_head_dim"], 2 * keys * config["linear_key_head_dim"]

    def tiled(array: NDArray[Any], width: int) -> NDArray[Any]:
        split = array.reshape(keys, heads // keys, width, *array.shape[1:])
        return split.swapaxes(0, 1).reshape(array.shape)

    found: Arrays = {}
    for name, array in arrays.items():
        own = name.partition("linear_attn.")[2]
        if own.startswith(("in_proj_qkv", "conv1d")):
            array = np.concatenate((array[:first], tiled(array[first:], dim)))
        elif own.startswith("in_proj_z"):
            array = tiled(array, dim)
        elif own.startswith(("in_proj_a", "in_proj_b", "A_log", "dt_bias", "dt_proj")):
            array = tiled(array, 1)
        elif own.startswith("out_proj"):
            array = tiled(array.T, dim).T
        found[name] = array
    return found


def by_kind(arrays: Arrays, config: Config) -> Arrays:
    """Qwen3-Next, with all queries, keys and values apart from gates."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dim, wide = config["linear_key_head_dim"], config["linear_value_head_dim"] * heads // keys
    found: Arrays = {}
    for name, array in arrays.items():
        if not name.endswith("in_proj_qkvz.weight"):
            found[name] = array
            continue
        split = np.split(
            array.reshape(keys, -1, array.shape[1]), np.cumsum([dim, dim, wide]), axis=1
        )
        *qkv, gates = (each.reshape(-1, array.shape[1]) for each in split)
        found[name.replace("in_proj_qkvz", "in_proj_qkv")] = np.concatenate(qkv)
        found[name.replace("in_proj_qkvz", "in_proj_z")] = gates
    return found


def keys_absorbed(arrays: Arrays, config: Config) -> Arrays:
    """DeepSeek, with what makes keys of latents transposed, and apart from values."""
    heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]
    found: Arrays = {}
    for name, array in arrays.items():
        if name.endswith("kv_b_proj.weight"):
            both = array.reshape(heads, -1, array.shape[1])
            found[name.replace("kv_b", "k_b")] = both[:, :plain].swapaxes(1, 2)
            found[name.replace("kv_b", "v_b")] = both[:, plain:]
        else:
            found[name] = array
    return found


def queries_first(arrays: Arrays, config: Config) -> Arrays:
    """Falcon, with all queries before all keys before all values."""
    groups, heads = config["num_kv_heads"], config["num_attention_heads"]
    found: Arrays = {}
    for name, array in arrays.items():
        if "query_key_value" in name:
            split = array.reshape(
                groups, heads // groups + 2, config["hidden_size"] // heads, *array.shape[1:]
            )
            kinds = split[:, :-2], split[:, -2:-1], split[:, -1:]
            array = np.concatenate([each.reshape(-1, *array.shape[1:]) for each in kinds])
        found[name] = array
    return found


def multiplied(arrays: Arrays, config: Config) -> Arrays:
    """Falcon-H1, with its multipliers in its weights."""
    given, inner = config["attention_in_multiplier"], config["mamba_d_ssm"]
    keys = config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = inner, inner, keys, keys, config["mamba_n_heads"]
    factors = {
        "down_proj": config["mlp_multipliers"][1],
        "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * given,
        "q_proj": given,
        "v_proj": given,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"]
        * np.repeat(config["ssm_multipliers"], sizes)[:, None],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    return {
        name: (array * factors.get(name.split(".")[-2], 1.0)).astype(np.float32)
        for name, array in arrays.items()
    }


@dataclass(frozen=True)
class Case:
    """An architecture of GGUF.

    Attributes:
        family: Of the tests: name, and where its configuration stands.
        own: What its files differ in from that configuration.
        change: What the converter does to tensors, in this order.
        values: Metadata behind the architecture's name: constants, or names in config.json.
    """

    family: str
    own: Config = field(default_factory=dict)
    change: tuple[Callable[[Arrays, Config], Arrays], ...] = ()
    values: Callable[[Config], Config] = lambda config: {}


def rotated(config: Config, part: float) -> Config:
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"rope.dimension_count": int(dim * part)}


def slides(config: Config) -> Config:
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    }


def granite(config: Config) -> Config:
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def experts(config: Config) -> Config:
    count = config.get("num_local_experts") or config.get("num_experts")
    return {
        "expert_count": count or config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def routed(config: Config) -> Config:
    return experts(config) | {
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config.get("first_k_dense_replace", 1),
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config.get("norm_topk_prob", False),
        "expert_group_count": config.get("n_group") or 1,
        "expert_group_used_count": config.get("topk_group") or 1,
    }


def delta(config: Config) -> Config:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "full_attention_interval": 4,
        **rotated(config, config["rope_parameters"]["partial_rotary_factor"]),
    }


def mamba(config: Config) -> Config:
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config["num_heads"]
    inner = config.get("mamba_d_ssm")
    dim = config.get("mamba_head_dim") or config.get("mamba_d_head") or config["head_dim"]
    return {
        "ssm.conv_kernel": config.get("mamba_d_conv") or config["conv_kernel"],
        "ssm.state_size": config.get("mamba_d_state")
        or config.get("ssm_state_size")
        or config["state_size"],
        "ssm.group_count": config.get("mamba_n_groups") or config["n_groups"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": inner or dim * heads,
    }


def attending(config: Config) -> Config:
    kinds = config.get("layer_types") or config["layers_block_type"]
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [
            heads if "attention" in each.replace("linear_attention", "") else 0 for each in kinds
        ]
    }


def latents_of(config: Config) -> Config:
    rotary, plain = config["rope_parameters"], config["qk_nope_head_dim"]
    turned = config["qk_rope_head_dim"]
    found = routed(config) | {
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.head_count_kv": 1,
        "attention.key_length": config["kv_lora_rank"] + turned,
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": plain + turned,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": turned,
        "expert_gating_func": 2 if config["model_type"] == "deepseek_v3" else 1,
    }
    if rotary["rope_type"] == "yarn":
        found |= yarn(rotary, 0.1 * rotary["mscale_all_dim"])
    return found


def yarn(rotary: Config, log_multiplier: float) -> Config:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rotary["factor"],
        "rope.scaling.original_context_length": rotary["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": log_multiplier,
    }


def heads_unsplit(config: Config) -> Config:
    """As in files before 2025."""
    values = latents_of(config)
    values["attention.key_length"] = values.pop("attention.key_length_mla")
    values["attention.value_length"] = values.pop("attention.value_length_mla")
    return values | {"attention.head_count_kv": config["num_attention_heads"]}


def gemma4(config: Config) -> Config:
    by_layer = config.get("per_layer_config") or {}
    layers = [by_layer.get(str(at)) or {} for at in range(config["num_hidden_layers"])]
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    full = next(at for at, kind in enumerate(kinds) if kind == "full_attention")
    wide = config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)
    inner = config["intermediate_size"]
    twice = 2 if config.get("use_double_wide_mlp") else 1
    return slides(config) | {
        "attention.shared_kv_layers": config.get("num_kv_shared_layers") or 0,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "attention.key_length": layers[full].get("head_dim", 32),
        "attention.value_length": layers[full].get("head_dim", 32),
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.head_count_kv": [own.get("num_key_value_heads", heads) for own in layers],
        "feed_forward_length": [inner * (1 if at < wide else twice) for at in range(len(layers))],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": 32,
        **({"expert_count": config["num_experts"]} if config.get("num_experts") else {}),
        **(
            {
                "expert_used_count": config["top_k_experts"],
                "expert_feed_forward_length": config["moe_intermediate_size"],
            }
            if config.get("num_experts")
            else {}
        ),
    }


UNTIED: Config = {"tie_word_embeddings": False}
PLAIN_YARN: Config = {"rope_parameters": latents.YARN | {"mscale": 1.3}}
MINISTRAL: Config = latents.YARN | {
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
HEAD: Config = {"query_pre_attn_scalar": 16}

CASES: dict[str, Case] = {
    "command-r": Case("cohere", values=lambda c: {"logit_scale": c["logit_scale"]}),
    "cohere2": Case(
        "cohere2",
        {"layer_types": [*["sliding_attention"] * 3, "full_attention"]},
        values=lambda c: {
            "logit_scale": c["logit_scale"],
            "attention.sliding_window": c["sliding_window"],
        },
    ),
    "deepseek2": Case("deepseek-v3", PLAIN_YARN, (keys_absorbed, pieces), latents_of),
    "deepseek2, lite": Case("deepseek-v2-lite", PLAIN_YARN, (keys_absorbed, pieces), latents_of),
    "deepseek2, unsplit": Case("deepseek-v3", PLAIN_YARN, (pieces,), heads_unsplit),
    "ernie4_5": Case("ernie 4.5"),
    "ernie4_5-moe": Case(
        "ernie 4.5, experts",
        change=(pieces,),
        values=lambda c: {
            "expert_count": c["moe_num_experts"],
            "expert_used_count": c["moe_k"],
            "interleave_moe_layer_step": c["moe_layer_interval"],
            "leading_dense_block_count": c["moe_layer_start_index"],
            "expert_feed_forward_length": c["moe_intermediate_size"],
            "expert_shared_count": c["moe_num_shared_experts"],
        },
    ),
    "exaone4": Case("exaone 4", values=slides),
    "falcon": Case("falcon", change=(queries_first,)),
    "falcon, one head": Case(
        "falcon",
        {"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": 1},
        (queries_first,),
    ),
    "falcon-h1": Case(
        "falcon-h1, norms behind gates", UNTIED, (multiplied, states), lambda c: mamba(c)
    ),
    "gemma": Case("gemma", change=(with_ones,)),
    "gemma2": Case(
        "gemma 2",
        HEAD,
        (with_ones,),
        lambda c: {
            "attention.sliding_window": c["sliding_window"],
            "attn_logit_softcapping": c["attn_logit_softcapping"],
            "final_logit_softcapping": c["final_logit_softcapping"],
        },
    ),
    "gemma3": Case(
        "gemma 3",
        HEAD
        | {
            "num_hidden_layers": 7,
            "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        },
        (with_ones,),
        lambda c: {
            "attention.sliding_window": c["sliding_window"],
            "final_logit_softcapping": c["final_logit_softcapping"],
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "gemma4": Case("gemma 4", {"vocab_size_per_layer_input": 131}, values=gemma4),
    "gemma4, experts": Case("gemma 4, keys as values, experts", values=gemma4),
    "glm4moe": Case(
        "glm 4.5",
        change=(pieces,),
        values=lambda c: routed(c) | rotated(c, 0.5) | {"expert_gating_func": 2},
    ),
    "granite": Case("granite", change=(like_llama,), values=granite),
    "granitehybrid": Case(
        "granite 4 h",
        change=(like_llama, pieces, states),
        values=lambda c: {
            **granite(c),
            **mamba(c),
            **experts(c),
            **attending(c),
            "expert_feed_forward_length": c["intermediate_size"],
            "expert_shared_feed_forward_length": c["shared_intermediate_size"],
        },
    ),
    "granitehybrid, dense": Case(
        "granite 4 h",
        {"num_local_experts": 0, "shared_intermediate_size": 72},
        (like_llama, pieces, states),
        lambda c: granite(c) | mamba(c) | attending(c),
    ),
    "granitemoe": Case(
        "granite, a shared expert",
        change=(like_llama, pieces),
        values=lambda c: (
            granite(c)
            | experts(c)
            | {"expert_shared_feed_forward_length": c["shared_intermediate_size"]}
        ),
    ),
    "lfm2": Case(
        "lfm2",
        {"conv_bias": False, "block_auto_adjust_ff_dim": False},
        (states,),
        lambda c: attending(c) | {"shortconv.l_cache": c["conv_L_cache"]},
    ),
    "lfm2moe": Case(
        "lfm2, experts",
        change=(pieces, states),
        values=lambda c: {
            **attending(c),
            **experts(c),
            "shortconv.l_cache": c["conv_L_cache"],
            "leading_dense_block_count": c["num_dense_layers"],
            "expert_gating_func": 2,
        },
    ),
    "mamba2": Case("mamba 2", change=(states,), values=mamba),
    "mistral3": Case(
        "ministral 3",
        {"rope_parameters": MINISTRAL},
        change=(like_llama,),
        values=lambda c: {
            **yarn(c["rope_parameters"], 1.0),
            "attention.temperature_scale": c["rope_parameters"]["llama_4_scaling_beta"],
        },
    ),
    "nemotron": Case("nemotron", change=(with_ones,), values=lambda c: rotated(c, 0.5)),
    "nemotron_h": Case(
        "nemotron-h",
        change=(states,),
        values=lambda c: {
            **mamba(c),
            **attending(c),
            "feed_forward_length": [
                c["intermediate_size"] if kind == "mlp" else 0 for kind in c["layers_block_type"]
            ],
        },
    ),
    "nemotron_h_moe": Case(
        "nemotron 3, narrow experts",
        change=(pieces, experts_of_qwen, states),
        values=lambda c: {
            **mamba(c),
            **attending(c),
            **experts(c),
            "feed_forward_length": [
                {"moe": c["moe_intermediate_size"], "mlp": c["intermediate_size"]}.get(kind, 0)
                for kind in c["layers_block_type"]
            ],
            "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"],
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": c["routed_scaling_factor"],
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "moe_latent_size": c["moe_latent_size"],
        },
    ),
    "olmo": Case("olmo", {"attention_bias": False}, (like_llama,)),
    "olmo2": Case("olmo 2"),
    "olmo2, windows": Case("olmo 3", values=slides),
    "phi2": Case("phi", values=lambda c: rotated(c, 0.5)),
    "qwen35": Case("qwen3.5", change=(with_ones, tiled_values, states), values=delta),
    "qwen35moe": Case(
        "qwen3.5, experts",
        change=(with_ones, tiled_values, pieces, states),
        values=lambda c: delta(c) | experts(c),
    ),
    "qwen3next": Case(
        "qwen3-next",
        {"mlp_only_layers": []},
        (with_ones, by_kind, pieces, states),
        lambda c: delta(c) | experts(c),
    ),
    "seed_oss": Case("seed-oss"),
    "smollm3": Case("smollm 3", change=(like_llama,)),
    "stablelm": Case("stablelm", values=lambda c: rotated(c, 0.25)),
    "starcoder2": Case("starcoder 2"),
}


def family_of(case: Case) -> tuple[Any, Config]:
    """The configuration of transformers, and its changes."""
    kind, changes = (families.FAMILIES | hybrids.HYBRIDS | latents.LATENTS)[case.family]
    return kind, changes | case.own


def layers_of(config: Config) -> int:
    return config.get("num_hidden_layers") or len(config["layers_block_type"])


def shape(config: Config) -> Config:
    """What all architectures say."""
    rotary: Config = config.get("rope_parameters") or {}
    rotary = rotary.get("full_attention", rotary)
    rms = config.get("rms_norm_eps") or config.get("norm_eps") or config.get("layer_norm_epsilon")
    layer = [config.get(key) for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")]
    inner = config.get("intermediate_size") or config.get("ffn_hidden_size")
    groups = config.get("num_kv_heads") or config.get("num_key_value_heads")
    return {
        "context_length": config.get("max_position_embeddings", 256),
        "embedding_length": config["hidden_size"],
        "block_count": layers_of(config),
        "feed_forward_length": config.get("ffn_hidden_size") or inner or 0,
        "attention.head_count": config.get("num_attention_heads", 0),
        "attention.head_count_kv": groups or config.get("num_attention_heads", 0),
        "attention.layer_norm_rms_epsilon": rms,
        "attention.layer_norm_epsilon": next((each for each in layer if each), rms),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "rope.freq_base": rotary.get("rope_theta"),
        "use_parallel_residual": config.get("use_parallel_residual"),
    }


def write(folder: Path, path: Path, name: str, kind: str = "F16") -> None:
    """A GGUF file of a folder's model, as case ``name``; its matrices of type ``kind``."""
    case, architecture = CASES[name], name.partition(",")[0]
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (shape(config) | case.values(config)).items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list([f"t{index}" for index in range(config["vocab_size"])])
    writer.add_token_merges([])
    writer.add_eos_token_id(1)
    number = next(key for key, each in gguf.MODEL_ARCH_NAMES.items() if each == architecture)
    names = gguf.get_tensor_name_map(number, layers_of(config))
    arrays = {
        key: each.float().numpy() for key, each in load_file(folder / "model.safetensors").items()
    }
    for change in case.change:
        arrays = change(arrays, config)
    if architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", np.array([1.0] * 4 + [1e30] * 12, np.float32))
    for key, array in arrays.items():
        stored = GGMLQuantizationType["F32" if array.ndim < 2 or min(array.shape) < 8 else kind]
        writer.add_tensor(
            own_name(names, key), quantize(np.ascontiguousarray(array), stored), raw_dtype=stored
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def own_name(names: gguf.TensorNameMap, key: str) -> str:
    """The name of a checkpoint's tensor in a file."""
    layer = (re.search(r"\d+", key) or [""])[0]
    for end, own in (
        ("router.scale", f"blk.{layer}.ffn_gate_inp.scale"),
        ("per_expert_scale", f"blk.{layer}.ffn_down_exps.scale"),
        ("expert_bias", f"blk.{layer}.exp_probs_b.bias"),
        ("e_score_correction_bias", f"blk.{layer}.exp_probs_b.bias"),
    ):
        if key.endswith(end):
            return own
    if key.endswith((".A_log", ".D")):
        key, bare = key, True
    else:
        key, bare = key if key.endswith((".weight", ".bias")) else f"{key}.weight", False
    found = names.get_name(key, try_suffixes=() if bare else (".weight", ".bias"))
    assert found is not None, key
    return found


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
