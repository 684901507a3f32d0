"""Changes of a config.json: each key left out, turned round or changed, and foreign ones added."""

from collections.abc import Iterator
from typing import Any

LEFT_ALONE = frozenset(
    # What no forward pass of a decoder depends on, and what says which decoder it is.
    "_name_or_path architectures bos_token_id dtype eos_token_id initializer_range model_type "
    "pad_token_id torch_dtype transformers_version use_cache is_decoder id2label label2id "
    # Initial values: transformers makes some anew of what it loaded, and bounds prompts' steps.
    "rescale_prenorm_residual time_step_min time_step_max time_step_floor "
    "attention_dropout hidden_dropout output_router_logits router_aux_loss_coef".split()
)
ADDED: dict[str, Any] = {
    "attention_bias": True,
    "mlp_bias": True,
    "sliding_window": 16,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "partial_rotary_factor": 0.5,
    "rope_theta": 500.0,
    "rope_local_base_freq": 300.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "logits_scaling": 2.0,
    "logit_scale": 2.0,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 2.0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "clip_qkv": 0.05,
    "use_qk_norm": True,
    "norm_topk_prob": True,
    "no_rope_layers": [0, 1],
    "attention_chunk_size": 16,
    "query_pre_attn_scalar": 100,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": True,
}
"""Keys that some families read and others do not; lists are repeated for all layers."""


def mutations(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each change of ``config`` by its name, and config.json with it."""
    for name, value in config.items():
        if name in LEFT_ALONE:
            continue
        yield f"{name} left out", {k: v for k, v in config.items() if k != name}
        if value is not None:
            yield f"{name}: null", config | {name: None}
        for other in _others(value):
            yield f"{name}: {other!r}", config | {name: other}
    for name, value in ADDED.items():
        if name not in config:
            if isinstance(value, list):
                layers = config.get("num_hidden_layers") or config.get("n_layer") or 4
                value = (value * layers)[:layers]
            if name == "rope_scaling":
                # What it leaves out of the parameters beside it, see test_positions.
                flat = {"rope_theta", "partial_rotary_factor"}
                beside = config.get("rope_parameters") or {}
                value = {key: beside[key] for key in flat & beside.keys()} | value
            yield f"{name} added", config | {name: value}


def _others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from sorted({value * 2, max(value - 1, 0), 1} - {value})
    elif isinstance(value, float):
        yield value * 0.5
    elif isinstance(value, str):
        yield from sorted({"gelu", "relu"} - {value})
    elif isinstance(value, list) and value:
        yield value[::-1]
        yield value[:-1]
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for other in _others(inner):
                yield value | {key: other}
