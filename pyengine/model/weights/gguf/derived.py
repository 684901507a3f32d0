"""What else follows of the facts that a GGUF file states: keys of config.json, by family."""

from collections.abc import Callable
from typing import Any

from pyengine.model.weights.gguf.family import Facts

SIGMOID = 2
"""llama.cpp's number of a router that scores each expert by itself."""
YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def windows(facts: Facts) -> dict[str, Any]:
    """The kind of each layer, where the file has a list of them."""
    slides = facts.get("attention.sliding_window_pattern")
    if not isinstance(slides, list):
        return {}
    return {"layer_types": _kinds(slides, "sliding_attention", "full_attention")}


def _kinds(flags: list[Any], yes: str, no: str) -> list[str]:
    return [yes if flag else no for flag in flags]


def windows_but_every(count: int) -> Callable[[Facts], dict[str, Any]]:
    """Windows, but every so many layers one sees all tokens; none where the file has no window."""

    def kinds(facts: Facts) -> dict[str, Any]:
        window = bool(facts.get("attention.sliding_window"))
        slides = [window and (layer + 1) % count != 0 for layer in range(facts.layers)]
        return {"layer_types": _kinds(slides, "sliding_attention", "full_attention")}

    return kinds


def gemma2(facts: Facts) -> dict[str, Any]:
    """Windows in every other layer, and the scale of scores."""
    return windows_but_every(2)(facts) | _gemma_scale(facts, 46)


def gemma3(facts: Facts) -> dict[str, Any]:
    """Windows in five layers of six, with positions of their own, and the scale of scores."""
    theta, local = facts.get("rope.freq_base", 1e6), facts.get("rope.freq_base_swa", 1e4)
    rotary = {"full_attention": {"rope_theta": theta}, "sliding_attention": {"rope_theta": local}}
    return windows_but_every(6)(facts) | _gemma_scale(facts, 62) | {"rope_parameters": rotary}


def _gemma_scale(facts: Facts, largest: int) -> dict[str, Any]:
    """Scores are scaled by the size of heads, but in the 27B, which has so many layers."""
    wide = facts.get("embedding_length") // facts.get("attention.head_count")
    return {"query_pre_attn_scalar": wide if facts.layers == largest else facts.head_dim}


def gemma4(facts: Facts) -> dict[str, Any]:
    """Heads, widths and positions, which differ by the kind of a layer."""
    kinds = windows(facts)["layer_types"]
    full = kinds.index("full_attention")
    heads, inner = facts.by_layer("attention.head_count_kv"), facts.by_layer("feed_forward_length")
    factors = facts.rotary_factors
    part = sum(factor < 1e29 for factor in factors) / max(len(factors), 1)
    return {
        "layer_types": kinds,
        "head_dim": facts.get("attention.key_length_swa"),
        "global_head_dim": facts.get("attention.key_length"),
        "num_key_value_heads": heads[0],
        "num_global_key_value_heads": heads[full],
        "attention_k_eq_v": not facts.has(f"blk.{full}.attn_v.weight"),
        "intermediate_size": min(inner),
        "use_double_wide_mlp": min(inner) != max(inner),
        "enable_moe_block": bool(facts.get("expert_count")),
        "hidden_size_per_layer_input": facts.get("embedding_length_per_layer_input", 0),
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": facts.get("rope.freq_base_swa", 1e4)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": facts.get("rope.freq_base", 1e6),
                "partial_rotary_factor": part,
            },
        },
    }


def value_dim(name: str) -> Callable[[Facts], dict[str, Any]]:
    """The elements of a state's value, by this name."""
    return lambda facts: {name: facts.get("ssm.inner_size") // facts.get("ssm.time_step_rank")}


def deepseek(facts: Facts) -> dict[str, Any]:
    """The sizes of heads and latents, YaRN with its temperature, and which DeepSeek it is."""
    rotated, scaling = facts.get("rope.dimension_count"), facts.get("rope.scaling.factor")
    by_sigmoid = facts.get("expert_gating_func") == SIGMOID
    temperature = 10 * facts.get("rope.scaling.yarn_log_multiplier", 0.0)
    yarn = {
        "rope_type": "yarn",
        "factor": scaling,
        "original_max_position_embeddings": facts.get("rope.scaling.original_context_length"),
        "mscale": temperature,
        "mscale_all_dim": temperature,
    }
    key = facts.get("attention.key_length_mla") or facts.get("attention.key_length")
    value = facts.get("attention.value_length_mla") or facts.get("attention.value_length")
    groups = facts.get("expert_group_count", 1)
    return {
        "architectures": [f"DeepseekV{3 if by_sigmoid else 2}ForCausalLM"],
        "num_key_value_heads": facts.get("attention.head_count"),
        "head_dim": None,
        "partial_rotary_factor": 1.0,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
        "n_group": groups,
        "topk_group": facts.get("expert_group_used_count", 1),
        "rope_scaling": yarn if scaling else None,
    }


def attending(other: str, *also: Callable[[Facts], dict[str, Any]]) -> Callable[[Facts], Any]:
    """Layers attend that have heads of keys; others are of the kind ``other``."""

    def kinds(facts: Facts) -> dict[str, Any]:
        heads = facts.by_layer("attention.head_count_kv")
        found = {"layer_types": _kinds(heads, "full_attention", other)}
        for each in also:
            found |= each(facts)
        return found

    return kinds


def granite_h(facts: Facts) -> dict[str, Any]:
    """The sizes of Mamba-2's heads, and of the layer beside the experts."""
    inner, heads = facts.get("ssm.inner_size"), facts.get("ssm.time_step_rank")
    feeds = facts.number("feed_forward_length")
    return {
        "mamba_expand": inner // facts.get("embedding_length"),
        "mamba_d_head": inner // heads,
        "shared_intermediate_size": facts.get("expert_shared_feed_forward_length", feeds),
        "num_local_experts": facts.get("expert_count", 0),
        "position_embedding_type": "rope" if facts.get("rope.scaling.finetuned") else None,
    }


def nemotron_h(facts: Facts) -> dict[str, Any]:
    """What the one block of each layer is."""
    heads = facts.by_layer("attention.head_count_kv")
    feeds = facts.by_layer("feed_forward_length")
    kinds = [
        "attention" if head else "mlp" if feed else "mamba"
        for head, feed in zip(heads, feeds, strict=True)
    ]
    for layer in range(len(kinds)):
        if facts.has(f"blk.{layer}.ffn_gate_inp.weight"):
            kinds[layer] = "moe"
    return {"layers_block_type": kinds} | value_dim("mamba_head_dim")(facts)


def mamba2(facts: Facts) -> dict[str, Any]:
    """The sizes of heads."""
    wide = facts.get("ssm.inner_size") // facts.get("embedding_length")
    return {"expand": wide} | value_dim("head_dim")(facts)


def olmo2(facts: Facts) -> dict[str, Any]:
    """With windows it is an OLMo 3."""
    if not facts.get("attention.sliding_window"):
        return {}
    return {"architectures": ["Olmo3ForCausalLM"], **windows(facts)}


def ministral(facts: Facts) -> dict[str, Any]:
    """YaRN with its temperatures."""
    if not facts.get("rope.scaling.factor"):
        return {}
    temperature = facts.get("rope.scaling.yarn_log_multiplier", 0.0)
    return {
        "rope_scaling": {
            **{key: facts.get(f"rope.scaling.{theirs}") for key, theirs in YARN.items()},
            "rope_type": "yarn",
            "mscale": temperature,
            "mscale_all_dim": temperature,
            "llama_4_scaling_beta": facts.get("attention.temperature_scale", 0.0),
        }
    }


def falcon(facts: Facts) -> dict[str, Any]:
    """Norms of a layer."""
    return {"num_ln_in_parallel_attn": 2 if facts.has("attn_norm_2.weight") else 1}
