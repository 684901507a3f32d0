"""Mixtures of experts in GGUF files, as llama.cpp's converter writes them: what their config.json
says.

What llama.cpp knows of a family, and its files do not say, is written here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COUNT = "expert_count"
CHOSEN = "expert_used_count"
INNER = "expert_feed_forward_length"


@dataclass(frozen=True)
class GgufFamily:
    """A family's models as GGUF describes them, with the facts that it leaves out.

    Attributes:
        architecture: As config.json has it.
        fields: Names in config.json, and behind the architecture's in metadata.
        known: What config.json says of every model of the family.
    """

    architecture: str
    fields: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)


MIXTURES = {
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        {"num_local_experts": COUNT, "num_experts_per_tok": CHOSEN, "intermediate_size": INNER},
        {"model_type": "gpt_oss", "attention_bias": True},
    ),
    "llama": GgufFamily(
        "MixtralForCausalLM", {"num_local_experts": COUNT, "num_experts_per_tok": CHOSEN}
    ),
    "olmoe": GgufFamily(
        "OlmoeForCausalLM",
        {"num_experts": COUNT, "num_experts_per_tok": CHOSEN},
        {"norm_topk_prob": False},
    ),
    "qwen2moe": GgufFamily(
        "Qwen2MoeForCausalLM",
        {
            "num_experts": COUNT,
            "num_experts_per_tok": CHOSEN,
            "moe_intermediate_size": INNER,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        {"norm_topk_prob": False},
    ),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        {"num_experts": COUNT, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": INNER},
        {"norm_topk_prob": True},
    ),
}
"""By the architecture that the file names; of a ``llama`` those that have experts."""

REFUSED = {
    "expert_group_count": (None, 0, 1),
    "expert_weights_scale": (None, 0.0, 1.0),
    "interleave_moe_layer_step": (None, 0, 1),
    "leading_dense_block_count": (None, 0),
}
"""What families with experts may not have, and the values that mean so."""
