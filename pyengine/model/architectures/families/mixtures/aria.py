"""The text part of Aria (Li et al., "Aria", 2024): a Llama with experts beside shared ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.reading import count, require
from pyengine.model.architectures.traits import ExpertNames, Mixture, Traits


def aria_text(config: Mapping[str, Any]) -> Traits:
    """The traits of an Aria's text part."""
    require(config, "hidden_act", "silu", "swish")  # experts have no other
    inner = count(config, "intermediate_size")
    mixture = Mixture(
        count=count(config, "moe_num_experts"),
        inner=inner,
        # Among the chosen, a softmax of all logits is that of theirs.
        routing=Routing(count(config, "moe_topk"), normalized=True),
        router="router",
        names=ExpertNames(gate_up=("experts.fc1.weight[{}].T",), down="experts.fc2.weight[{}].T"),
        shared="shared_experts",
        shared_inner=inner * count(config, "moe_num_shared_experts"),
    )
    return replace(llama(config), mixture=mixture)
