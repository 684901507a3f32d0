"""gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025): attention sinks, a window in
every other layer, YaRN, and experts with biases whose activation is clamped.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.parts import Activation
from pyengine.model.architectures.reading import common, count, number
from pyengine.model.architectures.traits import ExpertNames, Mixture, Names, Traits

SLOPE = 1.702
"""Of the activation, in all models there are; the kernels know no other."""

EXPERTS = ExpertNames(
    gate_up=("experts.gate_up_proj[{}].T",),
    down="experts.down_proj[{}].T",
    gate_up_bias="experts.gate_up_proj_bias[{}]",
    down_bias="experts.down_proj_bias[{}]",
    interleaved=True,
)


def gpt_oss(config: Mapping[str, Any]) -> Traits:
    """The traits of a gpt-oss.

    Raises:
        ModelLoadError: The activation has another slope than 1.702.
    """
    if number(config, "swiglu_alpha", SLOPE) != SLOPE:
        raise ModelLoadError(
            f"config.json: 'swiglu_alpha' of {config['swiglu_alpha']!r} is not supported; "
            f"there is: {SLOPE}"
        )
    bias = bool(config.get("attention_bias", True))
    mixture = Mixture(
        count=count(config, "num_local_experts"),
        inner=count(config, "intermediate_size"),
        # Among the chosen, a softmax of all logits is that of theirs.
        routing=Routing(count(config, "num_experts_per_tok"), normalized=True),
        router="router",
        router_bias=True,
        names=EXPERTS,
    )
    limit = number(config, "swiglu_limit", 7.0)
    shared = common(config, epsilon=1e-5)
    shared["activation"] = Activation("clamped_swiglu", limit)
    return Traits(
        names=Names(sinks="sinks"), qkv_bias=bias, out_bias=bias, mixture=mixture, **shared
    )
