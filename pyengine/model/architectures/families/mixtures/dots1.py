"""dots.llm1 (rednote-hilab, "dots.llm1 Technical Report", 2025): GLM-4.5's experts behind Qwen3's
attention.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.llama_like.qwen3 import qwen3
from pyengine.model.architectures.families.norms_behind.glm import glm4_moe
from pyengine.model.architectures.traits import Traits


def dots1(config: Mapping[str, Any]) -> Traits:
    """The traits of a dots.llm1."""
    experts = glm4_moe({"norm_topk_prob": False, **config})
    return replace(qwen3(config), mixture=experts.mixture)
