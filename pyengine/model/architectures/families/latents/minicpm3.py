"""MiniCPM3 (Hu et al., "MiniCPM: Unveiling the Potential of Small Language Models [...]", 2024, and
its third model): latent attention, and MiniCPM's scales of embeddings, branches and logits.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.families.latents.deepseek import (
    attends_to_latents,
    latent_attention,
)
from pyengine.model.architectures.reading import common, count, layer_count, number
from pyengine.model.architectures.traits import Traits


def minicpm3(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiniCPM3."""
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    root = layer_count(config) ** 0.5
    value_dim = config.get("v_head_dim")
    attention = latent_attention(
        {**config, "rope_interleave": False, "v_head_dim": value_dim or hidden // heads}
    )
    return Traits(
        mlp_bias=bool(config.get("mlp_bias")),
        embedding_scale=number(config, "scale_emb", 1.0),
        branch_scale=number(config, "scale_depth", root) / root,
        logits_scale=number(config, "dim_model_base", hidden) / hidden,
        **attends_to_latents(config, attention),
        **common(config, tied=True, epsilon=1e-5),
    )
